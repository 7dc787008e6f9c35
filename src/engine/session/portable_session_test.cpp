#include "engine/session/portable_session.h"

#include <gtest/gtest.h>

#include "engine/session/record_input.h"
#include "kv/catalog/record_check.h"
#include "kv/disk/session_file.h"
#include "testing/fake_model.h"

namespace uma::engine {
namespace {

using testing::FakeModel;

constexpr std::size_t kTextMax = 1'000;

// The chat format of the model, which outlives it.
chat::ChatFormat format_of(const FakeModel& model) {
  return chat::ChatFormat(std::shared_ptr<const llm::Model>(std::shared_ptr<const llm::Model>(), &model));
}

// The record after a finished turn.
kv::SessionRecord with_reply(const FakeModel& model, const kv::SessionRecord& record, const std::string& input,
                             const std::string& reply) {
  kv::SessionRecord next = append_to_record(format_of(model), record, {.text = input, .messages = {}}).value();
  const auto begin = static_cast<std::int32_t>(next.chain.size());
  next.turns.push_back({.tokens_begin = begin,
                        .reply_begin = begin + static_cast<std::int32_t>(next.pending.size()),
                        .messages_begin = static_cast<std::int32_t>(next.messages.size())});
  next.chain.insert(next.chain.end(), next.pending.begin(), next.pending.end());
  next.pending.clear();
  for (const char c : reply) next.chain.push_back(static_cast<unsigned char>(c));
  if (next.mode == SessionMode::chat) {
    next.messages.insert(next.messages.end(), next.pending_messages.begin(), next.pending_messages.end());
    next.pending_messages.clear();
    next.messages.push_back({"assistant", reply});
  }
  return next;
}

kv::SessionRecord conversation(const FakeModel& model, SessionMode mode) {
  kv::SessionRecord record;
  record.name = "tale";
  record.model = "fake";
  record.mode = mode;
  if (mode == SessionMode::chat) record.pending_messages = {{"system", "be brief"}};
  record = with_reply(model, record, "one", "two");
  record = with_reply(model, record, "three", "four");
  return append_to_record(format_of(model), record, {.text = "five", .messages = {}}).value();
}

// The file as a model with another vocabulary would have written it.
Bytes of_another_vocabulary(const Bytes& file) {
  kv::SessionFile changed = kv::decode_session_file(file).value();
  changed.vocabulary.low ^= 1;
  for (Token& token : changed.record.chain) token += 100'000;
  return kv::encode_session_file(changed);
}

TEST(PortableSession, TheSameVocabularyKeepsEveryToken) {
  for (const bool has_template : {false, true}) {
    for (const SessionMode mode : {SessionMode::text, SessionMode::chat}) {
      const FakeModel model({.has_chat_template = has_template});
      const kv::SessionRecord record = conversation(model, mode);
      const auto imported = import_record(format_of(model), file_of(export_record(model, record)), 0);
      ASSERT_TRUE(imported) << imported.error().message;
      EXPECT_TRUE(imported->are_tokens_kept);
      EXPECT_EQ(imported->record, record);
    }
  }
}

// The other fields of messages are written into responses unchanged, so they are checked.
TEST(PortableSession, WhatMessagesHaveBesideIsWhatARequestMayHave) {
  const FakeModel model({.has_chat_template = true});
  const auto imported_with = [&](const std::string& extra, const std::string& tools = "", const std::string& arguments = "") {
    kv::SessionRecord record = conversation(model, SessionMode::chat);
    record.messages.back().extra = extra;
    record.tools = tools;
    record.template_arguments = arguments;
    return import_record(format_of(model), file_of(export_record(model, record)), 0);
  };
  const std::string call = R"({"id":"1","type":"function","function":{"name":"f","arguments":"{}"}})";
  const auto kept = imported_with(R"({ "tool_calls": [)" + call + R"(], "reasoning_content": "hm", "other": 1 })",
                                  R"([{"type":"function","function":{"name":"f"}}])", R"({"enable_thinking":false})");
  ASSERT_TRUE(kept) << kept.error().message;
  EXPECT_EQ(kept->record.messages.back().extra, R"({"reasoning_content":"hm","tool_calls":[)" + call + "]}");
  EXPECT_EQ(kept->record.template_arguments, R"({"enable_thinking":false})");
  for (const char* extra : {"{", "[]", "1", "{}}", R"({"tool_calls":{}})", R"({"tool_calls":[1]})"}) {
    const auto refused = imported_with(extra);
    ASSERT_FALSE(refused) << extra;
    EXPECT_EQ(refused.error().code, ErrorCode::proto_field);
  }
  EXPECT_FALSE(imported_with("", "[1]"));
  EXPECT_FALSE(imported_with("", "", R"({"messages":[]})"));
  EXPECT_FALSE(imported_with("", "", "["));
}

TEST(PortableSession, AnotherTemplateIsAnotherVocabulary) {
  const FakeModel model({.has_chat_template = true});
  const FakeModel other({.has_chat_template = false});
  EXPECT_NE(vocabulary_of(model), vocabulary_of(other));
  EXPECT_EQ(vocabulary_of(model), vocabulary_of(FakeModel({.cells = 99, .has_chat_template = true})));
}

TEST(PortableSession, AChatInOtherTokensIsTheSameConversationInOneTurn) {
  const FakeModel model({.has_chat_template = true});
  const kv::SessionRecord record = conversation(model, SessionMode::chat);
  const auto imported = import_record(format_of(model), file_of(of_another_vocabulary(export_record(model, record))), kTextMax);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_FALSE(imported->are_tokens_kept);
  const kv::SessionRecord& made = imported->record;
  EXPECT_EQ(made.messages, record.messages);
  EXPECT_EQ(made.pending_messages, record.pending_messages);
  ASSERT_EQ(made.turns.size(), 1u);
  EXPECT_EQ(made.turns[0].messages_begin, 0);
  EXPECT_EQ(made.chain, record.chain) << "this vocabulary says it as before";
  EXPECT_EQ(made.pending, record.pending);
  EXPECT_EQ(text_of(model.vocab(), std::span(made.chain).subspan(static_cast<std::size_t>(made.turns[0].reply_begin))), "four");
}

TEST(PortableSession, AChatInOtherTokensOfWhichOnlyTheSystemPromptIsLeftBeginsAnew) {
  const FakeModel model({.has_chat_template = true});
  kv::SessionRecord record;
  record.mode = SessionMode::chat;
  record.on_full = OnFull::shift;
  record.chain = {testing::kFakeBos, 'x'};
  record.n_keep = 2;
  record.turns_dropped = 3;
  record.messages = {{"system", "be brief"}};
  for (const bool has_input : {false, true}) {
    if (has_input) record = append_to_record(format_of(model), record, {.text = "five", .messages = {}}).value();
    const auto imported =
        import_record(format_of(model), file_of(of_another_vocabulary(export_record(model, record))), kTextMax);
    ASSERT_TRUE(imported) << imported.error().message;
    const kv::SessionRecord& made = imported->record;
    EXPECT_TRUE(made.chain.empty() && made.turns.empty() && made.messages.empty());
    EXPECT_EQ(made.pending_messages.front(),
              record.messages.empty() ? record.pending_messages.front() : record.messages.front());
    EXPECT_EQ(made.pending_messages.size(), has_input ? 2u : 1u);
    EXPECT_EQ(made.pending.empty(), !has_input);
    EXPECT_EQ(kv::impossible_part(made), "");
  }
}

TEST(PortableSession, TextsThatTheirTokensCannotHaveAreTokenizedAgain) {
  const FakeModel model({.has_chat_template = true});
  kv::SessionRecord record = conversation(model, SessionMode::chat);
  record.messages.front().content = std::string(9'000, 'a');
  const PortableFile file = file_of(export_record(model, record));
  const auto imported = import_record(format_of(model), file, 10'000);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_FALSE(imported->are_tokens_kept);
  EXPECT_GT(imported->record.chain.size(), 9'000U);
  const auto refused = import_record(format_of(model), file, 10'000, nullptr, {}, 5000);
  EXPECT_EQ(refused.error().code, ErrorCode::limit_prompt);
}

TEST(PortableSession, ATextInOtherTokensWaitsAsInput) {
  const FakeModel model({});
  const kv::SessionRecord record = conversation(model, SessionMode::text);
  const auto imported = import_record(format_of(model), file_of(of_another_vocabulary(export_record(model, record))), kTextMax);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_FALSE(imported->are_tokens_kept);
  EXPECT_TRUE(imported->record.chain.empty() && imported->record.turns.empty());
  EXPECT_EQ(text_of(model.vocab(), imported->record.pending), "onetwothreefourfive");
  const auto refused = import_record(format_of(model), file_of(of_another_vocabulary(export_record(model, record))), 10);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::limit_prompt);
}

TEST(PortableSession, ASessionThatHasSaidNothingYetTravelsToo) {
  const FakeModel model({.has_chat_template = true});
  kv::SessionRecord record;
  record.mode = SessionMode::chat;
  record.pending_messages = {{"system", "be brief"}};
  const Bytes file = export_record(model, record);
  EXPECT_EQ(import_record(format_of(model), file_of(file), kTextMax)->record, record);
  EXPECT_EQ(import_record(format_of(model), file_of(of_another_vocabulary(file)), kTextMax)->record, record);
}

TEST(PortableSession, ATokenThatTheVocabularyDoesNotHaveIsRefused) {
  const FakeModel model({});
  kv::SessionRecord record = conversation(model, SessionMode::text);
  for (std::vector<Token>* tokens : {&record.chain, &record.pending}) {
    kv::SessionFile file{.record = record, .vocabulary = vocabulary_of(model), .text = {}};
    (tokens == &record.chain ? file.record.chain : file.record.pending).back() = testing::kFakeVocabularySize;
    const auto imported = import_record(format_of(model), file_of(kv::encode_session_file(file)), kTextMax);
    ASSERT_FALSE(imported);
    EXPECT_EQ(imported.error().message, "the session file cannot be used: a token is not in its vocabulary");
  }
}

}  // namespace
}  // namespace uma::engine
