#include "wire/own/monitoring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

using ::testing::HasSubstr;

MetricsSnapshot with_progress(std::int64_t open, ProgressSnapshot progress) {
  MetricsSnapshot metrics;
  metrics.requests_open = open;
  metrics.progress = progress;
  return metrics;
}

TEST(Stall, IsWorkThatWaitsWhileNothingIsComputed) {
  constexpr double kLong = kStalledAfterS + 1;
  EXPECT_TRUE(is_stalled(with_progress(1, {.last_tick_s = kLong, .last_decode_s = {}, .oldest_waiting_s = kLong})));
  EXPECT_TRUE(is_stalled(with_progress(1, {.last_tick_s = {}, .last_decode_s = {}, .oldest_waiting_s = kLong})));
  EXPECT_TRUE(is_stalled(with_progress(1, {.last_tick_s = kLong, .last_decode_s = {}, .oldest_waiting_s = {}})))
      << "it has begun and does not go on";
  EXPECT_FALSE(is_stalled(with_progress(0, {.last_tick_s = kLong, .last_decode_s = {}, .oldest_waiting_s = {}}))) << "idle";
  EXPECT_FALSE(is_stalled(with_progress(1, {.last_tick_s = kLong, .last_decode_s = {}, .oldest_waiting_s = 0.001})))
      << "it came a moment ago";
  EXPECT_FALSE(is_stalled(with_progress(9, {.last_tick_s = 0.01, .last_decode_s = {}, .oldest_waiting_s = kLong})))
      << "others are served";
}

TEST(Health, TellsProgress) {
  EXPECT_EQ(
      health_json(with_progress(2, {.last_tick_s = 0.25, .last_decode_s = {}, .oldest_waiting_s = 1}), ModelState::ready),
      R"({"status":"ok","model":"ready","requests_open":2,"last_tick_s":0.25,"last_decode_s":null,"oldest_waiting_s":1,"crashes_total":0,"last_crash":null,"last_crash_unix_s":null})");
  const MetricsSnapshot stalled = with_progress(1, {.last_tick_s = 100, .last_decode_s = {}, .oldest_waiting_s = 100});
  EXPECT_THAT(health_json(stalled, ModelState::ready), HasSubstr(R"("status":"degraded")"));
  EXPECT_THAT(health_json(stalled, ModelState::loading), HasSubstr(R"("status":"ok")")) << "who waits for the load must";
}

TEST(Health, TellsOfCrashesAndIsWellAllTheSame) {
  MetricsSnapshot metrics;
  metrics.crashes = {.count = 2, .last_cause = "signal 11", .last_unix_s = 1'700'000'000};
  EXPECT_TRUE(is_healthy(metrics, ModelState::ready));
  EXPECT_THAT(health_json(metrics, ModelState::ready),
              HasSubstr(R"("crashes_total":2,"last_crash":"signal 11","last_crash_unix_s":1700000000})"));
}

}  // namespace
}  // namespace uma::wire
