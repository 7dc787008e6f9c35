#include "kv/disk/session_file.h"

#include <array>
#include <cstring>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::kv {
namespace {

SessionFile chat_file() {
  SessionFile file;
  file.vocabulary = {.low = 1, .high = 2};
  SessionRecord& record = file.record;
  record.name = "tale";
  record.model = "tiny";
  record.mode = SessionMode::chat;
  record.created_s = 1'700'000'000;
  record.chain = {1, 2, 3, 4, 5, 6, 7, 8};
  record.pending = {9, 10};
  record.messages = {{"system", ""},
                     {"user", "caf\xc3\xa9"},
                     {"assistant", std::string("nul\0 inside", 11)},
                     {"user", "b"},
                     {"assistant", "c", R"({"reasoning_content":"hm"})"}};
  record.tools = "[]";
  record.template_arguments = R"({"enable_thinking":true})";
  record.metadata = R"({"title":"A tale"})";
  record.pending_messages = {{"user", "d"}};
  record.turns = {{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0},
                  {.tokens_begin = 4, .reply_begin = 8, .messages_begin = 3}};
  return file;
}

SessionFile text_file() {
  SessionFile file;
  file.record.mode = SessionMode::text;
  file.record.chain = {1, 2, 3};
  file.record.turns = {{.tokens_begin = 0, .reply_begin = 1, .messages_begin = 0}};
  file.text = "once upon";
  return file;
}

std::string refusal(std::span<const std::byte> bytes) {
  const auto decoded = decode_session_file(bytes);
  if (decoded) return "";
  EXPECT_EQ(decoded.error().code, ErrorCode::proto_field);
  return decoded.error().message;
}

// With a right checksum again.
void seal_session(Bytes& bytes) {
  const Checksum hash = hash_of(std::span(bytes).first(bytes.size() - 16));
  std::memcpy(bytes.data() + bytes.size() - 16, &hash, 16);
}

// The file as version 1 had it, which had no metadata.
Bytes of_first_version(const SessionFile& file) {
  SessionFile without = file;
  without.record.metadata.clear();
  Bytes bytes = encode_session_file(without);
  bytes.erase(bytes.begin() + 96, bytes.begin() + 100);
  const std::array<std::uint32_t, 2> head{1, static_cast<std::uint32_t>(bytes.size())};
  std::memcpy(bytes.data() + 8, head.data(), sizeof head);
  seal_session(bytes);
  return bytes;
}

// Its first two turns were dropped, but not the system prompt of two tokens.
SessionFile cut_file() {
  SessionFile file = chat_file();
  SessionRecord& record = file.record;
  record.on_full = OnFull::shift;
  record.n_keep = 2;
  record.turns_dropped = 2;
  record.turns = {{.tokens_begin = 2, .reply_begin = 3, .messages_begin = 1},
                  {.tokens_begin = 4, .reply_begin = 8, .messages_begin = 3}};
  return file;
}

TEST(SessionFile, WhatWasDroppedFitsWhatIsKept) {
  const auto refused_with = [](auto change) {
    SessionFile file = cut_file();
    change(file.record);
    return !refusal(encode_session_file(file)).empty();
  };
  EXPECT_FALSE(refused_with([](SessionRecord&) {}));
  EXPECT_TRUE(refused_with([](SessionRecord& record) { record.on_full = OnFull::error; }));
  EXPECT_TRUE(refused_with([](SessionRecord& record) { record.n_keep = 1; }));
  EXPECT_TRUE(refused_with([](SessionRecord& record) { record.n_keep = -1; }));
  const auto drop_all = [](SessionRecord& record) {
    record.turns.clear();
    record.chain.resize(2);
    record.messages.resize(1);
  };
  EXPECT_FALSE(refused_with(drop_all)) << "while new input waits";
  EXPECT_TRUE(refused_with([&](SessionRecord& record) {
    drop_all(record);
    record.chain.resize(3);
  }));
  EXPECT_TRUE(refused_with([&](SessionRecord& record) {
    drop_all(record);
    record.mode = SessionMode::text;
  })) << "a text has no messages";
  EXPECT_TRUE(refused_with([](SessionRecord& record) { record.turns_dropped = -1; }));
  EXPECT_TRUE(refused_with([](SessionRecord& record) { record.turns_dropped = 0; }));
  EXPECT_TRUE(refused_with([](SessionRecord& record) { record.turns.front().messages_begin = -1; }));
  EXPECT_TRUE(refused_with([](SessionRecord& record) { record.on_full = static_cast<OnFull>(2); }));
  EXPECT_TRUE(refused_with([](SessionRecord& record) { record.turns_dropped = 2'147'483'647; }));
  EXPECT_TRUE(refused_with([](SessionRecord& record) { record.turns_dropped = 500'000'001; })) << "as many are to come";
  EXPECT_FALSE(refused_with([](SessionRecord& record) { record.turns_dropped = 500'000'000; }));
}

// Its sum with two does not fit 32 bits: once, any end of the turn passed, and the end is an index.
TEST(SessionFile, OffsetsNearTheEndOfTheirRangeAreRefused) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::int32_t first : {kMost, kMost - 1, kMost - 2}) {
    for (const std::int32_t second : {-2'000'000'000, -1, 0, 3, 5, kMost}) {
      SessionFile file = cut_file();
      file.record.turns[0].messages_begin = first;
      file.record.turns[1].messages_begin = second;
      EXPECT_EQ(refusal(encode_session_file(file)),
                "the session file cannot be used: its turns do not fit its tokens or messages")
          << first << " " << second;
    }
    SessionFile file = cut_file();
    file.record.turns = {{.tokens_begin = 2, .reply_begin = 3, .messages_begin = first}};
    EXPECT_EQ(refusal(encode_session_file(file)),
              "the session file cannot be used: its turns do not fit its tokens or messages");
  }
}

TEST(SessionFile, GivesBackWhatWasWritten) {
  SessionFile automatic;
  for (const SessionFile& file : {chat_file(), text_file(), cut_file(), automatic}) {
    const Bytes bytes = encode_session_file(file);
    const auto decoded = decode_session_file(bytes);
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(decoded->record, file.record);
    EXPECT_EQ(decoded->vocabulary, file.vocabulary);
    EXPECT_EQ(decoded->text, file.text);
  }
}

TEST(SessionFile, FilesOfTheFirstVersionAreRead) {
  for (SessionFile file : {chat_file(), text_file(), cut_file()}) {
    const auto decoded = decode_session_file(of_first_version(file));
    ASSERT_TRUE(decoded) << decoded.error().message;
    file.record.metadata.clear();
    EXPECT_EQ(decoded->record, file.record);
    EXPECT_EQ(decoded->text, file.text);
  }
}

TEST(SessionFile, ItsBytesAreThoseOfTheDescription) {
  const Bytes bytes = encode_session_file(chat_file());
  const auto number = [&](std::size_t at) {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  EXPECT_EQ(std::memcmp(bytes.data(), "umasessn", 8), 0);
  EXPECT_EQ(number(8), 2u);
  EXPECT_EQ(number(12), bytes.size());
  EXPECT_EQ(conversation_bytes(std::span(bytes).first<kSessionPrefixBytes>()), bytes.size());
  EXPECT_EQ(number(16), 2u);
  EXPECT_EQ(number(20), 1u);
  EXPECT_EQ(number(28), 2u);
  EXPECT_EQ(number(36), 1'700'000'000u);
  for (std::size_t i = 0; const std::uint32_t count : {4u, 4u, 0u, 2u, 8u, 2u, 5u, 1u, 2u, 24u}) {
    EXPECT_EQ(number(44 + 4 * i++), count);
  }
  EXPECT_EQ(number(96), 18u);
  EXPECT_EQ(std::memcmp(bytes.data() + 100, R"(taletiny[]{"enable_thinking":true}{"title":"A tale"})", 52), 0);
  EXPECT_EQ(number(152 + 12), 4u) << "where the second turn begins";
  const Bytes cut = encode_session_file(cut_file());
  for (std::size_t i = 0; const std::uint32_t value : {1u, 2u, 2u}) {
    EXPECT_EQ(std::memcmp(cut.data() + 84 + 4 * i++, &value, sizeof value), 0);
  }
}

TEST(SessionFile, EveryChangedOrMissingByteIsNoticed) {
  const Bytes whole = encode_session_file(chat_file());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    EXPECT_NE(refusal(std::span(whole).first(at)), "") << at;
    Bytes changed = whole;
    changed[at] ^= std::byte{4};
    EXPECT_NE(refusal(changed), "") << at;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_NE(refusal(longer), "");
}

TEST(SessionFile, SaysWhatIsWrong) {
  Bytes bytes = encode_session_file(chat_file());
  EXPECT_EQ(refusal({}), "the session file cannot be used: it does not begin with a session file's mark");
  EXPECT_EQ(refusal(std::span(bytes).first(20)), "the session file cannot be used: it is truncated");
  EXPECT_EQ(refusal(std::span(bytes).first(60)),
            "the session file cannot be used: it is damaged or truncated, its checksum is wrong");
  bytes[8] = std::byte{9};
  seal_session(bytes);
  EXPECT_EQ(refusal(bytes), "the session file cannot be used: its format is version 9, but this umad supports versions 1 to 2");
}

// A checksum keeps out no one who means harm.
TEST(SessionFile, RefusesForgedContent) {
  using Forge = std::function<void(SessionRecord&)>;
  const auto forged = [](const Forge& forge) {
    SessionFile file = chat_file();
    forge(file.record);
    return refusal(encode_session_file(file));
  };
  EXPECT_EQ(forged([](SessionRecord&) {}), "");
  for (const std::string_view metadata : {R"({"title":1})", "{\"title\":\"\xff\"}", "[]"}) {
    EXPECT_EQ(forged([&](SessionRecord& record) { record.metadata = metadata; }),
              "the session file cannot be used: its metadata is not an object of texts");
  }
  for (const Forge& forge : std::initializer_list<Forge>{
           [](SessionRecord& record) { record.turns[0].tokens_begin = 1; },
           [](SessionRecord& record) { record.turns[0].reply_begin = -1; },
           [](SessionRecord& record) { record.turns[0].reply_begin = 5; },
           [](SessionRecord& record) { record.turns[1].tokens_begin = 9; },
           [](SessionRecord& record) { record.turns[1].reply_begin = 9; },
           [](SessionRecord& record) { record.turns[1].tokens_begin = -2'000'000'000; },
           [](SessionRecord& record) { record.turns[1].messages_begin = 2'147'483'647; },
           [](SessionRecord& record) { record.turns[1].messages_begin = -2'147'483'647 - 1; },
           [](SessionRecord& record) { record.turns[1].messages_begin = 4; },
           [](SessionRecord& record) { record.turns[1].messages_begin = 2; },
           [](SessionRecord& record) { record.turns[0].messages_begin = 1; },
           [](SessionRecord& record) { record.turns.clear(); },
           [](SessionRecord& record) { record.messages.clear(); },
           [](SessionRecord& record) { record.messages.back().role = "user"; },
       }) {
    EXPECT_EQ(forged(forge), "the session file cannot be used: its turns do not fit its tokens or messages");
  }
  EXPECT_EQ(forged([](SessionRecord& record) { record.chain[3] = -1; }),
            "the session file cannot be used: a token is negative");
  EXPECT_EQ(forged([](SessionRecord& record) { record.pending[0] = -1; }),
            "the session file cannot be used: a token is negative");
  for (const Forge& forge :
       std::initializer_list<Forge>{[](SessionRecord& record) { record.messages[0].role = "root"; },
                                    [](SessionRecord& record) { record.messages[1].content = "\xff"; },
                                    [](SessionRecord& record) { record.pending_messages[0].content = "\xc3"; }}) {
    EXPECT_EQ(forged(forge), "the session file cannot be used: a text in it is not UTF-8, or a role is unknown");
  }
  for (const Forge& forge : std::initializer_list<Forge>{[](SessionRecord& record) { record.name = std::string("a\0b", 3); },
                                                         [](SessionRecord& record) { record.name = std::string(129, 'x'); },
                                                         [](SessionRecord& record) { record.model = "\xff"; }}) {
    EXPECT_EQ(forged(forge), "the session file cannot be used: its name or model name is invalid");
  }
  for (const Forge& forge : std::initializer_list<Forge>{[](SessionRecord& record) { record.mode = SessionMode::automatic; },
                                                         [](SessionRecord& record) { record.mode = SessionMode::text; },
                                                         [](SessionRecord& record) { record.pending_messages.clear(); }}) {
    EXPECT_EQ(forged(forge), "the session file cannot be used: its contents do not fit its mode");
  }
  EXPECT_EQ(forged([](SessionRecord& record) { record.mode = static_cast<SessionMode>(3); }),
            "the session file cannot be used: its mode or date is invalid");
}

TEST(SessionFile, LengthsThatAreLiesReadNothingBeyondTheFile) {
  const Bytes whole = encode_session_file(chat_file());
  Random random(1);
  for (std::size_t at = 12; at < 96; ++at) {
    for (int round = 0; round < 20; ++round) {
      Bytes changed = whole;
      changed[at] = static_cast<std::byte>(random.next_below(256));
      seal_session(changed);
      const auto decoded = decode_session_file(changed);
      EXPECT_TRUE(!decoded || encode_session_file(*decoded) == changed);
    }
  }
  Bytes huge = whole;
  for (std::size_t at = 44; at < 84; ++at) huge[at] = std::byte{0xff};
  seal_session(huge);
  EXPECT_EQ(refusal(huge), "the session file cannot be used: its lengths are inconsistent");
}

}  // namespace
}  // namespace uma::kv
