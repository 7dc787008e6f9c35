// Properties: decode_session_file never crashes, and accepts only the exact output of encode_session_file. Random bytes never
// have the right checksum, so each input is also tested as the part between length and checksum. read_state never crashes on
// the bytes behind a conversation, and accepts only the exact output of state_parts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "kv/disk/portable_state.h"
#include "kv/disk/session_file.h"
#include "kv/disk/state_file.h"

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
  const Bytes again = kv::encode_session_file(*file);
  std::uint32_t version = 0;
  std::memcpy(&version, bytes.data() + 8, sizeof version);
  UMA_CHECK(version < kv::kSessionFileVersion || std::ranges::equal(again, bytes));
  UMA_CHECK(kv::decode_session_file(again)->record == record);
}

// The input is a head padded to blocks, which gets a valid checksum, followed by the payload.
void check_state(std::span<const std::byte> input) {
  Bytes bytes(input.begin(), input.end());
  if (const auto head_bytes = kv::state_head_bytes(bytes); head_bytes && *head_bytes <= bytes.size()) {
    const kv::Checksum hash = kv::hash_of(std::span(bytes).first(*head_bytes - sizeof(kv::Checksum)));
    std::memcpy(bytes.data() + *head_bytes - sizeof hash, &hash, sizeof hash);
  }
  std::string identity;
  std::vector<Token> tokens;
  if (const auto head_bytes = kv::state_head_bytes(bytes); head_bytes && *head_bytes <= bytes.size()) {
    if (auto head = kv::decode_state_head(std::span(bytes).first(*head_bytes))) {
      identity = std::move(head->identity);
      tokens = std::move(head->tokens);
    }
  }
  const PortableFile file{.parts = {bytes}, .owner = nullptr};
  PortableReader in(file);
  kv::BytePool pool(0);
  const auto make_room = [&pool](std::uint64_t bytes) { return pool.reserve(bytes); };
  const auto image = kv::read_state(in, identity, true, tokens, pool, make_room);
  if (!image) {
    UMA_CHECK(!image.error().message.empty());
    return;
  }
  Bytes again;
  for (const auto part : kv::state_parts(kv::portable_head(*image), *image))
    again.insert(again.end(), part.begin(), part.end());
  UMA_CHECK(std::ranges::equal(again, bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  check(input);
  check_state(input);
  constexpr std::size_t kHeadBytes = 16;
  Bytes bytes(kHeadBytes + size + sizeof(kv::Checksum));
  std::memcpy(bytes.data(), "umasessn", 8);
  std::memcpy(bytes.data() + 8, &kv::kSessionFileVersion, 4);
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(bytes.data() + 12, &length, sizeof length);
  std::ranges::copy(input, bytes.begin() + kHeadBytes);
  const kv::Checksum hash = kv::hash_of(std::span(bytes).first(kHeadBytes + size));
  std::memcpy(bytes.data() + kHeadBytes + size, &hash, sizeof hash);
  check(bytes);
  return 0;
}
