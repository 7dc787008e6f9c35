// Responses, their items and their streams, as clients read them.
#include "wire/openai/response_encoder.h"

#include <format>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/openai/responses_decoder_test_support.h"
#include "wire/openai/stored_responses.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;

// The events of a stream: each is "event: TYPE\ndata: OBJECT\n\n", and OBJECT has the same type.
std::vector<boost::json::value> events_of(std::string_view stream) {
  std::vector<boost::json::value> events;
  while (!stream.empty()) {
    const std::size_t end = stream.find("\n\n");
    EXPECT_NE(end, std::string_view::npos);
    const std::string_view event = stream.substr(0, end);
    stream.remove_prefix(end + 2);
    const std::size_t line_end = event.find('\n');
    EXPECT_TRUE(event.starts_with("event: ") && event.substr(line_end).starts_with("\ndata: ")) << event;
    events.push_back(boost::json::parse(event.substr(line_end + 7)));
    EXPECT_EQ(events.back().at("type"), boost::json::value(event.substr(7, line_end - 7)));
    EXPECT_EQ(events.back().at("sequence_number"), boost::json::value(events.size() - 1));
  }
  return events;
}

std::vector<std::string> types_of(const std::vector<boost::json::value>& events) {
  std::vector<std::string> types;
  for (const boost::json::value& event : events) types.emplace_back(event.at("type").as_string());
  return types;
}

ResponseEncoder encoder(const std::string& body = R"({"input":"x","metadata":{"k":"v"}})") {
  ResponseCall call = decoded(body);
  ResponseEncoder made(
      {std::string(32, 'f'), kOwn},
      {.request = std::move(call.request), .brief_request = std::move(call.brief_request), .model = "tiny", .created_s = 1700});
  made.set_place({.session = SessionId{kSession}, .turn = 3, .number = 1});
  return made;
}

Usage some_usage() {
  Usage usage;
  usage.prompt_tokens = 10;
  usage.reused_tokens = 6;
  usage.recomputed_tokens = 4;
  usage.completion_tokens = 5;
  return usage;
}

TEST(ResponseEncoder, AStreamIsOpenAIsEventsInOrder) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_text(out, "Hel");
  one.append_text(out, "lo\n\n");
  one.append_last(out, EosEvent{FinishReason::stop, some_usage(), "!", std::nullopt});
  const std::vector<boost::json::value> events = events_of(out);
  EXPECT_THAT(types_of(events),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
                          "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.completed"));
  EXPECT_EQ(events[0].at("response").at("id"), boost::json::value(kResponse));
  EXPECT_EQ(events[0].at("response").at("status"), "in_progress");
  EXPECT_TRUE(events[0].at("response").at("usage").is_null());
  EXPECT_TRUE(events[0].at("response").at("output").as_array().empty());
  const std::string item = "msg_" + kSession + "_3_1";
  EXPECT_EQ(events[2].at("item").at("id"), boost::json::value(item));
  EXPECT_EQ(events[2].at("item").at("status"), "in_progress");
  EXPECT_TRUE(events[2].at("item").at("content").as_array().empty());
  std::string text;
  for (std::size_t i = 4; i < 7; ++i) {
    EXPECT_EQ(events[i].at("item_id"), boost::json::value(item));
    EXPECT_EQ(events[i].at("output_index"), 0);
    EXPECT_EQ(events[i].at("content_index"), 0);
    text += events[i].at("delta").as_string();
  }
  EXPECT_EQ(text, "Hello\n\n!");
  EXPECT_EQ(events[7].at("text"), boost::json::value(text));
  EXPECT_EQ(events[8].at("part").at("text"), boost::json::value(text));
  EXPECT_EQ(events[9].at("item").at("status"), "completed");
  const boost::json::value& done = events[10].at("response");
  EXPECT_EQ(done.at("status"), "completed");
  EXPECT_EQ(done.at("output").at(0).at("content").at(0).at("text"), boost::json::value(text));
  EXPECT_EQ(done.at("usage").at("input_tokens"), 10);
  EXPECT_EQ(done.at("usage").at("input_tokens_details").at("cached_tokens"), 6);
  EXPECT_EQ(done.at("usage").at("total_tokens"), 15);
  EXPECT_EQ(done.at("uma").at("usage").at("recomputed_tokens"), 4);
  EXPECT_EQ(done.at("uma").at("session_id"), boost::json::value(kSession));
  EXPECT_EQ(boost::json::serialize(done.at("metadata")), R"({"k":"v"})");
}

TEST(ResponseEncoder, WhatWasCutIsIncompleteAndWhatFailedFailed) {
  for (const FinishReason reason : {FinishReason::length, FinishReason::timeout, FinishReason::cancelled}) {
    ResponseEncoder one = encoder();
    std::string out;
    one.append_first(out);
    one.append_text(out, "Hel");
    one.append_last(out, EosEvent{reason, some_usage(), "", std::nullopt});
    const boost::json::value last = events_of(out).back();
    EXPECT_EQ(last.at("type"), "response.incomplete");
    EXPECT_EQ(last.at("response").at("status"), reason == FinishReason::cancelled ? "cancelled" : "incomplete");
    EXPECT_EQ(last.at("response").at("output").at(0).at("status"), "incomplete");
    EXPECT_EQ(last.at("response").at("uma").at("reason"), boost::json::value(finish_reason_name(reason)));
  }
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_text(out, "Hel");
  one.append_last(out, EosEvent{FinishReason::error, some_usage(), "", Error{ErrorCode::runtime_decode, "it broke"}});
  const boost::json::value last = events_of(out).back();
  EXPECT_EQ(last.at("type"), "response.failed");
  EXPECT_EQ(last.at("response").at("status"), "failed");
  EXPECT_EQ(last.at("response").at("error").at("message"), "it broke");
}

const ReplyPart kThought{.kind = ReplyPart::Kind::reasoning, .text = "hm"};

ReplyPart call_part(std::int32_t call, const std::string& text, const std::string& id = "") {
  return {.kind = ReplyPart::Kind::tool_call, .text = text, .call = call, .id = id, .name = id.empty() ? "" : "f"};
}

TEST(ResponseEncoder, ThoughtsAndCallsAreItemsOneAfterTheOther) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_part(out, kThought);
  one.append_part(out, kThought);
  one.append_text(out, "Wait");
  one.append_text(out, ".");
  one.append_part(out, call_part(0, "{\"a\":", "id0"));
  one.append_part(out, call_part(0, "1}"));
  one.append_part(out, call_part(1, "{}", "id1"));
  Usage usage = some_usage();
  usage.reasoning_tokens = 2;
  one.append_last(out, EosEvent{FinishReason::tool_calls, usage, "", std::nullopt});
  const std::vector<boost::json::value> events = events_of(out);
  EXPECT_THAT(types_of(events),
              ElementsAre("response.created", "response.in_progress",  //
                          "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
                          "response.reasoning_text.delta", "response.reasoning_text.done", "response.content_part.done",
                          "response.output_item.done",  //
                          "response.output_item.added", "response.content_part.added", "response.output_text.delta",
                          "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                          "response.output_item.done",  //
                          "response.output_item.added", "response.function_call_arguments.delta",
                          "response.function_call_arguments.delta", "response.function_call_arguments.done",
                          "response.output_item.done",  //
                          "response.output_item.added", "response.function_call_arguments.delta",
                          "response.function_call_arguments.done", "response.output_item.done", "response.completed"));
  const std::string place = kSession + "_3_1";
  const std::vector<std::string> ids = {"rs_" + place, "msg_" + place, "fc_" + place + "_0", "fc_" + place + "_1"};
  for (const boost::json::value& event : events) {
    const boost::json::object& fields = event.as_object();
    if (!fields.contains("output_index")) continue;
    const std::string& id = ids.at(fields.at("output_index").to_number<std::size_t>());
    EXPECT_EQ(fields.contains("item") ? fields.at("item").at("id") : fields.at("item_id"), boost::json::value(id));
    EXPECT_EQ(fields.contains("content_index"), fields.contains("item_id") && !id.starts_with("fc_")) << event;
  }
  EXPECT_EQ(boost::json::serialize(events[2].at("item")),
            R"({"id":")" + ids[0] + R"(","type":"reasoning","status":"in_progress","summary":[],"content":[]})");
  EXPECT_EQ(boost::json::serialize(events[3].at("part")), R"({"type":"reasoning_text","text":""})");
  EXPECT_EQ(events[6].at("text"), "hmhm");
  EXPECT_EQ(
      boost::json::serialize(events[16].at("item")),
      R"({"id":")" + ids[2] + R"(","type":"function_call","status":"in_progress","call_id":"id0","name":"f","arguments":""})");
  EXPECT_EQ(events[18].at("delta"), "1}");
  EXPECT_EQ(events[19].at("arguments"), "{\"a\":1}");
  EXPECT_EQ(events[19].at("name"), "f");
  const boost::json::value& done = events.back().at("response");
  EXPECT_EQ(done.at("status"), "completed");
  EXPECT_EQ(done.at("uma").at("reason"), "tool_calls");
  EXPECT_EQ(done.at("usage").at("output_tokens_details").at("reasoning_tokens"), 2);
  ASSERT_EQ(done.at("output").as_array().size(), 4u);
  std::size_t next = 0;
  for (const boost::json::value& event : events) {
    if (event.at("type") != "response.output_item.done") continue;
    EXPECT_EQ(event.at("item"), done.at("output").at(next++));
  }
  EXPECT_EQ(next, 4u);

  // The same answer at once, and what is kept of it.
  EosEvent whole{FinishReason::tool_calls, usage, "Wait.", std::nullopt};
  whole.parts = {
      {.kind = ReplyPart::Kind::reasoning, .text = "hmhm"}, call_part(0, "{\"a\":1}", "id0"), call_part(1, "{}", "id1")};
  EXPECT_EQ(boost::json::parse(encoder().json(whole)), done);
  SessionDetail session;
  session.info.id.value = kSession;
  session.info.model = "tiny";
  session.info.dropped_turns = 3;
  session.messages = {{"user", "x"},
                      {"assistant", "Wait.",
                       R"({"reasoning_content":"hmhm","tool_calls":[)"
                       R"({"id":"id0","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},)"
                       R"({"id":"id1","type":"function","function":{"name":"f","arguments":"{}"}}]})"}};
  session.turns_begin = {0};
  const ResponseRecord kept{.turn = 3,
                            .id = kOwn,
                            .request = decoded(R"({"input":"x","metadata":{"k":"v"}})").request,
                            .created_s = 1700,
                            .reason = FinishReason::tool_calls,
                            .prompt_tokens = 10,
                            .reused_tokens = 6,
                            .completion_tokens = 5,
                            .reasoning_tokens = 2};
  ResponseDetail detail{session, std::make_shared<const ResponseRecord>(kept),
                        std::make_shared<const Receipt>(Receipt{.reason = FinishReason::tool_calls, .usage = usage})};
  EXPECT_EQ(boost::json::parse(response_json(detail)), done);

  // As events: the same items, each in one piece, or the end alone.
  const auto told = events_of(response_events(detail, std::nullopt));
  EXPECT_EQ(told.front().at("type"), "response.created");
  EXPECT_EQ(told.back().at("type"), "response.completed");
  EXPECT_EQ(told.back().at("response"), done);
  std::string deltas;
  for (std::size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i].at("sequence_number"), i);
    if (const auto* delta = told[i].as_object().if_contains("delta")) deltas += delta->as_string();
  }
  EXPECT_EQ(deltas, "hmhmWait.{\"a\":1}{}");
  const std::string end = response_events(detail, 57);
  const std::string_view head = "event: response.completed\ndata: ";
  ASSERT_TRUE(end.starts_with(head)) << end;
  const boost::json::value last = boost::json::parse(end.substr(head.size()));
  EXPECT_EQ(last.at("sequence_number"), 58);
  EXPECT_EQ(last.at("response"), done);

  detail.receipt = nullptr;
  boost::json::value old = boost::json::parse(response_json(detail));
  EXPECT_TRUE(old.at("uma").as_object().emplace("usage", done.at("uma").at("usage")).second) << "of an older file";
  EXPECT_EQ(old, done);
}

TEST(ResponseEncoder, WhatWasCutIsTheLastItem) {
  for (const bool streams : {true, false}) {
    ResponseEncoder one = encoder();
    EosEvent eos{FinishReason::length, some_usage(), "", std::nullopt};
    eos.parts = {kThought, call_part(0, "{\"a", "id0")};
    std::string out;
    if (streams) {
      one.append_first(out);
      one.append_last(out, eos);
    }
    const boost::json::value response = streams ? events_of(out).back().at("response") : boost::json::parse(one.json(eos));
    EXPECT_EQ(response.at("status"), "incomplete");
    EXPECT_EQ(response.at("output").at(0).at("status"), "completed");
    EXPECT_EQ(response.at("output").at(1).at("status"), "incomplete");
    EXPECT_EQ(response.at("output").at(1).at("arguments"), "{\"a");
  }
}

TEST(ResponseEncoder, TextBehindACallIsAnItemOfItsOwn) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_text(out, "a");
  one.append_part(out, call_part(0, "{}", "id0"));
  one.append_text(out, "b");
  one.append_last(out, EosEvent{FinishReason::tool_calls, some_usage(), "", std::nullopt});
  const boost::json::value response = events_of(out).back().at("response");
  const boost::json::array& output = response.at("output").as_array();
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0].at("content").at(0).at("text"), "a");
  EXPECT_EQ(output[2].at("content").at(0).at("text"), "b");
  EXPECT_NE(output[0].at("id"), output[2].at("id"));
}

TEST(ResponseEncoder, EventsBeforeTheEndAreShortWhateverTheRequest) {
  const std::string long_text(200'000, 'x');
  ResponseEncoder one = encoder(
      R"({"input":"x","instructions":")" + long_text + R"(","tools":[{"type":"function","name":"f","description":")" +
      long_text + R"("}],"text":{"format":{"type":"json_schema","name":"s","schema":{"title":")" + long_text + R"("}}}})");
  std::string out;
  one.append_first(out);
  one.append_text(out, "Hello");
  one.append_in_progress(out);
  EXPECT_LT(out.size(), 10'000U);
  const boost::json::value begun = events_of(out).front().at("response");
  EXPECT_TRUE(begun.at("instructions").is_null());
  EXPECT_TRUE(begun.at("tools").as_array().empty());
  EXPECT_TRUE(events_of(out).back().at("response").at("output").as_array().empty());
  one.append_last(out, EosEvent{FinishReason::stop, some_usage(), "", std::nullopt});
  const boost::json::value done = events_of(out).back().at("response");
  EXPECT_EQ(done.at("instructions"), boost::json::value(long_text));
  EXPECT_EQ(done.at("tools").as_array().size(), 1U);
  EXPECT_EQ(boost::json::parse(one.json_in_progress()).at("instructions"), boost::json::value(long_text));
}

TEST(ResponseEncoder, LogprobsAreInDeltasOrInTheWholeObject) {
  const std::vector<TokenLogprobs> logprobs{
      {.chosen = {.token = 5, .logprob = -0.5, .bytes = "Hi"}, .top = {{.token = 5, .logprob = -0.5, .bytes = "Hi"}}}};
  const std::string written =
      R"([{"token":"Hi","logprob":-0.5,"bytes":[72,105],"top_logprobs":[{"token":"Hi","logprob":-0.5,"bytes":[72,105]}]}])";
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_text(out, "Hi", logprobs);
  one.append_last(out, EosEvent{FinishReason::stop, some_usage(), "", std::nullopt});
  const std::vector<boost::json::value> events = events_of(out);
  EXPECT_EQ(boost::json::serialize(events[4].at("logprobs")), boost::json::serialize(boost::json::parse(written)));
  EosEvent eos{FinishReason::stop, some_usage(), "Hi", std::nullopt};
  eos.logprobs = logprobs;
  const boost::json::value whole = boost::json::parse(encoder().json(eos));
  EXPECT_EQ(whole.at("output").at(0).at("content").at(0).at("logprobs"), boost::json::parse(written));
}

TEST(ResponseEncoder, AReplyThatSaysNothingIsAnEmptyMessage) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_last(out, EosEvent{FinishReason::stop, some_usage(), "", std::nullopt});
  const boost::json::value response = events_of(out).back().at("response");
  EXPECT_EQ(response.at("output").at(0).at("content").at(0).at("text"), "");
  EXPECT_EQ(response, boost::json::parse(encoder().json(EosEvent{FinishReason::stop, some_usage(), "", std::nullopt})));
}

TEST(ResponseEncoder, HasTheFieldsThatOpenResponsesRequires) {
  Usage usage = some_usage();
  usage.ttft_ms = 1500;
  usage.tokens_per_s = 2;
  const auto json_of = [&](const std::string& body, FinishReason reason) {
    return boost::json::parse(encoder(body).json(EosEvent{reason, usage, "Hello", std::nullopt}));
  };
  const boost::json::value plain = json_of(R"({"input":"x"})", FinishReason::stop);
  EXPECT_EQ(plain.at("completed_at"), 1703);  // 1.5 s until the first of 5 tokens, 2 s for the others.
  EXPECT_EQ(plain.at("presence_penalty"), 0);
  EXPECT_EQ(plain.at("frequency_penalty"), 0);
  EXPECT_EQ(plain.at("top_logprobs"), 0);
  EXPECT_EQ(plain.at("service_tier"), "default");
  for (const char* name : {"max_tool_calls", "safety_identifier", "prompt_cache_key"}) {
    EXPECT_TRUE(plain.at(name).is_null()) << name;
  }
  const boost::json::value given = json_of(
      R"({"input":"x","presence_penalty":0.5,"frequency_penalty":-1,"max_tool_calls":3,"service_tier":"flex",
          "include":["message.output_text.logprobs"],"top_logprobs":2,"safety_identifier":"me","prompt_cache_key":"k"})",
      FinishReason::length);
  EXPECT_TRUE(given.at("completed_at").is_null());
  EXPECT_EQ(given.at("presence_penalty"), 0.5);
  EXPECT_EQ(given.at("frequency_penalty"), -1);
  EXPECT_EQ(given.at("top_logprobs"), 2);
  EXPECT_EQ(given.at("max_tool_calls"), 3);
  EXPECT_EQ(given.at("service_tier"), "default");
  EXPECT_EQ(given.at("safety_identifier"), "me");
  EXPECT_EQ(given.at("prompt_cache_key"), "k");
}

TEST(ResponseEncoder, OneThatDoesNotStreamIsTheSameObject) {
  const boost::json::value whole =
      boost::json::parse(encoder().json(EosEvent{FinishReason::length, some_usage(), "Hello", std::nullopt}));
  EXPECT_EQ(whole.at("object"), "response");
  EXPECT_EQ(whole.at("id"), boost::json::value(kResponse));
  EXPECT_EQ(whole.at("created_at"), 1700);
  EXPECT_EQ(whole.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(whole.at("output").at(0).at("id"), boost::json::value("msg_" + kSession + "_3_1"));
  EXPECT_EQ(whole.at("output").at(0).at("content").at(0).at("text"), "Hello");
  for (const char* name : {"error", "instructions", "previous_response_id", "max_output_tokens"}) {
    EXPECT_TRUE(whole.at(name).is_null()) << name;
  }
}

}  // namespace
}  // namespace uma::wire
