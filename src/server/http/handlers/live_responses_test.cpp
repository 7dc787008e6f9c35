#include "server/http/handlers/live_responses.h"

#include <format>
#include <memory>
#include <string>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/http_server_test_support.h"

namespace uma::server {
namespace {

const TenantId kOne{"one"};
const TenantId kOther{"other"};

void keep(LiveResponses& responses, const std::string& id, const TenantId& tenant, std::string json = "{}") {
  responses.begin(id, tenant, "{}", responses.make_log(tenant));
  responses.keep_ended(id, std::move(json));
}

TEST(LiveResponses, EachTenantSeesItsOwn) {
  LiveResponses responses;
  const auto log = responses.make_log(kOne);
  responses.begin("r", kOne, "begun", log);
  EXPECT_EQ(responses.find("r", kOne), "begun");
  EXPECT_EQ(responses.find("r", kOther), "");
  EXPECT_EQ(responses.find_log("r", kOne), log);
  EXPECT_EQ(responses.find_log("r", kOther), nullptr);
  EXPECT_FALSE(responses.forget_ended("r", kOne)) << "in progress";
  responses.keep_ended("r", "ended");
  EXPECT_EQ(responses.find("r", kOne), "ended");
  EXPECT_FALSE(responses.forget_ended("r", kOther));
  EXPECT_TRUE(responses.forget_ended("r", kOne));
  EXPECT_EQ(responses.find("r", kOne), "");
}

TEST(LiveResponses, ATenantLosesOnlyItsOwn) {
  LiveResponses responses;
  keep(responses, "first", kOne);
  for (int i = 0; i < 300; ++i) keep(responses, std::format("r{}", i), kOther);
  EXPECT_EQ(responses.find("first", kOne), "{}");
  EXPECT_EQ(responses.find("r0", kOther), "") << "the oldest one of the tenant with the most";
  EXPECT_EQ(responses.find("r299", kOther), "{}");
  keep(responses, "large", kOther, std::string(15 << 20, 'x'));
  EXPECT_EQ(responses.find("first", kOne), "{}");
  EXPECT_EQ(responses.find("large", kOther).size(), 15U << 20);
  keep(responses, "too large", kOther, std::string(17 << 20, 'x'));
  EXPECT_EQ(responses.find("too large", kOther), "");
  EXPECT_EQ(responses.find("first", kOne), "{}");
}

class BackgroundTest : public HttpServerTest {
 protected:
  // Starts a response in the background and gives it a place. Its id is id_.
  FakeService::Generation begin(HttpClient& client, const std::string& instructions = "") {
    client.post("/v1/responses", R"({"input":"hi","background":true,"instructions":")" + instructions + "\"}");
    FakeService::Generation generation = service_.next_generation();
    EXPECT_TRUE(generation.sink->deliver(ResponseBegunEvent{.session = SessionId{std::string(32, 'a')}}));
    const Answer answer = client.answer();
    EXPECT_EQ(answer.status, 200) << answer.body;
    id_ = boost::json::parse(answer.body).at("id").as_string();
    return generation;
  }
  std::string path() const { return "/v1/responses/" + id_; }

  std::string id_;
};

TEST_F(BackgroundTest, IsChargedToItsTenantAndKeepsTheServerBusy) {
  start();
  HttpClient one = client();
  FakeService::Generation generation = begin(one, std::string(100'000, 'x'));
  EXPECT_GT(service_.request_bytes(), 200'000U) << "the encoder and the JSON";
  EXPECT_FALSE(server_->wait_idle(milliseconds(1)));
  generation.sink->deliver(eos());
  generation.sink.reset();
  EXPECT_EQ(service_.request_bytes(), 0U);
  EXPECT_TRUE(server_->wait_idle(kPatience));
}

TEST(Responses, AreRefusedWithoutMemory) {
  FakeService small(700'000);
  auto server = HttpServer::start({}, small);
  ASSERT_TRUE(server.has_value());
  HttpClient one((*server)->port());
  for (const char* where : {"true", "false"}) {
    one.post("/v1/responses",
             R"({"input":"hi","instructions":")" + std::string(300'000, 'x') + R"(","background":)" + where + "}");
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 503) << where;
    EXPECT_THAT(answer.body, HasSubstr("more bytes"));
  }
}

TEST_F(BackgroundTest, CancelledBeforeItsFirstTextItIsCancelledForEverybody) {
  start();
  HttpClient one = client();
  FakeService::Generation generation = begin(one);
  generation.sink->deliver(eos(FinishReason::cancelled));
  one.post(path() + "/cancel", "");
  for (int i = 0; i < 2; ++i) {
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(boost::json::parse(answer.body).at("status"), "cancelled");
    if (i == 0) one.get(path());
  }
  one.send("DELETE " + path() + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(one.answer().body, HasSubstr(R"("deleted":true)"));
  one.get(path());
  EXPECT_EQ(one.answer().status, 404);
}

TEST_F(BackgroundTest, StoredOnesAreFoundWhereTheyAreStored) {
  start();
  HttpClient one = client();
  FakeService::Generation generation = begin(one);
  Event ended = eos(FinishReason::cancelled);
  std::get<EosEvent>(ended).usage.completion_tokens = 1;
  generation.sink->deliver(ended);
  one.get(path());
  EXPECT_EQ(one.answer().status, 404) << "the service does not know it";
}

TEST_F(BackgroundTest, AReplyThatFailedAfterItsFirstTextIsDeletedWhereverItIs) {
  start();
  HttpClient one = client();
  FakeService::Generation generation = begin(one);
  service_.store_response(id_.substr(id_.size() - 16));
  Event ended = eos(FinishReason::error);
  std::get<EosEvent>(ended).usage.completion_tokens = 1;
  std::get<EosEvent>(ended).error = Error{ErrorCode::runtime_decode, "decode failed"};
  generation.sink->deliver(ended);
  one.get(path());
  EXPECT_EQ(boost::json::parse(one.answer().body).at("status"), "failed");
  one.send("DELETE " + path() + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(one.answer().body, HasSubstr(R"("deleted":true)"));
  one.get(path());
  EXPECT_EQ(one.answer().status, 404) << "its turn is forgotten, too";
}

const Event kPlace = ResponseBegunEvent{.session = SessionId{std::string(32, 'a')}};
const std::string kSessionId(32, 'a');
constexpr const char* kResponses = "/v1/responses";

// A response with a stream, which others read, too.
class SharedResponseTest : public HttpServerTest {
 protected:
  // Starts a response and gives it a place. Its id is id_.
  FakeService::Generation begin(HttpClient& client, const std::string& fields) {
    client.post(kResponses, R"({"input":"hi",)" + fields + "}");
    FakeService::Generation generation = service_.next_generation();
    id_ = "resp_" + kSessionId + generation.request.response.value().id;
    EXPECT_TRUE(generation.sink->deliver(kPlace));
    EXPECT_TRUE(generation.sink->deliver(PromptReadyEvent{.prompt_tokens = 3}));
    return generation;
  }
  void attach(HttpClient& client, const std::string& query = "") {
    client.get(std::string(kResponses) + "/" + id_ + "?stream=true" + query);
  }
  static void expect_stream(HttpClient& client) {
    const std::string head = client.take_until("\r\n\r\n").value_or("");
    EXPECT_TRUE(head.starts_with("HTTP/1.1 200 ") && head.contains("text/event-stream")) << head;
  }
  // The events up to the chunk that has `text`, without comments; empty: to the end.
  static std::string read_until(HttpClient& client, const std::string& text = "") {
    std::string events;
    while (text.empty() || !events.contains(text)) {
      const auto chunk = client.next_chunk();
      if (!chunk) break;
      if (!chunk->starts_with(": ")) events += *chunk;
    }
    EXPECT_THAT(events, HasSubstr(text));
    return events;
  }
  static std::string behind_event(const std::string& events, int number) {
    const std::size_t at = events.find(std::format(R"("sequence_number":{},)", number));
    EXPECT_NE(at, std::string::npos) << events;
    return events.substr(events.find("\n\n", at) + 2);
  }
  static void finish(FakeService::Generation& generation) {
    Event ended = eos();
    std::get<EosEvent>(ended).usage.completion_tokens = 2;
    EXPECT_TRUE(generation.sink->deliver(ended));
    generation.sink.reset();
  }

  std::string id_;
};

TEST_F(SharedResponseTest, WhoeverAttachesGetsTheSameEvents) {
  start();
  for (const char* fields : {R"("stream":true)", R"("stream":true,"background":true)"}) {
    HttpClient first = client();
    HttpClient second = client();
    HttpClient third = client();
    FakeService::Generation generation = begin(first, fields);
    EXPECT_TRUE(generation.sink->deliver(ReplyPart{.kind = ReplyPart::Kind::reasoning, .text = "hm"}));
    EXPECT_TRUE(generation.sink->deliver(token("Hel")));
    attach(second);
    attach(third, "&starting_after=4");
    for (HttpClient* each : {&first, &second, &third}) expect_stream(*each);
    const std::string before = read_until(second, "Hel");
    EXPECT_TRUE(generation.sink->deliver(token("lo")));
    finish(generation);
    const std::string events = read_until(first);
    EXPECT_THAT(events, HasSubstr("response.completed"));
    EXPECT_EQ(before + read_until(second), events);
    EXPECT_EQ(read_until(third), behind_event(events, 4));
    second.get(std::string(kResponses) + "/" + id_);
    EXPECT_EQ(second.answer().status, 404) << "nobody has stored it here";
  }
}

TEST_F(SharedResponseTest, InTheBackgroundItGoesOnWithoutItsClient) {
  start();
  HttpClient first = client();
  FakeService::Generation generation = begin(first, R"("stream":true,"background":true)");
  EXPECT_TRUE(generation.sink->deliver(token("Hel")));
  expect_stream(first);
  (void)read_until(first, "Hel");
  first.close();
  HttpClient second = client();
  second.get(std::string(kResponses) + "/" + id_);
  EXPECT_THAT(second.answer().body, HasSubstr(R"("status":"in_progress")"));
  attach(second);
  expect_stream(second);
  (void)read_until(second, "Hel");
  EXPECT_TRUE(generation.sink->deliver(token("lo")));
  finish(generation);
  EXPECT_THAT(read_until(second), HasSubstr("response.completed"));
  EXPECT_TRUE(service_.cancelled().empty());
}

TEST_F(SharedResponseTest, OneThatIsNoStreamIsReadAtItsEnd) {
  start();
  HttpClient first = client();
  HttpClient second = client();
  FakeService::Generation generation = begin(first, R"("stream":false)");
  attach(second);
  expect_stream(second);
  (void)read_until(second, "response.in_progress");
  Event ended = eos();
  std::get<EosEvent>(ended).text = "Hello";
  EXPECT_TRUE(generation.sink->deliver(ended));
  EXPECT_THAT(first.answer().body, HasSubstr("Hello"));
  const std::string rest = read_until(second);
  EXPECT_THAT(rest, HasSubstr("response.output_text.delta"));
  EXPECT_THAT(rest, HasSubstr("response.completed"));
}

TEST_F(SharedResponseTest, ReadersLearnOfAFailure) {
  start();
  for (const char* fields : {R"("stream":false)", R"("stream":true)"}) {
    HttpClient first = client();
    HttpClient second = client();
    first.post(kResponses, std::string(R"({"input":"hi",)") + fields + "}");
    FakeService::Generation generation = service_.next_generation();
    id_ = "resp_" + kSessionId + generation.request.response.value().id;
    EXPECT_TRUE(generation.sink->deliver(kPlace));
    attach(second);
    expect_stream(second);
    generation.sink->deliver(FailureEvent{{ErrorCode::limit_wait, "too late"}});
    EXPECT_EQ(first.answer().status, 503);
    const std::string rest = read_until(second);
    EXPECT_THAT(rest, HasSubstr("response.failed"));
    EXPECT_THAT(rest, HasSubstr("too late"));
  }
}

TEST_F(SharedResponseTest, AStreamFromTheBackgroundBeginsWithAStatusOrAnEvent) {
  start({.keep_alive_interval = milliseconds(1)});
  HttpClient waiting = client();
  waiting.post(kResponses, R"({"input":"hi","stream":true,"background":true})");
  FakeService::Generation generation = service_.next_generation();
  expect_stream(waiting);
  generation.sink->deliver(FailureEvent{{ErrorCode::limit_wait, "too late"}});
  EXPECT_THAT(read_until(waiting), HasSubstr("response.failed"));
  server_.reset();

  start();
  HttpClient refused = client();
  refused.post(kResponses, R"({"input":"hi","stream":true,"background":true,"conversation":"conv_)" + kSessionId + "\"}");
  service_.next_generation().sink->deliver(FailureEvent{{ErrorCode::session_unknown, "no session"}});
  const Answer answer = refused.answer();
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(boost::json::parse(answer.body).at("error").at("param"), "conversation");
}

TEST_F(SharedResponseTest, AnotherTenantDoesNotSeeIt) {
  ApiKey other = key_named("other");
  other.digest = sha256("another");
  start({.keys = {key_named("one"), other}});
  HttpClient mine = client();
  mine.send(
      "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\nContent-Length: 39\r\n\r\n"
      R"({"input":"hi","stream":true,"seed":1  })");
  FakeService::Generation generation = service_.next_generation();
  id_ = "resp_" + kSessionId + generation.request.response.value().id;
  EXPECT_TRUE(generation.sink->deliver(kPlace));
  HttpClient one = client();
  for (const char* query : {"", "?stream=true"}) {
    one.send(
        std::format("GET /v1/responses/{}{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer another\r\n\r\n", id_, query));
    EXPECT_EQ(one.answer().status, 404) << query;
  }
  one.send(std::format("GET /v1/responses/{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n", id_));
  EXPECT_EQ(one.answer().status, 200);
}

TEST_F(SharedResponseTest, AStoredOneIsToldAsEvents) {
  start();
  id_ = "resp_" + kSessionId + "0123456789abcdef";
  HttpClient one = client();
  attach(one);
  const std::string events = one.answer().body;
  EXPECT_TRUE(events.starts_with("event: response.created\n")) << events;
  EXPECT_THAT(events, HasSubstr(R"("delta":"four")"));
  attach(one, "&starting_after=41");
  const std::string last = one.answer().body;
  EXPECT_TRUE(last.starts_with("event: response.completed\n") && last.contains(R"("sequence_number":42)")) << last;
  EXPECT_EQ(last.find("\n\n"), last.size() - 2) << "one event";
  for (const char* query : {"&starting_after=-1", "&starting_after=x", "&stream=true&starting_after=99999999999999999999"}) {
    attach(one, query);
    EXPECT_EQ(one.answer().status, 400) << query;
  }
}

}  // namespace
}  // namespace uma::server
