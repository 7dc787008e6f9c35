#include "kv/snapshot.h"

#include <format>

#include <xxhash.h>

namespace uma::kv {

std::size_t Snapshot::bytes() const {
  std::size_t total = tokens.size() * sizeof(Token);
  for (const SnapshotPiece& piece : pieces) total += piece.bytes.capacity();
  return total;
}

void recycle(Snapshot snapshot, BytePool& pool) {
  for (SnapshotPiece& piece : snapshot.pieces) pool.give(std::move(piece.bytes));
}

SnapshotPtr share_snapshot(Snapshot snapshot, BytePool& pool) {
  pool.correct(snapshot.room, snapshot.bytes());
  return {new Snapshot(std::move(snapshot)), [&pool](Snapshot* shared) {
            recycle(std::move(*shared), pool);
            delete shared;
          }};
}

RunningChecksum::RunningChecksum(std::string_view identity, std::span<const Token> tokens, std::size_t pieces_count)
    : state_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {
  XXH3_128bits_reset(state_.get());
  // Every variable part includes its length, so that bytes cannot move between parts undetected.
  add_number(identity.size());
  add(std::as_bytes(std::span(identity)));
  add_number(tokens.size());
  add(std::as_bytes(tokens));
  add_number(pieces_count);
}

void RunningChecksum::begin_piece(std::int32_t begin, std::int32_t end, std::uint64_t bytes_count) {
  XXH3_128bits_update(state_.get(), &begin, sizeof begin);
  XXH3_128bits_update(state_.get(), &end, sizeof end);
  add_number(bytes_count);
}

void RunningChecksum::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

void RunningChecksum::add_number(std::uint64_t number) {
  XXH3_128bits_update(state_.get(), &number, sizeof number);
}

Checksum RunningChecksum::value() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(state_.get());
  return {digest.low64, digest.high64};
}

Checksum checksum_of(const Snapshot& snapshot) {
  RunningChecksum checksum(snapshot.identity, snapshot.tokens, snapshot.pieces.size());
  for (const SnapshotPiece& piece : snapshot.pieces) {
    checksum.begin_piece(piece.begin, piece.end, piece.bytes.size());
    checksum.add(piece.bytes);
  }
  return checksum.value();
}

Expected<Unit> check_fits(const Snapshot& snapshot, const std::string& identity) {
  if (snapshot.identity != identity) {
    return fail(ErrorCode::runtime_decode,
                std::format("the stored state is for \"{}\", but this context is \"{}\"", snapshot.identity, identity));
  }
  std::int32_t covered = 0;
  for (const SnapshotPiece& piece : snapshot.pieces) {
    if (piece.begin != covered || piece.end <= piece.begin) return fail(ErrorCode::runtime_decode, "the stored state has gaps");
    covered = piece.end;
  }
  if (static_cast<std::size_t>(covered) != snapshot.tokens.size()) {
    return fail(ErrorCode::runtime_decode,
                std::format("the stored state covers only {} of {} tokens", covered, snapshot.tokens.size()));
  }
  return Unit{};
}

}  // namespace uma::kv
