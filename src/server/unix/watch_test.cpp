#include <optional>

#include <gtest/gtest.h>

#include "server/live_feed.h"
#include "server/unix/unix_server_test_support.h"

namespace uma::server {
namespace {

class WatchTest : public UnixServerTest {
 protected:
  WatchTest() {
    live_.start();
    start({.live = &live_});
  }
  ~WatchTest() override { server_.reset(); }  // Before the feed.

  LiveFeed live_{service_};
};

constexpr const char* kWatch = R"({"id":"w","type":"watch","interval_ms":100,"history_s":0})";

TEST_F(WatchTest, SendsTheHistoryAndSnapshotsUntilItIsCancelled) {
  TestClient client(path());
  client.send_json(kWatch);
  const auto history = client.receive();
  ASSERT_TRUE(history.has_value());
  EXPECT_EQ(history->at("event"), "history");
  EXPECT_EQ(history->at("history").at("points").as_array().size(), 0u);
  const auto snapshot = client.receive();
  ASSERT_TRUE(snapshot.has_value());
  EXPECT_EQ(snapshot->at("id"), "w");
  EXPECT_EQ(snapshot->at("event"), "snapshot");
  EXPECT_EQ(snapshot->at("snapshot").at("queue_depth"), 0);
  client.send_json(R"({"id":"c","type":"cancel","target":"w"})");
  boost::json::object next = client.receive().value();
  while (next.at("event") == "snapshot") next = client.receive().value();
  EXPECT_EQ(next.at("event"), "watch_end");
  const auto ack = client.receive();
  ASSERT_TRUE(ack.has_value());
  EXPECT_EQ(ack->at("id"), "c");
  EXPECT_EQ(ack->at("cancelled"), true);
  client.send_json(kWatch);
  EXPECT_EQ(client.receive_field("event"), "history") << "the id is free again";
}

TEST_F(WatchTest, AConnectionWatchesOnce) {
  TestClient client(path());
  client.send_json(kWatch);
  EXPECT_EQ(client.receive_field("event"), "history");
  client.send_json(R"({"id":"v","type":"watch"})");
  boost::json::object next = client.receive().value();
  while (next.at("event") == "snapshot") next = client.receive().value();
  EXPECT_EQ(next.at("id"), "v");
  EXPECT_EQ(next.at("code"), "E_LIMIT_003");
}

TEST_F(WatchTest, OtherRequestsAreAnsweredBesideIt) {
  TestClient client(path());
  client.send_json(kWatch);
  for (int i = 0; i < 20; ++i) {
    client.send_json(R"({"id":"p","type":"ping"})");
    while (client.receive_field("id") != "p") {
    }
  }
}

TEST_F(WatchTest, GoesOnAfterTheClientHasEndedItsInput) {
  TestClient client(path());
  client.send_json(kWatch);
  client.end_sending();
  EXPECT_EQ(client.receive_field("event"), "history");
  EXPECT_EQ(client.receive_field("event"), "snapshot");
}

TEST_F(WatchTest, ShutdownWaitsForNoWatcherAndEndsIt) {
  TestClient client(path());
  client.send_json(kWatch);
  EXPECT_EQ(client.receive_field("event"), "history");
  EXPECT_TRUE(server_->wait_idle(kPatience));
  live_.close();
  server_->stop_accepting();
  boost::json::object next = client.receive().value();
  while (next.at("event") == "snapshot") next = client.receive().value();
  EXPECT_EQ(next.at("event"), "watch_end");
}

}  // namespace
}  // namespace uma::server
