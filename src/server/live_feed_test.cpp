#include "server/live_feed.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/json/parse.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/system/thread_name.h"
#include "server/live_history.h"
#include "server/service_test_support.h"

namespace uma::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Optional;

constexpr TraceKind kDecodeCall{.name = "decode", .numbers = {"rows", "sequences", "predicted_us", "pause_us"}};

TimePoint at_s(std::int64_t s) {
  return TimePoint(seconds(s));
}

// A client that waits for the feed to wake it.
class Client {
 public:
  void watch(LiveFeed& feed, const std::string& tenant, wire::LiveRequest request, bool is_administrator = false) {
    auto begun =
        feed.watch({.is_administrator = is_administrator, .tenant = tenant}, request, [wakes = wakes_] { wakes->add(); });
    ASSERT_TRUE(begun.has_value()) << begun.error().message;
    watcher_ = std::move(*begun);
  }
  LiveWatcher::News take() { return watcher_->take(); }
  // The next snapshot.
  boost::json::object snapshot() {
    while (true) {
      const LiveWatcher::News news = watcher_->take();
      if (!news.snapshot.empty()) return boost::json::parse(news.snapshot).as_object();
      if (news.is_end || !wakes_->wait()) {
        ADD_FAILURE() << "no snapshot";
        return {};
      }
    }
  }

 private:
  class Wakes {
   public:
    void add() {
      const MutexLock lock(mutex_);
      ++count_;
      changed_.notify_all();
    }
    bool wait() {
      const MutexLock lock(mutex_);
      const auto deadline = std::chrono::steady_clock::now() + kPatience;
      while (count_ == taken_) {
        if (std::chrono::steady_clock::now() >= deadline) return false;
        changed_.wait_until(mutex_, deadline);
      }
      taken_ = count_;
      return true;
    }

   private:
    Mutex mutex_;
    CondVar changed_;
    int count_ GUARDED_BY(mutex_) = 0;
    int taken_ GUARDED_BY(mutex_) = 0;
  };

  std::shared_ptr<Wakes> wakes_ = std::make_shared<Wakes>();  // Shared with the feed.
  std::unique_ptr<LiveWatcher> watcher_;
};

class LiveFeedTest : public ::testing::Test {
 protected:
  LiveFeedTest() { feed_.start(); }

  FakeService service_;
  LiveFeed feed_{service_};
};

ActivitySnapshot one_waits(std::uint64_t request, const std::string& tenant) {
  ActivitySnapshot activity;
  activity.waiting = {{.request = {request}, .model = "m", .tenant = tenant, .stage = WaitStage::loading}};
  activity.waiting_count = 1;
  return activity;
}

TEST_F(LiveFeedTest, SendsTheHistoryOnceAndThenSnapshots) {
  Client client;
  client.watch(feed_, "a", {.interval = milliseconds(100)});
  EXPECT_THAT(client.take().history, HasSubstr(R"("points":[)"));
  service_.set_activity(one_waits(1, "a"));
  const auto first = client.snapshot();
  EXPECT_EQ(first.at("queue").as_array().at(0).at("request"), "1");
  EXPECT_GT(first.at("unix_ms").to_number<double>(), 1e12);
  service_.set_activity(one_waits(2, "a"));
  while (client.snapshot().at("queue").as_array().at(0).at("request") != "2") {
  }
  EXPECT_EQ(client.take().history, "");
}

TEST_F(LiveFeedTest, EachAudienceSeesItsOwn) {
  service_.set_activity(one_waits(1, "a"));
  Client own;
  Client other;
  Client administrator;
  own.watch(feed_, "a", {});
  other.watch(feed_, "b", {});
  administrator.watch(feed_, "b", {}, true);
  EXPECT_EQ(own.snapshot().at("queue").as_array().at(0).at("tenant"), "a");
  EXPECT_EQ(other.snapshot().at("queue").as_array().at(0).at("tenant"), "other");
  EXPECT_EQ(administrator.snapshot().at("queue").as_array().at(0).at("tenant"), "a");
}

void record_calls(const char* thread, std::vector<std::int64_t> rows, const char* model = "") {
  std::thread([&] {
    set_thread_name(thread);
    set_trace_owner(model);
    TimePoint began = SteadyClock().now();
    for (const std::int64_t each : rows) {
      began += milliseconds(1);
      record_span(kDecodeCall, began, began + milliseconds(each), {each, 1, 0, 1000 * each});
    }
  }).join();
}

// The rows of the calls of a lane, in all snapshots until there are `count`.
std::vector<std::int64_t> rows_of(Client& client, std::string_view lane, std::size_t count) {
  std::vector<std::int64_t> rows;
  while (rows.size() < count && !::testing::Test::HasFailure()) {
    const boost::json::object snapshot = client.snapshot();
    if (!snapshot.contains("calls")) break;
    for (const auto& call : snapshot.at("calls").as_array()) {
      if (call.at("lane").as_string() == boost::json::string_view(lane.data(), lane.size()))
        rows.push_back(call.at("rows").to_number<std::int64_t>());
    }
  }
  return rows;
}

TEST_F(LiveFeedTest, AWatcherThatComesLessOftenMissesNoCall) {
  Client often;
  Client seldom;
  often.watch(feed_, "a", {.interval = milliseconds(100)});
  seldom.watch(feed_, "a", {.interval = milliseconds(400)});
  (void)often.snapshot();
  (void)seldom.snapshot();
  record_calls("uma-lane-71", {1});
  EXPECT_EQ(rows_of(often, "lane-71", 1), (std::vector<std::int64_t>{1}));
  record_calls("uma-lane-72", {2, 3});
  EXPECT_EQ(rows_of(often, "lane-72", 2), (std::vector<std::int64_t>{2, 3}));
  std::vector<std::int64_t> both;
  while (both.size() < 3 && !HasFailure()) {
    const boost::json::object snapshot = seldom.snapshot();
    if (!snapshot.contains("calls")) break;
    for (const auto& call : snapshot.at("calls").as_array()) {
      if (call.at("lane").as_string().starts_with("lane-7")) both.push_back(call.at("rows").to_number<std::int64_t>());
    }
  }
  EXPECT_EQ(both, (std::vector<std::int64_t>{1, 2, 3}));
}

TEST_F(LiveFeedTest, LanesOfSeveralModelsAreToldApart) {
  Client client;
  client.watch(feed_, "a", {.interval = milliseconds(100)});
  (void)client.snapshot();
  for (const char* model : {"big", "small", ""}) {
    record_calls("uma-lane-80", {1}, model);
    std::string found = "none";
    while (found == "none" && !HasFailure()) {
      const boost::json::object snapshot = client.snapshot();
      if (!snapshot.contains("calls")) break;
      for (const auto& call : snapshot.at("calls").as_array()) {
        if (call.at("lane").as_string() != "lane-80") continue;
        found = call.as_object().contains("model") ? call.at("model").as_string().c_str() : "";
      }
    }
    EXPECT_EQ(found, model);
  }
}

TEST_F(LiveFeedTest, BoundsTheWatchers) {
  std::vector<Client> clients(LiveFeed::kWatchersMax - LiveFeed::kAdministratorPlaces);
  for (std::size_t i = 0; i < clients.size(); ++i)
    clients[i].watch(feed_, std::to_string(i / LiveFeed::kTenantWatchersMax), {});
  EXPECT_FALSE(feed_.watch({.tenant = "next"}, {}, [] {}).has_value());
  std::vector<Client> administrators(LiveFeed::kAdministratorPlaces);
  for (Client& administrator : administrators) administrator.watch(feed_, "0", {}, /*is_administrator=*/true);
  EXPECT_FALSE(feed_.watch({.is_administrator = true, .tenant = "1"}, {}, [] {}).has_value()) << "there are no more places";
  administrators.clear();
  clients.pop_back();
  EXPECT_TRUE(feed_.watch({.tenant = "next"}, {}, [] {}).has_value());
  const auto refused = feed_.watch({.tenant = "0"}, {}, [] {});
  ASSERT_FALSE(refused.has_value()) << "a tenant has a share";
  EXPECT_EQ(refused.error().code, ErrorCode::limit_wait);
}

TEST_F(LiveFeedTest, EndsWithTheDaemon) {
  Client client;
  client.watch(feed_, "a", {});
  EXPECT_FALSE(client.take().is_end);
  feed_.close();
  EXPECT_TRUE(client.take().is_end);
  EXPECT_FALSE(feed_.watch({}, {}, [] {}).has_value());
}

TEST(LiveHistory, HasRatesBetweenPointsAndIsBounded) {
  LiveHistory history;
  MetricsSnapshot metrics;
  history.add(at_s(0), 0, metrics, std::nullopt);
  metrics.tokens_total = 500;
  metrics.sequences_active = 2;
  history.add(at_s(10), 10'000, metrics, 22.5);
  const auto points = history.last(at_s(10), seconds(3600));
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].tokens_per_s, std::nullopt);
  EXPECT_THAT(points[1].tokens_per_s, Optional(50.0));
  EXPECT_THAT(points[1].pause_ms, Optional(22.5));
  EXPECT_EQ(points[1].streams, 2);
  for (int i = 2; i < 1000; ++i) history.add(at_s(10 * i), 10'000.0 * i, metrics, std::nullopt);
  EXPECT_EQ(history.last(at_s(9'990), seconds(100'000)).size(), LiveHistory::kPointsMax);
  EXPECT_EQ(history.last(at_s(9'990), seconds(30)).size(), 4u);
}

}  // namespace
}  // namespace uma::server
