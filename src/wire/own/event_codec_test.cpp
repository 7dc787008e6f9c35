#include "wire/own/event_codec.h"

#include <memory>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "wire/own/frame.h"
#include "wire/own/metrics_codec.h"

namespace uma::wire {
namespace {

// The one frame in `bytes`, parsed back.
boost::json::object parse_frame(const std::string& bytes) {
  FrameReader reader(1'000'000);
  reader.append(bytes);
  const auto body = reader.next();
  if (!body || !*body) {
    ADD_FAILURE() << "no whole frame";
    return {};
  }
  boost::json::object object = boost::json::parse(boost::json::string_view((*body)->data(), (*body)->size())).as_object();
  const auto rest = reader.next();
  EXPECT_TRUE(rest.has_value() && !rest->has_value()) << "more than one frame";
  return object;
}

boost::json::object encoded(const Event& event, bool stream = true) {
  std::string bytes;
  append_event(bytes, FrameHead("r1"), event, stream);
  return parse_frame(bytes);
}

TEST(AppendUsage, NamesWhatIsLeftOutOfSchemas) {
  Usage usage;
  std::string out;
  append_usage(out, usage);
  EXPECT_FALSE(out.contains("schema_left_out"));
  usage.schema_left_out = {"format#/a", "format#/b"};
  out.clear();
  append_usage(out, usage);
  EXPECT_TRUE(out.ends_with(R"(,"schema_left_out":["format#/a","format#/b"]})")) << out;
}

TEST(EventCodec, TokenFrameIsExactlyTheseBytes) {
  std::string bytes;
  append_event(bytes, FrameHead("r1"), TokenEvent{" a\"b", 17}, true);
  std::string expected;
  append_frame(expected, R"({"id":"r1","event":"token","text":" a\"b","token_id":17})");
  EXPECT_EQ(bytes, expected);
}

TEST(EventCodec, TokensSayHowLikelyTheyWereWhereThatIsAsked) {
  const std::vector<TokenLogprobs> logprobs = {
      {.chosen = {.token = 7, .logprob = -0.1234567, .bytes = "a"}, .top = {{.token = 8, .logprob = -3, .bytes = "\xc3"}}}};
  const char* told = R"([{"token_id":7,"token":"a","logprob":-0.123457,"bytes":[97],"top_logprobs":[
      {"token_id":8,"token":"\ufffd","logprob":-3,"bytes":[195]}]}])";
  EXPECT_EQ(encoded(TokenEvent{"a", 7, logprobs}).at("logprobs"), boost::json::parse(told));
  EosEvent event{FinishReason::stop, {}, "a", std::nullopt};
  event.logprobs = logprobs;
  EXPECT_EQ(encoded(event, false).at("logprobs"), boost::json::parse(told));
}

TEST(EventCodec, EscapesTheClientsId) {
  std::string bytes;
  append_pong(bytes, FrameHead("a\"\\\n\u20ac"));
  const boost::json::object frame = parse_frame(bytes);
  EXPECT_EQ(frame.at("id").as_string(), "a\"\\\n\u20ac");
  EXPECT_EQ(frame.at("event").as_string(), "pong");
}

TEST(EventCodec, APongSaysWhereHttpIs) {
  std::string bytes;
  append_pong(bytes, FrameHead("a"), "http://127.0.0.1:1");
  EXPECT_EQ(parse_frame(bytes).at("http").as_string(), "http://127.0.0.1:1");
  bytes.clear();
  append_pong(bytes, FrameHead("a"));
  EXPECT_FALSE(parse_frame(bytes).contains("http"));
}

TEST(EventCodec, TokenTextComesBackWhateverItHolds) {
  for (const std::string_view text : {"", "\n\t\x01", "\u00e9\U0001F600", "</s>\\\""}) {
    EXPECT_EQ(encoded(TokenEvent{text, 3}).at("text").as_string(), boost::json::string_view(text.data(), text.size()));
  }
}

TEST(EventCodec, EosCarriesReasonAndUsage) {
  Usage usage;
  usage.prompt_tokens = 10;
  usage.reused_tokens = 4;
  usage.recomputed_tokens = 6;
  usage.completion_tokens = 3;
  usage.dropped_turns = 2;
  usage.dropped_tokens = 77;
  usage.tier = Tier::hot;
  usage.reuse_reason = "session";
  usage.restore_ms = 0.5;
  usage.queue_ms = 1.25;
  usage.ttft_ms = 20;
  usage.tokens_per_s = 31.5;
  usage.seed = 18'446'744'073'709'551'615u;
  const boost::json::object frame = encoded(EosEvent{FinishReason::length, usage, "", std::nullopt});
  EXPECT_EQ(frame.at("event").as_string(), "eos");
  EXPECT_EQ(frame.at("reason").as_string(), "length");
  EXPECT_FALSE(frame.contains("text"));
  EXPECT_FALSE(frame.contains("code"));
  EXPECT_EQ(frame.at("usage"),
            boost::json::parse(
                R"({"prompt_tokens":10,"reused_tokens":4,"recomputed_tokens":6,"completion_tokens":3,"reasoning_tokens":0,
      "dropped_turns":2,"dropped_tokens":77,"unseen_images":0,"tier":"hot",
      "reuse_reason":"session","restore_ms":0.5,"queue_ms":1.25,"ttft_ms":20,"tokens_per_s":31.5,"seed":18446744073709551615})"));
}

TEST(EventCodec, EosTextIsTheHeldBackRestOrTheWholeReply) {
  EXPECT_EQ(encoded(EosEvent{FinishReason::stop, {}, "rest", std::nullopt}).at("text").as_string(), "rest");
  EXPECT_EQ(encoded(EosEvent{FinishReason::stop, {}, "", std::nullopt}, false).at("text").as_string(), "")
      << "always there without stream";
}

TEST(EventCodec, EosWithAnErrorNamesIt) {
  const boost::json::object frame =
      encoded(EosEvent{FinishReason::error, {}, "", Error{ErrorCode::runtime_decode, "decode failed"}});
  EXPECT_EQ(frame.at("reason").as_string(), "error");
  EXPECT_EQ(frame.at("code").as_string(), "E_RUNTIME_001");
  EXPECT_EQ(frame.at("message").as_string(), "decode failed");
}

TEST(EventCodec, FailureIsAnErrorEvent) {
  EXPECT_EQ(boost::json::value(encoded(FailureEvent{{ErrorCode::limit_wait, "too late"}})),
            boost::json::parse(R"({"id":"r1","event":"error","code":"E_LIMIT_003","message":"too late"})"));
}

TEST(EventCodec, ErrorWithoutAnIdSaysNull) {
  std::string bytes;
  append_error(bytes, FrameHead(std::nullopt), {ErrorCode::proto_frame, "too large"});
  EXPECT_TRUE(parse_frame(bytes).at("id").is_null());
}

TEST(EventCodec, AContextShiftSaysWhatWasDropped) {
  EXPECT_EQ(boost::json::value(encoded(ContextShiftEvent{2, 77})),
            boost::json::parse(R"({"id":"r1","event":"context_shift","dropped_turns":2,"dropped_tokens":77})"));
}

TEST(EventCodec, ProgressCarriesItsStage) {
  EXPECT_EQ(
      boost::json::value(encoded(ProgressEvent{ProgressStage::prefill, 5, 9, 0, 12.5})),
      boost::json::parse(R"({"id":"r1","event":"progress","stage":"prefill","done":5,"total":9,"position":0,"eta_ms":12.5})"));
  EXPECT_EQ(encoded(ProgressEvent{ProgressStage::queued, 0, 0, 2, 0}).at("stage").as_string(), "queued");
  EXPECT_EQ(encoded(ProgressEvent{ProgressStage::loading, 0, 0, 0, 0}).at("stage").as_string(), "loading");
}

SessionInfo sample_session() {
  SessionInfo session;
  session.id.value = "00ff";
  session.name = "notes";
  session.model = "tiny";
  session.mode = SessionMode::chat;
  session.tokens = 40;
  session.pending_tokens = 5;
  session.turns = 2;
  session.dropped_turns = 1;
  session.on_full = OnFull::shift;
  session.n_keep = 6;
  session.busy = true;
  session.tier = Tier::warm;
  session.warm_bytes = 4096;
  session.cold_bytes = 8192;
  session.worker = 1;
  session.created_s = 1'700'000'000;
  session.last_used_s = 1'700'000'009;
  session.parent.value = "ee00";
  session.fork_turn = 1;
  session.metadata = R"({"title":"My notes"})";
  return session;
}

constexpr const char* kSampleFields =
    R"("session_id":"00ff","name":"notes","model":"tiny","mode":"chat","tokens":40,"pending_tokens":5,"turns":2,"dropped_turns":1,)"
    R"("on_full":"shift","n_keep":6,"busy":true,)"
    R"("tier":"warm","hot_bytes":0,"warm_bytes":4096,"cold_bytes":8192,"worker":1,"created_s":1700000000,"last_used_s":1700000009,)"
    R"("parent_id":"ee00","fork_turn":1,"metadata":{"title":"My notes"})";

TEST(EventCodec, SessionRepliesCarryTheSession) {
  const std::string fields = kSampleFields;
  std::string bytes;
  append_session(bytes, FrameHead("r1"), sample_session());
  EXPECT_EQ(boost::json::value(parse_frame(bytes)), boost::json::parse(R"({"id":"r1","event":"session",)" + fields + "}"));
  bytes.clear();
  append_session_ack(bytes, FrameHead("r1"), sample_session());
  EXPECT_EQ(boost::json::value(parse_frame(bytes)), boost::json::parse(R"({"id":"r1","event":"ack",)" + fields + "}"));
  bytes.clear();
  append_sessions(bytes, FrameHead("r1"),
                  SessionList{.sessions = {sample_session(), sample_session()}, .has_more = true, .next = "9.00ff"});
  EXPECT_EQ(boost::json::value(parse_frame(bytes)),
            boost::json::parse(R"({"id":"r1","event":"sessions","sessions":[{)" + fields + "},{" + fields +
                               R"(}],"has_more":true,"next":"9.00ff"})"));
}

TEST(EventCodec, ABusySessionNamesItsResponse) {
  SessionInfo session = sample_session();
  session.id.value = std::string(32, 'a');
  session.response = "0123456789abcdef";
  EXPECT_EQ(boost::json::parse(session_json(session)).at("response_id"),
            boost::json::value("resp_" + session.id.value + session.response));
}

TEST(EventCodec, ReceiptsAreListedByTheirTurns) {
  const std::vector<TurnReceipt> receipts{
      {.turn = 3, .receipt = std::make_shared<const Receipt>(Receipt{.reason = FinishReason::length, .usage = {.seed = 7}})}};
  const boost::json::value list = boost::json::parse(receipts_json(receipts));
  EXPECT_EQ(list.at("object"), "list");
  EXPECT_EQ(list.at("data").at(0).at("turn"), 3);
  EXPECT_EQ(list.at("data").at(0).at("reason"), "length");
  EXPECT_EQ(list.at("data").at(0).at("usage").at("seed"), 7);
}

TEST(EventCodec, SessionDetailShowsMessagesOrText) {
  SessionDetail detail;
  detail.info = sample_session();
  detail.messages = {{"user", "hi"}, {"assistant", "hello"}};
  std::string bytes;
  append_session_detail(bytes, FrameHead("r1"), detail);
  EXPECT_EQ(parse_frame(bytes).at("messages"),
            boost::json::parse(R"([{"role":"user","content":"hi"},{"role":"assistant","content":"hello"}])"));
  EXPECT_FALSE(parse_frame(bytes).contains("pending_messages"));
  detail.info.mode = SessionMode::text;
  detail.text = "Once";
  bytes.clear();
  append_session_detail(bytes, FrameHead("r1"), detail);
  EXPECT_EQ(parse_frame(bytes).at("text").as_string(), "Once");
  EXPECT_FALSE(parse_frame(bytes).contains("pending_text"));
}

TEST(EventCodec, SessionDetailShowsInputWithoutAReply) {
  SessionDetail detail;
  detail.info = sample_session();
  detail.pending_messages = {{"user", "and now?"}};
  std::string bytes;
  append_session_detail(bytes, FrameHead("r1"), detail);
  EXPECT_EQ(parse_frame(bytes).at("messages"), boost::json::parse("[]"));
  EXPECT_EQ(parse_frame(bytes).at("pending_messages"), boost::json::parse(R"([{"role":"user","content":"and now?"}])"));
  detail.info.mode = SessionMode::text;
  detail.pending_text = " upon";
  bytes.clear();
  append_session_detail(bytes, FrameHead("r1"), detail);
  EXPECT_EQ(parse_frame(bytes).at("pending_text").as_string(), " upon");
}

TEST(EventCodec, AcksSayWhatHappened) {
  std::string bytes;
  append_ack(bytes, FrameHead("r1"));
  EXPECT_EQ(boost::json::value(parse_frame(bytes)), boost::json::parse(R"({"id":"r1","event":"ack"})"));
  bytes.clear();
  append_cancel_ack(bytes, FrameHead("r1"), false);
  EXPECT_EQ(boost::json::value(parse_frame(bytes)), boost::json::parse(R"({"id":"r1","event":"ack","cancelled":false})"));
}

TEST(EventCodec, ModelsAreListedWithTheirState) {
  ModelInfo model;
  model.name = "tiny";
  model.description = "llama \xff";
  model.state = ModelState::ready;
  model.bytes = 5'000'000'000;
  std::string bytes;
  append_models(bytes, FrameHead("r1"), std::vector<ModelInfo>{model});
  const boost::json::object shown = parse_frame(bytes).at("models").as_array().at(0).as_object();
  EXPECT_EQ(shown.at("name").as_string(), "tiny");
  EXPECT_EQ(shown.at("state").as_string(), "ready");
  EXPECT_EQ(shown.at("bytes").as_int64(), 5'000'000'000);
  EXPECT_EQ(shown.at("description").as_string(), "llama \ufffd") << "a model file may hold any bytes";
}

TEST(EventCodec, AMetricsFrameHasTheObjectThatSigusr1Writes) {
  MetricsSnapshot metrics;
  metrics.model = "tiny";
  std::string bytes;
  append_metrics(bytes, FrameHead("r1"), metrics);
  EXPECT_EQ(parse_frame(bytes).at("metrics"), boost::json::parse(metrics_json(metrics)));
}

TEST(EventCodec, ThoughtsAndCallsAreEventsOfTheirOwn) {
  using enum ReplyPart::Kind;
  EXPECT_EQ(boost::json::value(encoded(ReplyPart{.kind = reasoning, .text = "hm"})),
            boost::json::parse(R"({"id":"r1","event":"reasoning","text":"hm"})"));
  EXPECT_EQ(boost::json::value(encoded(ReplyPart{.kind = tool_call, .text = "{", .call = 1, .id = "x", .name = "f"})),
            boost::json::parse(R"({"id":"r1","event":"tool_call","index":1,"call_id":"x","name":"f","arguments":"{"})"));
  EXPECT_EQ(boost::json::value(encoded(ReplyPart{.kind = tool_call, .text = "}", .call = 1})),
            boost::json::parse(R"({"id":"r1","event":"tool_call","index":1,"arguments":"}"})"));
}

TEST(EventCodec, WhatIsLeftOfThemComesBeforeTheEndOrInIt) {
  EosEvent eos{FinishReason::tool_calls, {}, "", std::nullopt};
  eos.parts = {{.kind = ReplyPart::Kind::reasoning, .text = "hm"},
               {.kind = ReplyPart::Kind::tool_call, .text = "{}", .call = 0, .id = "x", .name = "f"}};
  const boost::json::object whole = encoded(eos, false);
  EXPECT_EQ(whole.at("reason").as_string(), "tool_calls");
  EXPECT_EQ(whole.at("reasoning").as_string(), "hm");
  EXPECT_EQ(whole.at("tool_calls"),
            boost::json::parse(R"([{"id":"x","type":"function","function":{"name":"f","arguments":"{}"}}])"));
  std::string bytes;
  append_event(bytes, FrameHead("r1"), eos, true);
  FrameReader reader(1'000'000);
  reader.append(bytes);
  std::vector<std::string> events;
  for (auto body = reader.next(); body && *body; body = reader.next()) {
    events.emplace_back(boost::json::parse(boost::json::string_view((*body)->data(), (*body)->size())).at("event").as_string());
  }
  EXPECT_EQ(events, (std::vector<std::string>{"reasoning", "tool_call", "eos"}));
}

TEST(EventCodec, MessagesOfASessionHaveAllTheirFields) {
  SessionDetail detail;
  detail.info.mode = SessionMode::chat;
  detail.messages = {{"tool", "7", R"({"tool_call_id":"x"})"}, {"user", "hi"}};
  std::string bytes;
  append_session_detail(bytes, FrameHead("r1"), detail);
  EXPECT_EQ(parse_frame(bytes).at("messages"),
            boost::json::parse(R"([{"role":"tool","content":"7","tool_call_id":"x"},{"role":"user","content":"hi"}])"));
}

}  // namespace
}  // namespace uma::wire
