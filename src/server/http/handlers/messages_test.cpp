// Anthropic's Messages API before a FakeService.
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/http_server_test_support.h"

namespace uma::server {
namespace {

constexpr const char* kMessages = "/v1/messages?beta=true";
constexpr const char* kCountTokens = "/v1/messages/count_tokens?beta=true";
constexpr const char* kAsk = R"({"model":"claude-x","max_tokens":8,"messages":[{"role":"user","content":"hi"}]})";
constexpr const char* kAskForStream =
    R"({"max_tokens":8,"stream":true,"stop_sequences":["END"],"messages":[{"role":"user","content":"hi"}]})";

TEST_F(HttpServerTest, AnswersAMessage) {
  start();
  HttpClient one = client();
  one.post(kMessages, kAsk);
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_EQ(generation.request.input.messages.front().content, "hi");
  EXPECT_EQ(generation.request.options.max_tokens, 8);
  EosEvent eos{FinishReason::length, {}, "hello", std::nullopt};
  eos.usage.completion_tokens = 8;
  generation.sink->deliver(eos);
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("request-id: "));
  EXPECT_THAT(answer.body, HasSubstr(R"("content":[{"type":"text","text":"hello"}],"stop_reason":"max_tokens")"));
}

TEST_F(HttpServerTest, TellsAFullContextFromTheDaemonsLimit) {
  start({.limits = {.max_tokens = 4}});
  HttpClient one = client();
  for (const auto& [tokens, reason] : {std::pair{4, "max_tokens"}, {3, "model_context_window_exceeded"}}) {
    one.post(kMessages, kAsk);
    EosEvent eos{FinishReason::length, {}, "hello", std::nullopt};
    eos.usage.completion_tokens = tokens;
    service_.next_generation().sink->deliver(eos);
    EXPECT_THAT(one.answer().body, HasSubstr(std::string(R"("stop_reason":")") + reason + "\""));
  }
}

TEST_F(HttpServerTest, StreamsAMessage) {
  start();
  HttpClient one = client();
  one.post(kMessages, kAskForStream);
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_TRUE(generation.sink->deliver(PromptReadyEvent{.prompt_tokens = 12}));
  EXPECT_THAT(*one.take_until("\r\n\r\n"), HasSubstr("Content-Type: text/event-stream"));
  const std::string first = *one.next_chunk();
  EXPECT_THAT(first, StartsWith("event: message_start\n"));
  EXPECT_THAT(first, HasSubstr(R"("input_tokens":12)"));
  EXPECT_TRUE(generation.sink->deliver(token("a")));
  EXPECT_THAT(*one.next_chunk(), HasSubstr(R"("delta":{"type":"text_delta","text":"a"})"));
  EosEvent eos{FinishReason::stop, {}, "", std::nullopt};
  eos.stop_string = "END";
  generation.sink->deliver(eos);
  const std::string last = *one.next_chunk();
  EXPECT_THAT(last, HasSubstr(R"("delta":{"stop_reason":"stop_sequence","stop_sequence":"END"})"));
  EXPECT_TRUE(last.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")) << last;
  EXPECT_EQ(one.next_chunk(), std::nullopt);
}

TEST_F(HttpServerTest, AStreamThatWaitsIsKeptAlive) {
  start({.keep_alive_interval = milliseconds(1)});
  HttpClient one = client();
  one.post(kMessages, kAskForStream);
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_TRUE(generation.sink->deliver(PromptReadyEvent{.prompt_tokens = 12}));
  EXPECT_TRUE(one.take_until("event: ping\ndata: {\"type\":\"ping\"}\n\n").has_value());
  generation.sink->deliver(eos());
  EXPECT_TRUE(one.take_until("event: message_stop").has_value());
}

TEST_F(HttpServerTest, AFailureOfAMessageHasAnthropicsForm) {
  start();
  HttpClient one = client();
  one.post(kMessages, kAskForStream);
  service_.next_generation().sink->deliver(FailureEvent{{ErrorCode::limit_prompt, "prompt is too long: 9 tokens > 7 maximum"}});
  const Answer refused = one.answer();
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.head, HasSubstr("request-id: "));
  EXPECT_THAT(
      refused.body,
      StartsWith(R"({"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 7)"));
  EXPECT_THAT(refused.body, HasSubstr(R"("request_id":")"));
  one.post(kMessages, kAskForStream);
  const FakeService::Generation generation = service_.next_generation();
  generation.sink->deliver(token("a"));
  generation.sink->deliver(EosEvent{FinishReason::error, {}, "", Error{ErrorCode::limit_wait, "too late"}});
  EXPECT_THAT(
      one.answer().body,
      HasSubstr("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"too late\""));
  one.post(kMessages, R"({"messages":7})");
  EXPECT_THAT(one.answer().body, HasSubstr(R"("uma":{"code":"E_PROTO_003","param":"messages"})"));
}

TEST_F(HttpServerTest, ErrorsOfTheConnectionHaveAnthropicsForm) {
  HttpServerOptions options{.keys = {key_named("ci")}};
  options.limits.max_frame_bytes = 100;
  start(options);
  HttpClient one = client();
  one.post(kMessages, kAsk);
  const Answer unknown = one.answer();
  EXPECT_EQ(unknown.status, 401);
  EXPECT_THAT(unknown.body, HasSubstr(R"("type":"authentication_error")"));
  HttpClient two = client();
  two.post(kMessages, std::string(101, ' '), "x-api-key: secret\r\n");
  const Answer large = two.answer();
  EXPECT_EQ(large.status, 413);
  EXPECT_THAT(large.body, HasSubstr(R"("type":"request_too_large")"));
  HttpClient three = client();
  three.get("/v1/messages/count_tokens/x", "x-api-key: secret\r\n");
  EXPECT_THAT(three.answer().body, StartsWith(R"({"type":"error","error":{"type":"not_found_error")"));
  three.get("/v1/messagesx", "x-api-key: secret\r\n");
  EXPECT_THAT(three.answer().body, StartsWith(R"({"error":{"message":)"));
}

TEST_F(HttpServerTest, CountsTheTokensOfAMessage) {
  start();
  HttpClient one = client();
  one.post(kCountTokens, R"({"system":"s","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(one.answer().body, R"({"input_tokens":20})");
  one.post(kCountTokens, R"({"model":"missing","messages":[{"role":"user","content":"hi"}]})");
  const Answer unknown = one.answer();
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(unknown.body, HasSubstr(R"("type":"not_found_error")"));
}

TEST_F(HttpServerTest, CountsNoTokensForAClientThatLeft) {
  start();
  {
    HttpClient one = client();
    one.post(kCountTokens, R"({"model":"slow","messages":[{"role":"user","content":"hi"}]})");
    EXPECT_TRUE(becomes([&] { return service_.counting().has_value(); }));
    EXPECT_FALSE(service_.counting()->stop_requested());
  }
  EXPECT_TRUE(becomes([&] { return service_.counting()->stop_requested(); }));
}

TEST_F(HttpServerTest, SaysWhatItLeftOut) {
  start();
  HttpClient one = client();
  one.post(kCountTokens,
           R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"web_search_20250305","name":"web_search"},)"
           R"({"name":"look","input_schema":{}}]})");
  EXPECT_THAT(one.answer().head,
              HasSubstr("x-uma-warning: tools left out, because Anthropic's servers run them: web_search\r\n"));
}

TEST_F(HttpServerTest, AnswersWhoAsksWhetherThereIsAServer) {
  start();
  HttpClient one = client();
  one.send("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(*one.take_until("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK"));
  one.get("/");
  EXPECT_EQ(one.answer().body, "Ollama is running");
}

constexpr const char* kThreadsBeta = "anthropic-beta: a\r\nanthropic-beta: b, message-threads-2026-08-12\r\n";
constexpr const char* kBeginThread =
    R"({"max_tokens":8,"messages":[{"role":"user","content":"hi"}],"system":"s","thread":{"type":"create"}})";

std::string continuing(const std::string& previous, const std::string& fields = "") {
  return R"({"messages":[{"role":"user","content":"more"}],)" + fields +
         R"("thread":{"type":"continue","previous_message_id":")" + previous + "\"}}";
}

TEST_F(HttpServerTest, AMessageBeginsAThread) {
  start();
  HttpClient one = client();
  one.post(kMessages, kBeginThread, kThreadsBeta);
  const FakeService::Generation generation = service_.next_generation();
  ASSERT_TRUE(generation.request.response);
  EXPECT_TRUE(generation.request.response->is_kept);
  EXPECT_EQ(generation.request.response->ttl_s, 30 * 86'400);
  EXPECT_EQ(generation.request.input.messages.front().role, "system");
  const std::string session(32, 'a');
  generation.sink->deliver(ResponseBegunEvent{.session = SessionId{session}, .turn = 0, .number = 1});
  generation.sink->deliver(EosEvent{FinishReason::stop, {}, "hello", std::nullopt});
  EXPECT_THAT(one.answer().body, StartsWith(R"({"id":"msg_)" + session + generation.request.response->id + "\""));
}

TEST_F(HttpServerTest, AMessageContinuesAThread) {
  start();
  service_.store_response("0123456789abcdef", R"({"store":true,"thread":{"system_bytes":0,"tools":""})");
  HttpClient one = client();
  const std::string previous = "msg_" + std::string(32, 'a') + "0123456789abcdef";
  one.post(kMessages, continuing(previous, R"("stream":true,)"), kThreadsBeta);
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_EQ(generation.request.session, std::string(32, 'a'));
  EXPECT_EQ(generation.request.response->previous, "0123456789abcdef");
  EXPECT_EQ(generation.request.model, "") << "the thread's";
  const std::string fork(32, 'b');
  generation.sink->deliver(ResponseBegunEvent{.session = SessionId{fork}, .turn = 1, .number = 1, .model = "m"});
  generation.sink->deliver(PromptReadyEvent{.prompt_tokens = 12});
  generation.sink->deliver(eos());
  EXPECT_THAT(one.answer().body, HasSubstr(R"({"id":"msg_)" + fork + generation.request.response->id +
                                           R"(","type":"message","role":"assistant","model":"m")"));
}

TEST_F(HttpServerTest, AThreadThatCannotGoOnSaysSoInAnthropicsForm) {
  start();
  service_.store_response("0123456789abcdef", R"({"store":true,"thread":{"system_bytes":0,"tools":""})");
  const std::string known = "msg_" + std::string(32, 'a') + "0123456789abcdef";
  HttpClient one = client();
  const auto refusal = [&](const std::string& body, const std::string& header = kThreadsBeta) {
    one.post(kMessages, body, header);
    const Answer answer = one.answer();
    return std::to_string(answer.status) + answer.body;
  };
  for (const std::string& unknown : {std::string("msg_1"), "msg_" + std::string(48, 'a'), "resp_" + known.substr(4)}) {
    EXPECT_THAT(refusal(continuing(unknown)), StartsWith(R"(404{"type":"error","error":{"type":"not_found_error")")) << unknown;
    EXPECT_THAT(refusal(continuing(unknown)), HasSubstr(R"("details":{"error_code":"thread_not_found"})")) << unknown;
  }
  EXPECT_THAT(refusal(continuing(known, R"("system":"another",)")),
              HasSubstr(R"("details":{"error_code":"thread_fingerprint_mismatch"})"));
  EXPECT_THAT(refusal(kBeginThread, ""), StartsWith("400"));
  EXPECT_THAT(refusal(kBeginThread, "anthropic-beta: a\r\n"),
              HasSubstr("needs the header anthropic-beta: message-threads-2026-08-12"));
  one.post(kCountTokens, kBeginThread, kThreadsBeta);
  EXPECT_THAT(one.answer().body, HasSubstr(R"("details":{"error_code":"thread_unsupported_request"})"));
  // The message was deleted, or its session has ended, after it was looked up.
  one.post(kMessages, continuing(known), kThreadsBeta);
  service_.next_generation().sink->deliver(FailureEvent{{ErrorCode::session_unknown, "no such response"}});
  EXPECT_THAT(one.answer().body, HasSubstr(R"("details":{"error_code":"thread_not_found"})"));
}

}  // namespace
}  // namespace uma::server
