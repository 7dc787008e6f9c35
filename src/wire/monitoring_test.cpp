#include "wire/monitoring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsText, HasEveryNumberOnALineOfItsOwn) {
  MetricsSnapshot metrics;
  metrics.model = "ti\"ny";
  metrics.tokens_total = 12;
  metrics.avg_batch = 1.5;
  metrics.workers.resize(2);
  metrics.workers[1].cells_used = 9;
  const std::string text = metrics_text(metrics);
  EXPECT_THAT(text, HasSubstr("# TYPE uma_tokens_total counter\numa_tokens_total 12\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE uma_avg_batch gauge\numa_avg_batch 1.5E0\n"));
  EXPECT_THAT(text, HasSubstr("uma_model{name=\"ti\\\"ny\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE uma_worker_cells_used gauge\numa_worker_cells_used{worker=\"0\"} 0\n"
                              "uma_worker_cells_used{worker=\"1\"} 9\n"));
  EXPECT_TRUE(text.ends_with('\n'));
}

TEST(MetricsText, HasHistogramsWhoseBucketsAddUp) {
  MetricsSnapshot metrics;
  metrics.ttft.at_most.fill(3);
  metrics.ttft.at_most[0] = 1;
  metrics.ttft.count = 4;
  metrics.ttft.sum_s = 200.5;
  metrics.prefill_call.count = 2;
  const std::string text = metrics_text(metrics);
  EXPECT_THAT(text, HasSubstr("# TYPE uma_ttft_seconds histogram\n"
                              "uma_ttft_seconds_bucket{le=\"0.000128\"} 1\n"
                              "uma_ttft_seconds_bucket{le=\"0.000256\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("uma_ttft_seconds_bucket{le=\"134.217728\"} 3\n"
                              "uma_ttft_seconds_bucket{le=\"+Inf\"} 4\n"
                              "uma_ttft_seconds_sum 200.5\n"
                              "uma_ttft_seconds_count 4\n"));
  EXPECT_THAT(text, HasSubstr("uma_step_seconds_bucket{kind=\"prefill\",le=\"+Inf\"} 2\n"
                              "uma_step_seconds_sum{kind=\"prefill\"} 0\n"
                              "uma_step_seconds_count{kind=\"prefill\"} 2\n"));
  for (const char* family : {"inter_token", "queue_wait", "step", "restore"}) {
    const std::string type = std::string("# TYPE uma_") + family + "_seconds histogram\n";
    ASSERT_THAT(text, HasSubstr(type));
    EXPECT_EQ(text.find(type), text.rfind(type)) << "a family is declared once";
  }
}

TEST(MetricsText, LeavesOutWhatIsUnknown) {
  EXPECT_THAT(metrics_text(MetricsSnapshot{}), Not(HasSubstr("uma_oldest_waiting_s")));
}

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
  const std::string text = metrics_text(metrics);
  EXPECT_THAT(text, HasSubstr("# TYPE uma_crashes_total counter\numa_crashes_total 2\n"));
  EXPECT_THAT(text, HasSubstr("uma_last_crash{name=\"signal 11\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("uma_last_crash_unix_s 1700000000\n"));
}

}  // namespace
}  // namespace uma::wire
