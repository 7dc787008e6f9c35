#include "kv/disk/session_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <format>
#include <limits>
#include <string_view>

#include "base/byte_reader.h"
#include "base/check.h"
#include "base/utf8.h"
#include "kv/catalog/record_check.h"

namespace uma::kv {
namespace {

constexpr std::array<char, 8> kSessionMagic = {'u', 'm', 'a', 's', 'e', 's', 's', 'n'};
constexpr std::size_t kLengthAt = kSessionMagic.size() + sizeof kSessionFileVersion;
constexpr std::size_t kSessionChecksumBytes = 16;
// Leaves numbers for future turns of the session.
constexpr std::int32_t kTurnsDroppedMax = kSessionCountMax / 2;

std::unexpected<Error> session_file_refused(std::string_view what) {
  return fail(ErrorCode::proto_field, std::format("the session file cannot be used: {}", what));
}

std::uint32_t as_u32(std::size_t size) {
  return static_cast<std::uint32_t>(size);
}

template <class Number>
void add_number(Bytes& out, Number number) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <class T>
void add_all(Bytes& out, std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Missing bytes read as zeros, and is_short() returns true from then on.
std::vector<Turn> take_turns(ByteReader& in, std::uint32_t count) {
  std::vector<Turn> turns;
  for (std::uint32_t i = 0; i < count && !in.is_short(); ++i) {
    const auto tokens_begin = in.take_number<std::int32_t>();
    const auto reply_begin = in.take_number<std::int32_t>();
    const auto messages_begin = in.take_number<std::int32_t>();
    turns.push_back({.tokens_begin = tokens_begin, .reply_begin = reply_begin, .messages_begin = messages_begin});
  }
  return turns;
}

std::vector<ChatMessage> take_messages(ByteReader& in, std::uint32_t count) {
  std::vector<ChatMessage> messages;
  for (std::uint32_t i = 0; i < count && !in.is_short(); ++i) {
    const auto role = in.take_number<std::uint32_t>();
    const auto content = in.take_number<std::uint32_t>();
    const auto extra = in.take_number<std::uint32_t>();
    // Braces guarantee the order of evaluation.
    messages.push_back(ChatMessage{in.take_text(role), in.take_text(content), in.take_text(extra)});
  }
  return messages;
}

}  // namespace

Bytes encode_session_file(const SessionFile& file) {
  const SessionRecord& record = file.record;
  Bytes out;
  add_all(out, std::span<const char>(kSessionMagic));
  add_number(out, kSessionFileVersion);
  add_number(out, std::uint32_t{0});  // The length, written once it is known.
  add_number(out, static_cast<std::uint32_t>(record.mode));
  add_number(out, file.vocabulary.low);
  add_number(out, file.vocabulary.high);
  add_number(out, record.created_s);
  for (const std::size_t size : {record.name.size(), record.model.size(), file.text.size(), record.turns.size(),
                                 record.chain.size(), record.pending.size(), record.messages.size(),
                                 record.pending_messages.size(), record.tools.size(), record.template_arguments.size()}) {
    add_number(out, as_u32(size));
  }
  add_number(out, static_cast<std::uint32_t>(record.on_full));
  add_number(out, record.n_keep);
  add_number(out, record.turns_dropped);
  add_number(out, as_u32(record.metadata.size()));
  for (const std::string* text :
       {&record.name, &record.model, &file.text, &record.tools, &record.template_arguments, &record.metadata}) {
    add_all(out, std::span<const char>(*text));
  }
  for (const Turn& turn : record.turns) {
    for (const std::int32_t offset : {turn.tokens_begin, turn.reply_begin, turn.messages_begin}) add_number(out, offset);
  }
  for (const std::vector<Token>* tokens : {&record.chain, &record.pending}) add_all(out, std::span<const Token>(*tokens));
  for (const std::vector<ChatMessage>* messages : {&record.messages, &record.pending_messages}) {
    for (const ChatMessage& message : *messages) {
      add_number(out, as_u32(message.role.size()));
      add_number(out, as_u32(message.content.size()));
      add_number(out, as_u32(message.extra.size()));
      for (const std::string* text : {&message.role, &message.content, &message.extra})
        add_all(out, std::span<const char>(*text));
    }
  }
  UMA_CHECK(out.size() + kSessionChecksumBytes <= std::numeric_limits<std::uint32_t>::max());
  const std::uint32_t length = as_u32(out.size() + kSessionChecksumBytes);
  std::memcpy(out.data() + kLengthAt, &length, sizeof length);
  const Checksum hash = hash_of(out);
  add_number(out, hash.low);
  add_number(out, hash.high);
  return out;
}

std::size_t conversation_bytes(std::span<const std::byte, kSessionPrefixBytes> prefix) {
  return ByteReader(prefix.subspan<kLengthAt>()).take_number<std::uint32_t>();
}

Expected<SessionFile> decode_session_file(std::span<const std::byte> bytes) {
  if (bytes.size() < kSessionMagic.size() ||
      !std::ranges::equal(bytes.first(kSessionMagic.size()), std::as_bytes(std::span(kSessionMagic)))) {
    return session_file_refused("it does not begin with a session file's mark");
  }
  ByteReader in(bytes.subspan(kSessionMagic.size()));
  const auto version = in.take_number<std::uint32_t>();
  if (!in.is_short() && (version == 0 || version > kSessionFileVersion)) {
    return session_file_refused(
        std::format("its format is version {}, but this umad supports versions 1 to {}", version, kSessionFileVersion));
  }
  const auto length = in.take_number<std::uint32_t>();
  if (in.is_short() || bytes.size() < kLengthAt + sizeof length + kSessionChecksumBytes)
    return session_file_refused("it is truncated");
  ByteReader end(bytes.last(kSessionChecksumBytes));
  const Checksum stored{.low = end.take_number<std::uint64_t>(), .high = end.take_number<std::uint64_t>()};
  const auto content = bytes.first(bytes.size() - kSessionChecksumBytes);
  if (length != bytes.size() || stored != hash_of(content)) {
    return session_file_refused("it is damaged or truncated, its checksum is wrong");
  }

  in = ByteReader(content.subspan(kLengthAt + sizeof length));
  SessionFile file;
  SessionRecord& record = file.record;
  const auto mode = in.take_number<std::uint32_t>();
  file.vocabulary.low = in.take_number<std::uint64_t>();
  file.vocabulary.high = in.take_number<std::uint64_t>();
  record.created_s = in.take_number<std::int64_t>();
  std::array<std::uint32_t, 10> counts{};
  for (std::uint32_t& count : counts) count = in.take_number<std::uint32_t>();
  const auto [name, model, text, turns, tokens, pending, messages, pending_messages, tools, template_arguments] = counts;
  const auto on_full = in.take_number<std::uint32_t>();
  record.n_keep = in.take_number<std::int32_t>();
  record.turns_dropped = in.take_number<std::int32_t>();
  const auto metadata = version >= 2 ? in.take_number<std::uint32_t>() : 0;
  record.name = in.take_text(name);
  record.model = in.take_text(model);
  file.text = in.take_text(text);
  record.tools = in.take_text(tools);
  record.template_arguments = in.take_text(template_arguments);
  record.metadata = in.take_text(metadata);
  record.turns = take_turns(in, turns);
  record.chain = in.take_all<Token>(tokens);
  record.pending = in.take_all<Token>(pending);
  record.messages = take_messages(in, messages);
  record.pending_messages = take_messages(in, pending_messages);
  if (in.is_short() || !in.is_at_end()) return session_file_refused("its lengths are inconsistent");

  if (mode > kModeMax) return session_file_refused("its mode or date is invalid");
  if (on_full > kOnFullMax || record.turns_dropped > kTurnsDroppedMax)
    return session_file_refused("its on_full setting is invalid");
  record.mode = static_cast<SessionMode>(mode);
  record.on_full = static_cast<OnFull>(on_full);
  if (const std::string_view wrong = impossible_part(record); !wrong.empty()) return session_file_refused(wrong);
  if (!is_utf8(file.text)) return session_file_refused("a text in it is not UTF-8, or a role is unknown");
  if (record.mode == SessionMode::chat && !file.text.empty()) {
    return session_file_refused("its contents do not fit its mode");
  }
  return file;
}

}  // namespace uma::kv
