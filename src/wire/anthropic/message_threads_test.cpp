// Messages in threads: what a request asks for, what is stored with a message, and what a continuation takes from it.
#include "wire/anthropic/message_threads.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/anthropic/messages_decoder.h"
#include "wire/openai/responses_decoder_test_support.h"
#include "wire/openai/stored_responses.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kBegin = R"("thread":{"type":"create"})";
constexpr const char* kSystem = R"("system":"be brief")";
constexpr const char* kTools = R"("tools":[{"name":"look","input_schema":{"type":"object"}}])";

std::string begun_with(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "," + kBegin + "}";
}

// A continuation of the thread with a result, and these fields.
std::string continued_with(const std::string& fields = "") {
  return R"({"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"seen"}]}],)" + fields +
         R"("thread":{"type":"continue","previous_message_id":"msg_)" + kSession + kOwn + "\"}}";
}

// The thread as the server holds it after its first message, which called the tool.
HeldThread held_after(const std::string& first) {
  const auto call = decode_thread_message(first, kOwn, nullptr);
  EXPECT_TRUE(call) << first << (call ? "" : call.error().error.message);
  ResponseDetail detail;
  detail.session.info.id.value = kSession;
  detail.session.messages = call->generate.input.messages;
  detail.session.messages.push_back(
      {"assistant", "", R"({"tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{}"}}]})"});
  detail.response =
      std::make_shared<const ResponseRecord>(ResponseRecord{.id = kOwn, .request = call->generate.response->request});
  auto held = held_thread(detail);
  EXPECT_TRUE(held);
  return held ? *std::move(held) : HeldThread();
}

std::pair<ErrorCode, std::string> refusal_of(const std::string& body, const HeldThread* continued) {
  const auto call = decode_thread_message(body, kOwn, continued);
  EXPECT_FALSE(call) << body;
  return call ? std::pair(ErrorCode::auth, std::string()) : std::pair(call.error().error.code, call.error().field);
}

TEST(MessageThreads, ARequestNamesItsThread) {
  EXPECT_FALSE(*decode_thread(R"({"messages":[]})"));
  EXPECT_FALSE(*decode_thread(R"({"thread":null})"));
  EXPECT_FALSE((*decode_thread(R"({"thread":{"type":"create"}})"))->previous);
  EXPECT_EQ((*decode_thread(continued_with()))->previous, (ResponseId{kSession, kOwn}));
  for (const auto& [thread, field] : std::vector<std::pair<std::string, std::string>>{
           {"7", "thread"},
           {"{}", "thread.type"},
           {R"({"type":"fork"})", "thread.type"},
           {R"({"type":"continue"})", "thread.previous_message_id"},
           {R"({"type":"continue","previous_message_id":7})", "thread.previous_message_id"}}) {
    const auto refused = decode_thread(R"({"thread":)" + thread + "}");
    ASSERT_FALSE(refused) << thread;
    EXPECT_EQ(refused.error().field, field) << thread;
    EXPECT_EQ(refused.error().error.code, ErrorCode::proto_field) << thread;
  }
  const auto unknown = decode_thread(R"({"thread":{"type":"continue","previous_message_id":"msg_1"}})");
  EXPECT_EQ(unknown.error().error.code, ErrorCode::session_unknown);
}

TEST(MessageThreads, AContinuationHasTheToolsAndTheSystemPromptOfItsThread) {
  const HeldThread held = held_after(begun_with(std::string(kSystem) + "," + kTools + R"(,"tool_choice":{"type":"none"})"));
  EXPECT_EQ(held.system, "be brief");
  EXPECT_THAT(held.tool_names, ElementsAre("look"));
  const auto call = decode_thread_message(continued_with(), "1111111111111111", &held);
  ASSERT_TRUE(call) << call.error().error.message;
  EXPECT_EQ(call->generate.session, kSession);
  EXPECT_EQ(call->generate.response->previous, kOwn);
  EXPECT_EQ(call->generate.response->id, "1111111111111111");
  EXPECT_EQ(call->generate.response->instructions, std::nullopt);
  const auto whole = decode_messages(std::string(R"({"messages":[{"role":"user","content":"hi"}],)") + kTools + "}");
  ASSERT_TRUE(whole) << whole.error().error.message;
  EXPECT_EQ(call->generate.options.chat.tools, whole->generate.options.chat.tools) << "to the byte";
  EXPECT_THAT(call->generate.options.chat.tool_names, ElementsAre("look"));
  EXPECT_THAT(call->generate.input.messages,
              ElementsAre(ChatMessage{"tool", "seen", R"({"tool_call_id":"c1","name":"look"})"}));
}

TEST(MessageThreads, WhatAThreadKeepsMayBeRepeatedAndNotChanged) {
  const HeldThread held = held_after(begun_with(std::string(kSystem) + "," + kTools));
  for (const std::string fields :
       {"", kSystem, kTools, R"("system":[{"type":"text","text":"x-anthropic-billing-header: a"}])", R"("tools":null)"}) {
    EXPECT_TRUE(decode_thread_message(continued_with(fields.empty() ? "" : fields + ","), kOwn, &held)) << fields;
  }
  EXPECT_EQ(refusal_of(continued_with(R"("system":"be long",)"), &held),
            std::pair(ErrorCode::proto_field, std::string("thread.system")));
  EXPECT_EQ(refusal_of(continued_with(R"("tools":[],)"), &held),
            std::pair(ErrorCode::proto_field, std::string("thread.tools")));
  // The model and the options of a reply are those of each request.
  EXPECT_TRUE(decode_thread_message(
      continued_with(R"("model":"other","temperature":0.5,"max_tokens":3,"tool_choice":{"type":"tool","name":"look"},)"), kOwn,
      &held));
}

TEST(MessageThreads, SystemMessagesBehindTheSystemPromptAreNoPartOfIt) {
  const std::string first = R"({"system":"a","messages":[{"role":"system","content":"b"},{"role":"user","content":"hi"}],)" +
                            std::string(kBegin) + "}";
  const HeldThread held = held_after(first);
  EXPECT_EQ(held.system, "a");
  EXPECT_TRUE(decode_thread_message(continued_with(R"("system":"a",)"), kOwn, &held));
  const auto later =
      decode_thread_message(R"({"messages":[{"role":"system","content":"c"},{"role":"user","content":"more"}]})", kOwn, &held);
  EXPECT_THAT(later->generate.input.messages,
              ElementsAre(ChatMessage{"user", "<system-reminder>\nc\n</system-reminder>\nmore"}));
}

TEST(MessageThreads, WhatIsStoredIsAReply) {
  EXPECT_EQ(refusal_of(begun_with(R"("max_tokens":0)"), nullptr), std::pair(ErrorCode::proto_field, std::string("max_tokens")));
  EXPECT_EQ(refusal_of(R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"I "}],)" +
                           std::string(kBegin) + "}",
                       nullptr),
            std::pair(ErrorCode::proto_field, std::string("thread")));
}

TEST(MessageThreads, AMessageIsAResponse) {
  const auto call = decode_thread_message(begun_with(R"("max_tokens":9)"), kOwn, nullptr);
  ResponseDetail detail;
  detail.session.info.id.value = kSession;
  detail.session.messages = {{"user", "hi"}, {"assistant", "Hello"}};
  detail.session.turns_begin = {0};
  detail.response =
      std::make_shared<const ResponseRecord>(ResponseRecord{.id = kOwn, .request = call->generate.response->request});
  const std::string json = response_json(detail);
  EXPECT_THAT(json, HasSubstr("\"" + kResponse + "\""));
  EXPECT_THAT(json, HasSubstr(R"("max_output_tokens":9)"));
  EXPECT_THAT(json, HasSubstr(R"("text":"Hello")"));
}

TEST(MessageThreads, AResponseIsNotAMessage) {
  ResponseDetail detail;
  detail.session.messages = {{"user", "hi"}, {"assistant", "Hello"}};
  for (const char* request : {R"({"instructions":null)", "", "7"}) {
    detail.response = std::make_shared<const ResponseRecord>(ResponseRecord{.id = kOwn, .request = request});
    EXPECT_FALSE(held_thread(detail)) << request;
  }
}

}  // namespace
}  // namespace uma::wire
