#include "uma-bench/events.h"

#include <format>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::bench {
namespace {

using ::testing::ElementsAre;

TEST(ParseFrameEvent, ReadsTokensWithAndWithoutTheirText) {
  const std::string body = R"({"id":"a","event":"token","text":" \u00e9\n","token_id":7})";
  const auto plain = parse_frame_event(body, false);
  ASSERT_TRUE(plain);
  EXPECT_TRUE(plain->is_token);
  EXPECT_EQ(parse_frame_event(body, true)->text, " \u00e9\n");
  EXPECT_TRUE(parse_frame_event(R"({"event" : "token", "text":""})", false)->is_token) << "spaces take the slow way";
}

TEST(ParseFrameEvent, IsNotFooledByTextThatLooksLikeAnEvent) {
  const auto event =
      parse_frame_event(R"({"id":"a","event":"eos","reason":"stop","text":"\"event\":\"token\"","usage":{}})", false);
  ASSERT_TRUE(event);
  EXPECT_FALSE(event->is_token);
  EXPECT_TRUE(event->is_end);
}

TEST(ParseFrameEvent, ReadsUsageAtTheEnd) {
  const auto event = parse_frame_event(
      R"({"id":"a","event":"eos","reason":"length","usage":{"prompt_tokens":9,"reused_tokens":4,"completion_tokens":64}})",
      false);
  ASSERT_TRUE(event && event->usage);
  EXPECT_EQ(event->usage->prompt_tokens, 9);
  EXPECT_EQ(event->usage->reused_tokens, 4);
  EXPECT_EQ(event->usage->completion_tokens, 64);
}

TEST(ParseFrameEvent, TellsServerFailuresFromBrokenProtocol) {
  const auto refused = parse_frame_event(R"({"id":"a","event":"error","code":"E_LIMIT_001","message":"too long"})", false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, Failure::Kind::server);
  EXPECT_EQ(refused.error().message, "E_LIMIT_001: too long");
  const auto stopped = parse_frame_event(R"({"id":"a","event":"eos","reason":"slow_consumer"})", false);
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().kind, Failure::Kind::server);
  for (const char* body : {"", "[]", "{", R"({"id":"a"})", R"({"event":5})"}) {
    const auto event = parse_frame_event(body, false);
    ASSERT_FALSE(event) << body;
    EXPECT_EQ(event.error().kind, Failure::Kind::protocol) << body;
  }
}

TEST(ParseCompletionEvent, ReadsTokensUsageAndTheEnd) {
  const std::string token = R"({"choices":[{"text":" hi","index":0,"finish_reason":null}],"object":"text_completion"})";
  EXPECT_TRUE(parse_completion_event(token, false)->is_token);
  EXPECT_EQ(parse_completion_event(token, true)->text, " hi");
  const auto last = parse_completion_event(
      R"({"choices":[{"text":"","finish_reason":"length"}],"usage":{"completion_tokens":3,"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}})",
      false);
  ASSERT_TRUE(last && last->usage);
  EXPECT_FALSE(last->is_token);
  EXPECT_EQ(last->usage->completion_tokens, 3);
  EXPECT_EQ(last->usage->reused_tokens, 2);
  EXPECT_TRUE(parse_completion_event("[DONE]", false)->is_end);
  EXPECT_FALSE(parse_completion_event(R"({"choices":[],"usage":{"completion_tokens":3}})", false)->is_token);
}

TEST(ParseCompletionEvent, ReportsErrorsInsideTheStream) {
  const auto event = parse_completion_event(R"({"error":{"code":500,"message":"no room"}})", false);
  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().message, "no room");
  EXPECT_EQ(parse_completion_event("nonsense", false).error().kind, Failure::Kind::protocol);
  EXPECT_EQ(error_message("<html>"), "<html>");
}

TEST(ParseChatEvent, CountsTextReasoningAndCallsAsTokens) {
  const auto text =
      parse_chat_event(R"({"choices":[{"index":0,"delta":{"content":" hi"},"finish_reason":null}],"usage":null})");
  ASSERT_TRUE(text);
  EXPECT_TRUE(text->is_token);
  EXPECT_EQ(text->text, " hi");
  for (const char* delta : {R"({"reasoning_content":"hm"})", R"({"tool_calls":[{"index":0}]})"}) {
    const auto event = parse_chat_event(std::format(R"({{"choices":[{{"delta":{}}}]}})", delta));
    ASSERT_TRUE(event);
    EXPECT_TRUE(event->is_token) << delta;
    EXPECT_EQ(event->text, "");
  }
  for (const char* delta : {R"({"role":"assistant","content":null})", R"({"role":"assistant","content":""})", "{}"}) {
    const auto event = parse_chat_event(std::format(R"({{"choices":[{{"delta":{}}}]}})", delta));
    ASSERT_TRUE(event);
    EXPECT_FALSE(event->is_token) << delta;
  }
}

TEST(ParseChatEvent, ReadsTheUsageBehindTheChoicesAndTheEnd) {
  const auto usage = parse_chat_event(
      R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}})");
  ASSERT_TRUE(usage && usage->usage);
  EXPECT_EQ(usage->usage->prompt_tokens, 9);
  EXPECT_EQ(usage->usage->reused_tokens, 4);
  EXPECT_TRUE(parse_chat_event("[DONE]")->is_end);
  const auto failed = parse_chat_event(R"({"error":{"message":"too long"}})");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "too long");
  EXPECT_EQ(parse_chat_event("{").error().kind, Failure::Kind::protocol);
}

TEST(SseReader, GivesTheSameEventsHoweverTheBytesAreCut) {
  const std::string bytes = ": comment\r\ndata: one\r\n\r\nevent: x\ndata:two\n\ndata: [DONE]\n\n";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    SseReader reader;
    std::vector<std::string> events;
    for (std::size_t begin = 0; begin < bytes.size(); begin += piece) {
      reader.append(std::string_view(bytes).substr(begin, piece));
      while (const auto data = reader.next()) {
        events.emplace_back(*data);
      }
    }
    EXPECT_THAT(events, ElementsAre("one", "two", "[DONE]")) << piece;
  }
}

}  // namespace
}  // namespace uma::bench
