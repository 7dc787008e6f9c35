#include "kv/snapshot.h"

#include <format>

namespace uma::kv {

std::size_t Snapshot::bytes() const {
  std::size_t total = tokens.size() * sizeof(Token);
  for (const SnapshotPiece& piece : pieces) total += piece.bytes.capacity();
  return total;
}

SnapshotView::SnapshotView(const Snapshot& snapshot) : identity(snapshot.identity), tokens(snapshot.tokens) {
  pieces.reserve(snapshot.pieces.size());
  for (const SnapshotPiece& piece : snapshot.pieces) pieces.push_back({piece.begin, piece.end, piece.bytes});
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

RunningChecksum::RunningChecksum(std::string_view identity, std::span<const Token> tokens, std::size_t pieces_count) {
  // Every variable part includes its length, so that bytes cannot move between parts undetected.
  add_number(identity.size());
  add(std::as_bytes(std::span(identity)));
  add_number(tokens.size());
  add(std::as_bytes(tokens));
  add_number(pieces_count);
}

void RunningChecksum::begin_piece(std::int32_t begin, std::int32_t end, std::uint64_t bytes_count) {
  add(std::as_bytes(std::span(&begin, 1)));
  add(std::as_bytes(std::span(&end, 1)));
  add_number(bytes_count);
}

void RunningChecksum::add(std::span<const std::byte> bytes) {
  hash_.add(bytes);
}

void RunningChecksum::add_number(std::uint64_t number) {
  hash_.add(std::as_bytes(std::span(&number, 1)));
}

Checksum RunningChecksum::value() const {
  return hash_.value();
}

Checksum checksum_of(const SnapshotView& snapshot) {
  RunningChecksum checksum(snapshot.identity, snapshot.tokens, snapshot.pieces.size());
  for (const SnapshotView::Piece& piece : snapshot.pieces) {
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
