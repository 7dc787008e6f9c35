// A sequence's state as a value: the only form in which a sequence moves. libllama accepts damaged bytes silently
// (docs/LIBLLAMA.md), so a snapshot that has left the process is verified by its checksum when it is read (cold_store.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "core/error.h"
#include "core/ids.h"
#include "kv/byte_pool.h"
#include "kv/checksum.h"

namespace uma::kv {

// The opaque bytes of the positions [begin, end).
struct SnapshotPiece {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  Bytes bytes;
};

struct Snapshot {
  std::string identity;               // Required llm::Context::state_identity() of a context that loads it.
  std::vector<Token> tokens;          // The tokens of the state, from position 0.
  ByteBudget::Share room{};           // Reservation in the pool that owns the memory.
  std::vector<SnapshotPiece> pieces;  // In order, without gaps, covering all of `tokens`.

  // Memory of the snapshot.
  [[nodiscard]] std::size_t bytes() const;
};

// A snapshot whose bytes are elsewhere. A piece may be without them.
struct SnapshotView {
  struct Piece {
    std::int32_t begin = 0;
    std::int32_t end = 0;
    std::span<const std::byte> bytes;
  };

  SnapshotView(std::string_view its_identity, std::span<const Token> its_tokens, std::vector<Piece> its_pieces)
      : identity(its_identity), tokens(its_tokens), pieces(std::move(its_pieces)) {}
  SnapshotView(const Snapshot& snapshot);  // NOLINT(google-explicit-constructor): of the same thing.

  std::string_view identity;
  std::span<const Token> tokens;
  std::vector<Piece> pieces;
};

using SnapshotPtr = std::shared_ptr<const Snapshot>;  // Shared: a lane loads it while the store forgets it.

// Makes a snapshot whose memory returns to the pool, which outlives it. Its reservation is corrected to its size.
[[nodiscard]] SnapshotPtr share_snapshot(Snapshot snapshot, BytePool& pool);
void recycle(Snapshot snapshot, BytePool& pool);

// XXH3-128 of the whole snapshot. O(bytes), about 10 GB/s.
[[nodiscard]] Checksum checksum_of(const SnapshotView& snapshot);

// Computes the same checksum incrementally: begin_piece() and then its bytes, for every piece.
class RunningChecksum {
 public:
  RunningChecksum(std::string_view identity, std::span<const Token> tokens, std::size_t pieces_count);
  void begin_piece(std::int32_t begin, std::int32_t end, std::uint64_t bytes_count);
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] Checksum value() const;

 private:
  void add_number(std::uint64_t number);

  RunningHash hash_;
};

// Whether a context with this identity can load the snapshot. Errors, all E_RUNTIME_001: another identity, pieces that do not
// cover the tokens.
[[nodiscard]] Expected<Unit> check_fits(const Snapshot& snapshot, const std::string& identity);

}  // namespace uma::kv
