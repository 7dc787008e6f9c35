#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/http_server_test_support.h"
#include "server/live_feed.h"

namespace uma::server {
namespace {

class LiveHttpTest : public HttpServerTest {
 protected:
  LiveHttpTest() { live_.start(); }
  ~LiveHttpTest() override { server_.reset(); }  // Before the feed.
  void start_live(HttpServerOptions options = {}) {
    options.live = &live_;
    start(std::move(options));
  }

  LiveFeed live_{service_};
};

TEST_F(LiveHttpTest, StreamsTheHistoryAndSnapshots) {
  start_live();
  HttpClient one = client();
  one.get("/v1/events?interval_ms=100&history_s=60");
  const auto head = one.take_until("\r\n\r\n");
  ASSERT_TRUE(head.has_value());
  EXPECT_THAT(*head, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(*head, HasSubstr("Content-Type: text/event-stream"));
  const auto history = one.next_chunk();
  ASSERT_TRUE(history.has_value());
  EXPECT_THAT(*history, StartsWith("event: history\ndata: {\"names\":"));
  const auto snapshot = one.next_chunk();
  ASSERT_TRUE(snapshot.has_value());
  EXPECT_THAT(*snapshot, StartsWith("event: snapshot\ndata: {\"unix_ms\":"));
  EXPECT_TRUE(snapshot->ends_with("}\n\n"));
}

TEST_F(LiveHttpTest, HeadHasNoEvents) {
  start_live();
  HttpClient one = client();
  one.send("HEAD /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(*one.take_until("\r\n\r\n"), HasSubstr("Connection: keep-alive\r\n"));
  EXPECT_EQ(one.answer().status, 200);
}

TEST_F(LiveHttpTest, RefusesNumbersBeyondTheLimits) {
  start_live();
  for (const char* query : {"interval_ms=99", "interval_ms=10001", "interval_ms=x", "history_s=-1", "history_s=3601"}) {
    HttpClient one = client();
    one.get(std::string("/v1/events?") + query);
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 400) << query;
    EXPECT_THAT(answer.body, HasSubstr("must be a number from")) << query;
  }
}

TEST_F(LiveHttpTest, CountsAsOneRequestOfAKey) {
  ApiKey key = key_named("ci");
  key.requests_per_minute = 1;
  start_live({.keys = {key}});
  HttpClient one = client();
  one.get("/v1/events", "Authorization: Bearer secret\r\n");
  ASSERT_TRUE(one.take_until("\r\n\r\n").has_value());
  EXPECT_TRUE(one.next_chunk().has_value());
  EXPECT_TRUE(one.next_chunk().has_value());
  HttpClient two = client();
  two.get("/v1/events", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(two.answer().status, 429);
  HttpClient stranger = client();
  stranger.get("/v1/events");
  EXPECT_EQ(stranger.answer().status, 401);
}

TEST_F(LiveHttpTest, ShutdownWaitsForNoWatcherAndEndsTheStream) {
  start_live();
  HttpClient one = client();
  one.get("/v1/events");
  ASSERT_TRUE(one.take_until("\r\n\r\n").has_value());
  EXPECT_TRUE(one.next_chunk().has_value());
  EXPECT_TRUE(server_->wait_idle(milliseconds(0)));
  live_.close();
  server_->stop_accepting();
  while (one.next_chunk()) {
  }
  server_->stop();
  EXPECT_TRUE(one.has_ended());
}

TEST_F(LiveHttpTest, IsNotServedWithoutAFeed) {
  start();
  HttpClient one = client();
  one.get("/v1/events");
  EXPECT_EQ(one.answer().status, 503);
}

}  // namespace
}  // namespace uma::server
