#include "server/http/background_responses.h"

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

void keep(BackgroundResponses& responses, const std::string& id, const TenantId& tenant, std::string json = "{}") {
  responses.begin(id, tenant, "{}");
  responses.keep_ended(id, std::move(json));
}

TEST(BackgroundResponses, EachTenantSeesItsOwn) {
  BackgroundResponses responses;
  responses.begin("r", kOne, "begun");
  EXPECT_EQ(responses.find("r", kOne), "begun");
  EXPECT_EQ(responses.find("r", kOther), "");
  EXPECT_FALSE(responses.forget_ended("r", kOne)) << "in progress";
  responses.keep_ended("r", "ended");
  EXPECT_EQ(responses.find("r", kOne), "ended");
  EXPECT_FALSE(responses.forget_ended("r", kOther));
  EXPECT_TRUE(responses.forget_ended("r", kOne));
  EXPECT_EQ(responses.find("r", kOne), "");
}

TEST(BackgroundResponses, ATenantLosesOnlyItsOwn) {
  BackgroundResponses responses;
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

}  // namespace
}  // namespace uma::server
