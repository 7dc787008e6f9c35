// Property: decode_session_file never crashes, and accepts nothing but what encode_session_file makes, byte for byte. Random
// bytes never have the right checksum, so each input is also tried as what lies between version and checksum.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "kv/session_file.h"

namespace {

using namespace uma;

void check(std::span<const std::byte> bytes) {
  const auto file = kv::decode_session_file(bytes);
  if (!file) {
    UMA_CHECK(file.error().code == ErrorCode::proto_field && !file.error().message.empty());
    return;
  }
  const kv::SessionRecord& record = file->record;
  for (const kv::Turn& turn : record.turns) {
    UMA_CHECK(turn.tokens_begin >= 0 && turn.reply_begin >= turn.tokens_begin);
    UMA_CHECK(static_cast<std::size_t>(turn.reply_begin) <= record.chain.size());
    UMA_CHECK(static_cast<std::size_t>(turn.messages_begin) <= record.messages.size());
  }
  UMA_CHECK(record.mode != SessionMode::chat || record.turns.empty() || record.messages.back().role == "assistant");
  UMA_CHECK(std::ranges::equal(kv::encode_session_file(*file), bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  check(input);
  constexpr std::size_t kHeadBytes = 12;
  Bytes bytes(kHeadBytes + size + sizeof(kv::Checksum));
  std::memcpy(bytes.data(), "umasessn", 8);
  std::memcpy(bytes.data() + 8, &kv::kSessionFileVersion, 4);
  std::ranges::copy(input, bytes.begin() + kHeadBytes);
  const kv::Checksum hash = kv::hash_of(std::span(bytes).first(kHeadBytes + size));
  std::memcpy(bytes.data() + kHeadBytes + size, &hash, sizeof hash);
  check(bytes);
  return 0;
}
