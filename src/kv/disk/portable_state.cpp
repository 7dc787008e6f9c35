#include "kv/disk/portable_state.h"

#include <algorithm>
#include <array>
#include <format>
#include <utility>

#include "kv/disk/state_file.h"
#include "kv/prefix_index.h"

namespace uma::kv {
namespace {

std::unexpected<Error> state_refused(std::string_view what) {
  return fail(ErrorCode::proto_field, std::format("the session file cannot be used: its KV: {}", what));
}

std::unexpected<Error> useless(std::string_view what) {
  return fail(ErrorCode::runtime_decode, std::format("the KV of the session file is left out: {}", what));
}

Expected<StateHead> read_head(PortableReader& file) {
  if (file.left() < kStatePrefixBytes) return state_refused("it is truncated");
  const std::size_t file_bytes = file.left();
  Bytes bytes(kStatePrefixBytes);
  file.read(bytes);
  if (is_older_state(bytes)) return useless("it was made by an older umad, whose states cannot be trusted");
  const auto head_bytes = state_head_bytes(bytes);
  if (!head_bytes) return state_refused(head_bytes.error().message);
  if (*head_bytes > file_bytes) return state_refused("it is truncated");
  bytes.resize(*head_bytes);
  file.read(std::span(bytes).subspan(kStatePrefixBytes));
  auto head = decode_state_head(bytes);
  if (!head) return state_refused(head.error().message);
  if (head->file_bytes != file_bytes) return state_refused(std::format("it has {} of {} bytes", file_bytes, head->file_bytes));
  if (head->owner != StateOwner()) return state_refused("it names an owner");
  if (head->has_parts()) return state_refused("a part of it is elsewhere");
  return head;
}

}  // namespace

Bytes portable_head(const Snapshot& snapshot) {
  return encode_state_head(StateOwner(), snapshot, checksum_of(snapshot));
}

std::vector<std::span<const std::byte>> state_parts(std::span<const std::byte> head, const Snapshot& snapshot) {
  std::vector<std::span<const std::byte>> parts = {head};
  for (const SnapshotPiece& piece : snapshot.pieces) {
    parts.emplace_back(piece.bytes);
    parts.push_back(std::span(kBlockOfZeros).first(in_blocks(piece.bytes.size()) - piece.bytes.size()));
  }
  std::erase_if(parts, [](const auto part) { return part.empty(); });
  return parts;
}

Expected<Snapshot> read_state(PortableReader& file, const std::string& identity, bool knows_pieces,
                              std::span<const Token> chain, BytePool& pool, const MakeRoom& make_room) {
  auto head = read_head(file);
  if (!head) return std::unexpected(std::move(head.error()));
  if (head->identity != identity)
    return useless(std::format("it is for \"{}\", but this context is \"{}\"", head->identity, identity));
  if (head->tokens.empty() || common_prefix(head->tokens, chain) != head->tokens.size()) {
    return useless("it belongs to other tokens");
  }
  if (head->pieces.size() > 1 && !knows_pieces) return useless("it has several pieces, which this context does not support");
  std::uint64_t bytes = head->tokens.size() * sizeof(Token);
  for (const StatePieceEntry& entry : head->pieces) bytes += BytePool::room_for(in_blocks(entry.bytes) + kPieceSpareBytes);
  auto room = make_room(bytes);
  if (!room) return fail(ErrorCode::limit_wait, "the KV of the session file is left out: there is not enough memory for it");
  Snapshot snapshot{
      .identity = std::move(head->identity), .tokens = std::move(head->tokens), .room = std::move(*room), .pieces = {}};
  RunningChecksum checksum(snapshot.identity, snapshot.tokens, head->pieces.size());
  std::int32_t begin = 0;
  for (const StatePieceEntry& entry : head->pieces) {
    SnapshotPiece& piece = snapshot.pieces.emplace_back(begin, entry.end, pool.take(in_blocks(entry.bytes) + kPieceSpareBytes));
    piece.bytes.resize(in_blocks(entry.bytes));
    file.read(piece.bytes);
    const auto padding = std::span(piece.bytes).subspan(entry.bytes);
    if (std::ranges::any_of(padding, [](std::byte byte) { return byte != std::byte{0}; })) {
      return state_refused("damaged: there are bytes between its pieces");
    }
    piece.bytes.resize(entry.bytes);
    checksum.begin_piece(piece.begin, piece.end, entry.bytes);
    checksum.add(piece.bytes);
    begin = entry.end;
  }
  if (checksum.value() != head->checksum) return state_refused("damaged: the checksum of the payload is wrong");
  return snapshot;
}

}  // namespace uma::kv
