#include "engine/lane/move/state_transfer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace uma::engine {
namespace {

// The number of tokens in a piece: small enough to load it between two ticks, large enough to cost little; all tokens if the
// context has no pieces.
std::int32_t piece_tokens(const llm::ContextShape& shape, std::int32_t length) {
  return shape.knows_pieces() ? std::clamp(shape.sequence_cells_max / 8, 16, 128) : length;
}

// Besides the keys and values, the library writes a few numbers for each cell and layer.
std::size_t piece_bytes(const llm::ContextShape& shape, std::int32_t tokens) {
  constexpr std::size_t kPerCell = 32;
  constexpr std::size_t kFixed = std::size_t{8} << 10;
  return static_cast<std::size_t>(tokens) * (shape.kv_bytes_per_token + kPerCell) + kFixed;
}

// The end of a piece that begins at `begin` and has `step` tokens if possible, of a sequence that is saved up to `length`: an
// image that cannot be divided is in the next piece, or is a piece of its own.
std::int32_t piece_end(llm::Context& context, std::int32_t sequence, std::int32_t begin, std::int32_t step,
                       std::int32_t length) {
  const std::int32_t wanted = std::min(length, begin + step);
  std::int32_t end = wanted;
  while (end > begin && !context.can_truncate(sequence, end)) --end;
  if (end > begin) return end;
  end = wanted;
  while (end < length && !context.can_truncate(sequence, end)) ++end;
  return end;
}

}  // namespace

StateSize state_size(const llm::ContextShape& shape, std::int32_t tokens) {
  const std::int32_t step = std::min(tokens, piece_tokens(shape, tokens));
  return {.piece_bytes = piece_bytes(shape, step), .pieces = static_cast<std::size_t>((tokens + step - 1) / step)};
}

std::uint64_t prompt_reservation_bytes(const llm::ContextShape& shape, std::int32_t tokens) {
  const std::uint64_t with = static_cast<std::uint64_t>(tokens) * sizeof(Token);
  if (!shape.can_truncate) return kv::BytePool::room_for(shape.sequence_bytes_max + piece_bytes(shape, 0)) + with;
  const std::int32_t step = piece_tokens(shape, tokens);
  const std::int32_t rest = tokens % step;
  return static_cast<std::uint64_t>(tokens / step) * kv::BytePool::room_for(piece_bytes(shape, step)) +
         (rest > 0 ? kv::BytePool::room_for(piece_bytes(shape, rest)) : 0) + with;
}

std::uint64_t state_reservation_bytes(llm::Context& context, std::int32_t sequence) {
  const std::int32_t tokens = context.sequence_length(sequence);
  if (context.shape().can_truncate) return prompt_reservation_bytes(context.shape(), tokens);
  return kv::BytePool::room_for(context.state_bytes(sequence)) + static_cast<std::uint64_t>(tokens) * sizeof(Token);
}

SequenceSave::SequenceSave(const llm::Context& context, std::span<const Token> tokens, const llm::AdapterSet& adapters,
                           ByteBudget::Share reservation)
    : SequenceSave(context, tokens, adapters,
                   kv::Snapshot{.identity = {}, .tokens = {}, .room = std::move(reservation), .pieces = {}}) {}

SequenceSave::SequenceSave(const llm::Context& context, std::span<const Token> tokens, const llm::AdapterSet& adapters,
                           kv::Snapshot begun)
    : snapshot_(std::move(begun)) {
  UMA_CHECK(!tokens.empty());
  snapshot_.identity = context.state_identity() + adapters.identity;
  snapshot_.tokens.assign(tokens.begin(), tokens.end());
}

// Where the next piece begins and ends.
std::pair<std::int32_t, std::int32_t> SequenceSave::next_piece(llm::Context& context, std::int32_t sequence) const {
  const auto length = static_cast<std::int32_t>(snapshot_.tokens.size());
  const std::int32_t begin = snapshot_.pieces.empty() ? 0 : snapshot_.pieces.back().end;
  if (!context.shape().knows_pieces()) return {begin, length};
  return {begin, piece_end(context, sequence, begin, piece_tokens(context.shape(), length), length)};
}

void SequenceSave::shorten(std::size_t count) {
  UMA_CHECK(count > 0 && tokens_saved() <= count && count <= snapshot_.tokens.size());
  snapshot_.tokens.resize(count);
}

std::size_t SequenceSave::next_bytes(llm::Context& context, std::int32_t sequence) const {
  if (!context.shape().can_truncate) return static_cast<std::size_t>(context.state_bytes(sequence));
  const auto [begin, end] = next_piece(context, sequence);
  return piece_bytes(context.shape(), end - begin);
}

Expected<std::size_t> SequenceSave::save_piece(llm::Context& context, std::int32_t sequence, kv::BytePool& pool) {
  const auto length = static_cast<std::int32_t>(snapshot_.tokens.size());
  const std::int32_t cached = context.sequence_length(sequence);
  UMA_CHECK(!is_complete() && (context.shape().knows_pieces() ? cached >= length : cached == length));
  const auto [begin, end] = next_piece(context, sequence);
  kv::SnapshotPiece& piece = snapshot_.pieces.emplace_back(begin, end, pool.take(next_bytes(context, sequence)));
  if (auto saved = context.save_state(sequence, begin, end, piece.bytes); !saved) return std::unexpected(saved.error());
  return piece.bytes.size();
}

kv::Snapshot SequenceSave::take(const kv::BytePool& pool) {
  UMA_CHECK(is_complete());
  if (snapshot_.room.bytes() < snapshot_.bytes()) pool.correct(snapshot_.room, snapshot_.bytes());
  return std::move(snapshot_);
}

ByteBudget::Share SequenceSave::give_up(kv::BytePool& pool) {
  ByteBudget::Share room = std::move(snapshot_.room);
  kv::recycle(std::move(snapshot_), pool);
  return room;
}

Expected<kv::Snapshot> SequenceSave::finish(llm::Context& context, std::int32_t sequence, kv::BytePool& pool) {
  while (!is_complete()) {
    if (auto saved = save_piece(context, sequence, pool); !saved) return std::unexpected(saved.error());
  }
  return take(pool);
}

Expected<kv::Snapshot> save_sequence(llm::Context& context, std::int32_t sequence, std::span<const Token> tokens,
                                     const llm::AdapterSet& adapters, kv::BytePool& pool, ByteBudget::Share reservation) {
  return SequenceSave(context, tokens, adapters, std::move(reservation)).finish(context, sequence, pool);
}

std::vector<std::int32_t> piece_ends(llm::Context& context, std::int32_t sequence, std::int32_t length) {
  if (!context.shape().knows_pieces()) return {length};
  std::vector<std::int32_t> ends;
  for (std::int32_t end = 0; end < length; ends.push_back(end)) {
    end = piece_end(context, sequence, end, piece_tokens(context.shape(), length), length);
  }
  return ends;
}

Expected<Unit> restore_piece(llm::Context& context, std::int32_t sequence, kv::SnapshotPiece& piece) {
  return context.load_state(sequence, piece.begin, piece.end, context.fit_state(piece.bytes));
}

Expected<Unit> restore_shared_piece(llm::Context& context, std::int32_t sequence, const llm::AdapterSet& adapters,
                                    const kv::Snapshot& snapshot, std::size_t piece, const kv::BytePool& pool) {
  if (piece == 0) {
    if (auto fits = kv::check_fits(snapshot, context.state_identity() + adapters.identity); !fits) return fits;
  }
  const kv::SnapshotPiece& next = snapshot.pieces[piece];
  auto loaded = context.load_state(sequence, next.begin, next.end, next.bytes);
  if (loaded || piece > 0) return loaded;
  // The snapshot may come from a context with another number of sequences. Other readers need it unchanged.
  const auto reservation = pool.reserve(next.bytes.size());
  if (!reservation) return fail(ErrorCode::limit_wait, "there is no free memory to convert a copy of the state");
  Bytes copy = next.bytes;
  return context.load_state(sequence, next.begin, next.end, context.fit_state(copy));
}

Expected<Unit> copy_sequence(llm::Context& context, std::int32_t from, std::int32_t to, std::span<const Token> tokens,
                             kv::BytePool& pool, ByteBudget::Share reservation) {
  auto snapshot = save_sequence(context, from, tokens, {}, pool, std::move(reservation));
  if (!snapshot) return std::unexpected(snapshot.error());
  auto restored = restore_sequence(context, to, {}, *snapshot);
  kv::recycle(std::move(*snapshot), pool);
  return restored;
}

Expected<Unit> restore_sequence(llm::Context& context, std::int32_t sequence, const llm::AdapterSet& adapters,
                                kv::Snapshot& snapshot) {
  if (auto verdict = kv::check_fits(snapshot, context.state_identity() + adapters.identity); !verdict) return verdict;
  for (kv::SnapshotPiece& piece : snapshot.pieces) {
    if (auto loaded = restore_piece(context, sequence, piece); !loaded) return loaded;
  }
  return Unit{};
}

}  // namespace uma::engine
