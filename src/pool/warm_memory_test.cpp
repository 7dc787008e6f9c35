#include "pool/warm_memory.h"

#include <gtest/gtest.h>

#include "pool/host_test_support.h"
#include "testing/sim_clock.h"

namespace uma::pool {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class WarmMemoryTest : public ::testing::Test {
 protected:
  void usable(std::uint64_t bytes) {
    MemoryInfo machine;
    machine.total = bytes;
    governor_.update(machine, {});
  }
  [[nodiscard]] std::uint64_t reserved() const { return governor_.use().front().reserved(); }

  testing::SimClock clock_;
  FakeHost host_;
  MemoryGovernor governor_{{.usable_fraction = 1}};
  WarmMemory warm_{governor_, clock_};
};

TEST_F(WarmMemoryTest, GrantsWhatStatesMaySoonNeedAndNoMoreThanTheyMayEverTake) {
  usable(10'000 * kMiB);
  warm_.start(host_);
  warm_.update(10 * kMiB);
  EXPECT_EQ(host_.limit.at_rest, 0u);
  host_.stored_max = 1000 * kMiB;
  warm_.follow_use();
  EXPECT_EQ(warm_.bytes(), 256 * kMiB);
  EXPECT_EQ(host_.limit.at_rest, 256 * kMiB);
  EXPECT_EQ(host_.limit.in_all, 266 * kMiB) << "with what is under way";
  host_.stored_bytes = 250 * kMiB;
  warm_.follow_use();
  EXPECT_EQ(warm_.bytes(), 506 * kMiB);
  host_.stored_bytes = 900 * kMiB;
  warm_.follow_use();
  EXPECT_EQ(warm_.bytes(), 1000 * kMiB);
  host_.stored_bytes = 0;
  warm_.follow_use();
  EXPECT_EQ(warm_.bytes(), 256 * kMiB);
  EXPECT_EQ(reserved(), warm_.bytes());
}

TEST_F(WarmMemoryTest, TakesHalfOfWhatIsLeftAtMost) {
  usable(100 * kMiB);
  host_.stored_max = 1000 * kMiB;
  warm_.start(host_);
  warm_.follow_use();
  EXPECT_EQ(warm_.bytes(), 50 * kMiB);
  warm_.grow(1000 * kMiB);
  EXPECT_EQ(warm_.bytes(), 100 * kMiB) << "all, where that is asked for";
}

TEST_F(WarmMemoryTest, WhatIsUnusedIsGivenBackAtOnceAndNoMore) {
  usable(1000 * kMiB);
  host_.stored_max = 1000 * kMiB;
  warm_.start(host_);
  warm_.grow(500 * kMiB);
  host_.stored_bytes = 200 * kMiB;
  warm_.give_back_unused(100 * kMiB);
  EXPECT_EQ(warm_.bytes(), 400 * kMiB);
  warm_.give_back_unused(1000 * kMiB);
  EXPECT_EQ(warm_.bytes(), 200 * kMiB);
  EXPECT_EQ(host_.limit.at_rest, 200 * kMiB);
  EXPECT_EQ(reserved(), 200 * kMiB);
}

TEST_F(WarmMemoryTest, MemoryIsGivenBackAfterStatesHaveLeftIt) {
  usable(1000 * kMiB);
  host_.stored_max = 1000 * kMiB;
  warm_.start(host_);
  warm_.update(20 * kMiB);
  warm_.grow(500 * kMiB);
  host_.stored_bytes = 500 * kMiB;
  // While they leave, what they take stays reserved.
  host_.on_limit = [this](const kv::MemoryLimit& limit) {
    if (host_.stored_bytes > limit.at_rest) {
      EXPECT_GE(limit.in_all, host_.stored_bytes);
      EXPECT_EQ(reserved(), 500 * kMiB);
    }
  };
  int asked = 0;
  host_.on_stored = [&] {
    if (++asked == 3) host_.stored_bytes = host_.limit.at_rest;
  };
  EXPECT_TRUE(warm_.give_back(300 * kMiB));
  EXPECT_GE(asked, 3);
  EXPECT_EQ(warm_.bytes(), 200 * kMiB);
  EXPECT_EQ(host_.limit.in_all, 220 * kMiB);
}

TEST_F(WarmMemoryTest, WhatDoesNotLeaveStaysReserved) {
  usable(1000 * kMiB);
  host_.stored_max = 1000 * kMiB;
  warm_.start(host_);
  warm_.grow(500 * kMiB);
  host_.stored_bytes = 500 * kMiB;
  host_.on_stored = [this] { clock_.advance(std::chrono::seconds(1)); };
  EXPECT_FALSE(warm_.give_back(300 * kMiB)) << "the disk is too slow";
  EXPECT_EQ(reserved(), 500 * kMiB);
  EXPECT_EQ(host_.limit.at_rest, 200 * kMiB);
  host_.stored_bytes = 200 * kMiB;
  warm_.update(0);
  EXPECT_EQ(reserved(), 200 * kMiB);
}

TEST_F(WarmMemoryTest, StatesOfSwappedOutRequestsAreReservedToo) {
  usable(1000 * kMiB);
  host_.stored_max = 1000 * kMiB;
  warm_.start(host_);
  warm_.grow(100 * kMiB);
  host_.stored_bytes = 100 * kMiB;
  host_.swapped_bytes = 50 * kMiB;
  warm_.update(20 * kMiB);
  EXPECT_EQ(reserved(), 130 * kMiB) << "20 are reserved with their contexts";
}

}  // namespace
}  // namespace uma::pool
