#include "engine/lane/plan/core_share.h"

#include <gtest/gtest.h>

namespace uma::engine {
namespace {

TEST(CoreShare, ItsLanesSplitTheThreadsWhileBothWork) {
  CoreShare cores(4, 3);
  EXPECT_EQ(cores.decode_threads(), 4);
  cores.set_decode_busy(true);
  cores.prefill_job_sent();
  EXPECT_EQ(cores.decode_threads(), 3);
  EXPECT_EQ(cores.prefill_threads(), 1);
  cores.set_decode_busy(false);
  EXPECT_EQ(cores.prefill_threads(), 4);
}

TEST(CoreShare, WorkersThatComputeAtOnceHaveEqualParts) {
  const auto workers = std::make_shared<BusyWorkers>(4);
  CoreShare one(4, 3, workers);
  CoreShare other(2, 0, workers);
  one.set_decode_busy(true);
  EXPECT_EQ(one.decode_threads(), 4) << "the other one idles";
  other.set_decode_busy(true);
  EXPECT_EQ(one.decode_threads(), 2);
  EXPECT_EQ(other.decode_threads(), 2);
  one.prefill_job_sent();
  EXPECT_EQ(one.decode_threads(), 1) << "of its two, one for each lane";
  EXPECT_EQ(one.prefill_threads(), 1);
  one.set_decode_busy(false);
  EXPECT_EQ(other.decode_threads(), 2) << "its prompt is still computed";
  {
    CoreShare third(4, 0, workers);
    third.prefill_job_sent();
    EXPECT_EQ(other.decode_threads(), 1);
  }
  EXPECT_EQ(other.decode_threads(), 2) << "a worker that is gone does not count";
  one.prefill_job_ended();
  EXPECT_EQ(workers->part_of(9), 4);
}

TEST(CoreShare, LanesTakeTurnsWhereTheThreadsWouldNotDo) {
  const auto workers = std::make_shared<BusyWorkers>(2);
  CoreShare cores(2, 1, workers);
  cores.set_decode_busy(true);
  cores.prefill_job_sent();
  EXPECT_FALSE(cores.takes_turns());
  cores.set_prefill_call(2);
  EXPECT_TRUE(cores.takes_turns());
  cores.set_prefill_call(1);
  CoreShare other(2, 1, workers);
  other.set_decode_busy(true);
  EXPECT_TRUE(cores.takes_turns()) << "one thread is all it has left";
}

}  // namespace
}  // namespace uma::engine
