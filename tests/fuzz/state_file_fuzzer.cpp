// Property: decode_state_head never crashes, and accepts only the exact output of encode_state_head. Random bytes never have
// the right checksum, so each input is also tested as a head without padding and checksum, which are added together with
// version and length.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <xxhash.h>

#include "base/check.h"
#include "kv/disk/state_file.h"

namespace {

using namespace uma;

void check(std::span<const std::byte> bytes) {
  const auto head = kv::decode_state_head(bytes);
  if (!head) {
    UMA_CHECK(head.error().code == ErrorCode::runtime_decode && !head.error().message.empty());
    return;
  }
  kv::Snapshot snapshot{.identity = head->identity, .tokens = head->tokens, .pieces = {}};
  if (head->file_bytes > 1 << 20) return;  // A valid head, but too large for this program.
  std::uint64_t file_bytes = bytes.size();
  std::int32_t begin = 0;
  for (const kv::StatePieceEntry& piece : head->pieces) {
    snapshot.pieces.push_back({begin, piece.end, Bytes(piece.bytes)});
    file_bytes += kv::in_blocks(piece.bytes);
    begin = piece.end;
  }
  UMA_CHECK(file_bytes == head->file_bytes);
  UMA_CHECK(std::ranges::equal(kv::encode_state_head(head->owner, snapshot, head->checksum), bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(size);
  std::ranges::copy(std::as_bytes(std::span(data, size)), bytes.begin());
  check(bytes);
  bytes.resize(std::max(kv::in_blocks(size + 16), std::uint64_t{kv::kStateBlockBytes}), std::byte{0});
  std::memcpy(bytes.data(), "umastate", 8);
  std::memcpy(bytes.data() + 8, &kv::kStateFileVersion, 4);
  const auto head_bytes = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(bytes.data() + 12, &head_bytes, 4);
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size() - 16);
  std::memcpy(bytes.data() + bytes.size() - 16, &hash.low64, 8);
  std::memcpy(bytes.data() + bytes.size() - 8, &hash.high64, 8);
  check(bytes);
  return 0;
}
