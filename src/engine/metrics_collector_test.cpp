#include "engine/metrics_collector.h"

#include <utility>

#include <gtest/gtest.h>

namespace uma::engine {
namespace {

TEST(MetricsCollector, AddsWorkersUpAndKeepsEachOfThem) {
  LaneStats one;
  LaneStats two;
  one.tokens_total.add(3);
  two.tokens_total.add(4);
  one.cells_used.set(10);
  two.cells_used.set(20);
  two.decode_ticks_total.add(2);
  two.decode_rows_total.add(7);
  llm::ContextShape shape;
  shape.cells = 100;
  shape.kv_bytes_per_token = 8;
  MetricsSnapshot begun;
  begun.sessions = 5;
  MetricsCollector collector(std::move(begun), 0);
  collector.add("a", one, shape);
  collector.add("b", two, {});
  const MetricsSnapshot snapshot = collector.finish(TimePoint() + from_ms(1));
  EXPECT_EQ(snapshot.sessions, 5);
  EXPECT_EQ(snapshot.tokens_total, 7u);
  EXPECT_EQ(snapshot.hot_bytes, 80);
  EXPECT_EQ(snapshot.avg_batch, 3.5);
  EXPECT_EQ(snapshot.kv_cache_utilization, 0.3);
  EXPECT_EQ(snapshot.copy_free_ratio, 1) << "nothing was copied";
  ASSERT_EQ(snapshot.workers.size(), 2u);
  EXPECT_EQ(snapshot.workers[0].model, "a");
  EXPECT_EQ(snapshot.workers[0].cells_total, 100);
  EXPECT_EQ(snapshot.workers[1].model, "b");
  EXPECT_EQ(snapshot.workers[1].cells_total, 0) << "a worker that is gone";
  EXPECT_EQ(snapshot.workers[1].tokens_total, 4u);
}

TEST(MetricsCollector, KnowsTheLatestCallAndTheOldestRequest) {
  LaneStats lane;
  EmbedStats embed;
  lane.last_call_us.set(2'000'000);
  lane.last_decode_us.set(1'000'000);
  embed.last_call_us.set(3'000'000);
  embed.waiting_since_us.set(1'500'000);
  MetricsCollector collector({}, 2'500'000);
  collector.add("a", lane, {});
  collector.add(embed);
  const ProgressSnapshot progress = collector.finish(TimePoint() + from_ms(4000)).progress;
  EXPECT_EQ(progress.last_tick_s, 1.0);
  EXPECT_EQ(progress.last_decode_s, 3.0);
  EXPECT_EQ(progress.oldest_waiting_s, 2.5);
  EXPECT_EQ(MetricsCollector({}, 0).finish(TimePoint() + from_ms(1)).progress.last_tick_s, std::nullopt);
}

TEST(MetricsCollector, CountsStatesOfSequencesAndOfTheStore) {
  LaneStats lane;
  lane.swapped_sequences.set(1);
  lane.swapped_bytes.set(100);
  lane.warm_restore.record_ms(2);
  lane.cold_restore.record_ms(4);
  kv::StoreStats store;
  store.warm_states.set(2);
  store.warm_bytes.set(50);
  store.dropped_total.add(3);
  store.read.record_ms(8);
  MetricsCollector collector({}, 0);
  collector.add("a", lane, {});
  collector.add(store);
  const MetricsSnapshot snapshot = collector.finish(TimePoint() + from_ms(1));
  EXPECT_EQ(snapshot.warm_sessions, 3);
  EXPECT_EQ(snapshot.warm_bytes, 150);
  EXPECT_EQ(snapshot.states_dropped_total, 3u);
  EXPECT_EQ(snapshot.cold_read_ms_avg, 8);
  EXPECT_EQ(snapshot.restore_ms_avg, 3);
  EXPECT_EQ(snapshot.warm_restore_ms_avg, 2);
}

TEST(MergedHistogram, HasFewBucketsThatCountWhatIsBelowThem) {
  LatencyHistogram fast;
  LatencyHistogram slow;
  fast.record_ms(0.05);
  fast.record_ms(0.2);
  slow.record_ms(200'000);
  MergedHistogram merged;
  merged.add(fast);
  merged.add(slow);
  const HistogramSnapshot few = merged.snapshot();
  EXPECT_EQ(few.count, 3u);
  EXPECT_EQ(few.at_most.front(), 1u) << "up to 128 µs";
  EXPECT_EQ(few.at_most[1], 2u) << "up to 256 µs";
  EXPECT_EQ(few.at_most.back(), 2u) << "what took longer than the last bound is in the count only";
  EXPECT_NEAR(few.sum_s, 200.00025, 1e-9);
  EXPECT_EQ(merged.count(), 3u);
}

}  // namespace
}  // namespace uma::engine
