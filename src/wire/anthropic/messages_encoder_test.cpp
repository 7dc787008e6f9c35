#include "wire/anthropic/messages_encoder.h"

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

MessageEncoder message_encoder(std::optional<std::int32_t> tokens_max = std::nullopt) {
  return MessageEncoder({.id = "msg_1", .model = "tiny", .stop_sequences = {"END"}, .tokens_max = tokens_max});
}

// A reply of a prompt of 10 tokens, 4 of which were reused.
EosEvent ended_reply(FinishReason reason = FinishReason::stop) {
  EosEvent eos;
  eos.reason = reason;
  eos.usage.prompt_tokens = 10;
  eos.usage.reused_tokens = 4;
  eos.usage.completion_tokens = 7;
  return eos;
}

boost::json::object whole_message(const EosEvent& eos, std::optional<std::int32_t> tokens_max = std::nullopt) {
  return boost::json::parse(message_encoder(tokens_max).json(eos)).as_object();
}

// The data of the events, whose names are their types.
std::vector<boost::json::object> message_events(const std::string& stream) {
  std::vector<boost::json::object> events;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t data = stream.find("\ndata: ", at);
    const std::size_t end = stream.find("\n\n", at);
    EXPECT_LT(data, end);
    if (data == std::string::npos || end == std::string::npos) break;
    events.push_back(boost::json::parse(stream.substr(data + 7, end - data - 7)).as_object());
    EXPECT_EQ(stream.substr(at, data - at), "event: " + std::string(events.back().at("type").as_string()));
    at = end + 2;
  }
  return events;
}

std::vector<std::string> message_types(const std::vector<boost::json::object>& events) {
  std::vector<std::string> types;
  for (const boost::json::object& event : events) types.emplace_back(event.at("type").as_string());
  return types;
}

TEST(MessageEncoder, AWholeMessage) {
  EosEvent eos = ended_reply(FinishReason::tool_calls);
  eos.text = "I look.";
  eos.parts = {{.kind = ReplyPart::Kind::reasoning, .text = "hm"},
               {.kind = ReplyPart::Kind::tool_call, .text = R"({"a": 1})", .id = "c1", .name = "look"}};
  const boost::json::object message = whole_message(eos);
  EXPECT_EQ(message.at("id"), "msg_1");
  EXPECT_EQ(message.at("type"), "message");
  EXPECT_EQ(message.at("role"), "assistant");
  EXPECT_EQ(message.at("stop_reason"), "tool_use");
  EXPECT_TRUE(message.at("stop_sequence").is_null());
  const boost::json::array& content = message.at("content").as_array();
  ASSERT_EQ(content.size(), 3U);
  EXPECT_EQ(content[0].at("thinking"), "hm");
  EXPECT_FALSE(content[0].at("signature").as_string().empty());
  EXPECT_EQ(content[1], boost::json::parse(R"({"type":"text","text":"I look."})"));
  EXPECT_EQ(content[2], boost::json::parse(R"({"type":"tool_use","id":"c1","name":"look","input":{"a":1}})"));
  EXPECT_EQ(message.at("usage"),
            boost::json::parse(R"({"input_tokens":6,"cache_read_input_tokens":4,"cache_creation_input_tokens":0,)"
                               R"("output_tokens":7,"output_tokens_details":{"thinking_tokens":0}})"));
}

TEST(MessageEncoder, ACallThatWasCutHasNoInput) {
  EosEvent eos = ended_reply(FinishReason::length);
  eos.parts = {{.kind = ReplyPart::Kind::tool_call, .text = R"({"a": )", .id = "c1", .name = "look"}};
  EXPECT_EQ(whole_message(eos).at("content").at(0).at("input"), boost::json::object());
}

TEST(MessageEncoder, TheReasonOfTheEnd) {
  const auto reason = [](const EosEvent& eos, std::optional<std::int32_t> tokens_max = std::nullopt) {
    return std::string(whole_message(eos, tokens_max).at("stop_reason").as_string());
  };
  EXPECT_EQ(reason(ended_reply()), "end_turn");
  EXPECT_EQ(reason(ended_reply(FinishReason::length), 7), "max_tokens");
  EXPECT_EQ(reason(ended_reply(FinishReason::length), 8), "model_context_window_exceeded");
  EXPECT_EQ(reason(ended_reply(FinishReason::length)), "model_context_window_exceeded");
  EXPECT_EQ(reason(ended_reply(FinishReason::timeout)), "max_tokens");
  EosEvent warm = ended_reply(FinishReason::length);
  warm.usage.completion_tokens = 0;
  EXPECT_EQ(reason(warm, 0), "max_tokens") << "only the prompt was computed";
  EosEvent stopped = ended_reply();
  stopped.stop_string = "END";
  EXPECT_EQ(reason(stopped), "stop_sequence");
  EXPECT_EQ(whole_message(stopped).at("stop_sequence"), "END");
  stopped.stop_string = "<|im_end|>";
  EXPECT_EQ(reason(stopped), "end_turn") << "not one of the client's";
}

TEST(MessageEncoder, AStreamHasOneOpenBlockAtATime) {
  MessageEncoder stream = message_encoder();
  std::string out;
  stream.set_prompt({.prompt_tokens = 10});
  stream.append_first(out);
  stream.append_ping(out);
  stream.append_part(out, {.kind = ReplyPart::Kind::reasoning, .text = "h"});
  stream.append_part(out, {.kind = ReplyPart::Kind::reasoning, .text = "m"});
  stream.append_text(out, "I ");
  stream.append_text(out, "look.");
  stream.append_part(out, {.kind = ReplyPart::Kind::tool_call, .text = R"({"a")", .id = "c1", .name = "look"});
  stream.append_part(out, {.kind = ReplyPart::Kind::tool_call, .text = ": 1}"});
  EosEvent eos = ended_reply(FinishReason::tool_calls);
  eos.parts = {{.kind = ReplyPart::Kind::tool_call, .text = "{}", .call = 1, .id = "c2", .name = "wait"}};
  stream.append_last(out, eos);
  const std::vector<boost::json::object> events = message_events(out);
  EXPECT_THAT(message_types(events),
              ElementsAre("message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta",
                          "content_block_delta", "content_block_stop", "content_block_start", "content_block_delta",
                          "content_block_delta", "content_block_stop", "content_block_start", "content_block_delta",
                          "content_block_delta", "content_block_stop", "content_block_start", "content_block_delta",
                          "content_block_stop", "message_delta", "message_stop"));
  const boost::json::value& begun = events[0].at("message");
  EXPECT_EQ(begun.at("content"), boost::json::array());
  EXPECT_TRUE(begun.at("stop_reason").is_null());
  EXPECT_EQ(begun.at("usage").at("input_tokens"), 10);
  EXPECT_EQ(events[5].at("delta").at("type"), "signature_delta");
  EXPECT_EQ(events[7].at("index"), 1);
  EXPECT_EQ(events[11].at("content_block"), boost::json::parse(R"({"type":"tool_use","id":"c1","name":"look","input":{}})"));
  EXPECT_EQ(events[12].at("delta"), boost::json::parse(R"({"type":"input_json_delta","partial_json":"{\"a\""})"));
  EXPECT_EQ(events[17].at("index"), 3);
  EXPECT_EQ(events[18].at("delta"), boost::json::parse(R"({"stop_reason":"tool_use","stop_sequence":null})"));
  EXPECT_EQ(events[18].at("usage").at("input_tokens"), 6);
  EXPECT_EQ(events[18].at("usage").at("cache_read_input_tokens"), 4);
}

TEST(MessageError, TheStatusGivesTheType) {
  const Error error{ErrorCode::limit_prompt, "prompt is too long: 9 tokens > 7 maximum"};
  EXPECT_EQ(message_error_json(error, 400, "", "r1"),
            R"({"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 7 maximum",)"
            R"("uma":{"code":"E_LIMIT_001"}},"request_id":"r1"})");
  for (const auto& [status, type] : {std::pair{401, "authentication_error"},
                                     {403, "permission_error"},
                                     {404, "not_found_error"},
                                     {413, "request_too_large"},
                                     {429, "rate_limit_error"},
                                     {500, "api_error"},
                                     {503, "overloaded_error"}}) {
    EXPECT_THAT(message_error_json(error, status, "x", ""), HasSubstr("\"" + std::string(type) + "\"")) << status;
  }
  EXPECT_THAT(message_error_json(error, 400, "", ""), Not(HasSubstr("details")));
  for (const auto& [code, field, name] : {std::tuple{ErrorCode::proto_field, "thread", "thread_unsupported_request"},
                                          {ErrorCode::session_unknown, "thread.previous_message_id", "thread_not_found"},
                                          {ErrorCode::proto_field, "thread.tools", "thread_fingerprint_mismatch"}}) {
    EXPECT_THAT(message_error_json({code, "x"}, 400, field, ""),
                HasSubstr(R"("details":{"error_code":")" + std::string(name) + R"("})"));
  }
  std::string out;
  append_message_error(out, error, 503);
  EXPECT_EQ(message_types(message_events(out)), std::vector<std::string>{"error"});
}

}  // namespace
}  // namespace uma::wire
