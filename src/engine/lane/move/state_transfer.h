// Saves and restores a sequence of a context as a Snapshot. Called by the lane that owns the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/error.h"
#include "kv/byte_pool.h"
#include "kv/snapshot.h"
#include "llm/model.h"

namespace uma::engine {

// Saves a sequence one piece at a time. In a unified context that can be cut anywhere pieces have at most 128 tokens, or those
// of one image, so they can be saved and loaded between ticks; other contexts save whole sequences only. The sequence stays,
// and must not change before the last piece is saved.
class SequenceSave {
 public:
  // `tokens`: exactly those that the sequence's cache holds, at least one; in a context that knows pieces, the first of them
  // are enough, which do not end within an image. `adapters`: those that it was computed with. `reservation` covers the memory.
  SequenceSave(const llm::Context& context, std::span<const Token> tokens, const llm::AdapterSet& adapters,
               ByteBudget::Share reservation);
  // Goes on behind the pieces that `begun` has of the first tokens; its reservation covers the whole.
  SequenceSave(const llm::Context& context, std::span<const Token> tokens, const llm::AdapterSet& adapters, kv::Snapshot begun);

  [[nodiscard]] bool is_complete() const {
    return !snapshot_.pieces.empty() && snapshot_.pieces.back().end == static_cast<std::int32_t>(snapshot_.tokens.size());
  }
  // The number of tokens whose pieces are saved.
  [[nodiscard]] std::size_t tokens_saved() const {
    return snapshot_.pieces.empty() ? 0 : static_cast<std::size_t>(snapshot_.pieces.back().end);
  }
  // Only the first `count` tokens are saved, since the sequence has lost the others. Requires: a context that knows pieces, and
  // tokens_saved() <= count, which is more than 0 and no more than before.
  void shorten(std::size_t count);
  // The memory that save_piece() takes next.
  [[nodiscard]] std::size_t next_bytes(llm::Context& context, std::int32_t sequence) const;
  // Saves the next piece of `sequence`, in memory of the pool. Returns its bytes.
  [[nodiscard]] Expected<std::size_t> save_piece(llm::Context& context, std::int32_t sequence, kv::BytePool& pool);
  // Requires: it is complete.
  [[nodiscard]] kv::Snapshot take(const kv::BytePool& pool);
  // Drops what was saved. Returns the memory that covers the save.
  [[nodiscard]] ByteBudget::Share give_up(kv::BytePool& pool);
  // Saves all pieces that are missing.
  [[nodiscard]] Expected<kv::Snapshot> finish(llm::Context& context, std::int32_t sequence, kv::BytePool& pool);

  TimePoint wants_memory_since = kNever;  // For the next piece.
  int memory_missed = 0;                  // How often memory was not there in time.

 private:
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> next_piece(llm::Context& context, std::int32_t sequence) const;

  kv::Snapshot snapshot_;
};

// Saves a whole sequence at once.
[[nodiscard]] Expected<kv::Snapshot> save_sequence(llm::Context& context, std::int32_t sequence, std::span<const Token> tokens,
                                                   const llm::AdapterSet& adapters, kv::BytePool& pool,
                                                   ByteBudget::Share reservation);
// The approximate bytes of the state of so many tokens in a pool, and the number of its pieces.
struct StateSize {
  std::size_t piece_bytes = 0;
  std::size_t pieces = 0;
};
[[nodiscard]] StateSize state_size(const llm::ContextShape& shape, std::int32_t tokens);
// The bytes to reserve for the state of a sequence as it is now, and for the state of a prompt of so many tokens in a context
// of this shape.
[[nodiscard]] std::uint64_t state_reservation_bytes(llm::Context& context, std::int32_t sequence);
[[nodiscard]] std::uint64_t prompt_reservation_bytes(const llm::ContextShape& shape, std::int32_t tokens);

// Where the pieces of the sequence's first `length` tokens end in a save. Requires: the sequence can be cut there.
[[nodiscard]] std::vector<std::int32_t> piece_ends(llm::Context& context, std::int32_t sequence, std::int32_t length);

// Loads the next piece of a snapshot into `sequence`, which holds the pieces before it. The format of the piece may change. On
// failure the sequence is empty.
[[nodiscard]] Expected<Unit> restore_piece(llm::Context& context, std::int32_t sequence, kv::SnapshotPiece& piece);
// Loads a piece of a shared snapshot, which does not change. If the snapshot comes from a context with another number of
// sequences, a copy is loaded, for which the pool must have memory. Errors: also a snapshot that was not computed with
// `adapters`.
[[nodiscard]] Expected<Unit> restore_shared_piece(llm::Context& context, std::int32_t sequence, const llm::AdapterSet& adapters,
                                                  const kv::Snapshot& snapshot, std::size_t piece, const kv::BytePool& pool);

// Makes the empty sequence `to` a copy of `from`, whose cache holds exactly `tokens`, by way of the pool, in memory that
// `reservation` covers. Takes as long as saving and loading. On failure `to` is empty.
[[nodiscard]] Expected<Unit> copy_sequence(llm::Context& context, std::int32_t from, std::int32_t to,
                                           std::span<const Token> tokens, kv::BytePool& pool, ByteBudget::Share reservation);

// Loads a snapshot into the empty `sequence`. The format of the snapshot may change. On failure the sequence is empty. Errors:
// also a snapshot that was not computed with `adapters`.
[[nodiscard]] Expected<Unit> restore_sequence(llm::Context& context, std::int32_t sequence, const llm::AdapterSet& adapters,
                                              kv::Snapshot& snapshot);

}  // namespace uma::engine
