#include "engine/lane/plan/lane_activity.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/trace.h"
#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Key;

class LaneActivityTest : public LaneTest {
 protected:
  // So that each decode call makes one token.
  static LaneOptions without_drafts() {
    LaneOptions options;
    options.speculates = false;
    return options;
  }
  std::shared_ptr<const LaneActivity> activity() { return lane_->activity(clock_.now()); }
  GenerationJob job_of(const std::string& tenant, std::uint64_t id, std::string_view prompt, std::int32_t tokens_max) {
    GenerationJob made = job(id, prompt, tokens_max);
    made.flow.tenant = tenant;
    return made;
  }
};

TEST_F(LaneActivityTest, ShowsSlotsAndTheQueueWhileSomebodyReads) {
  make({.sequences = 2}, without_drafts());
  EXPECT_EQ(activity(), nullptr);
  post(job_of("a", 1, "one", 100));
  post(job_of("b", 2, "another", 100));
  post(job_of("b", 3, "waits", 4));
  GenerationJob last = job_of("b", 4, "waits behind it", 4);
  last.is_background = true;
  post(std::move(last));
  for (int i = 0; i < 60; ++i) step();
  const auto seen = activity();
  ASSERT_NE(seen, nullptr);
  const std::vector<SlotActivity>& slots = seen->worker.slots;
  ASSERT_EQ(slots.size(), 2u);
  for (const SlotActivity& slot : slots) {
    EXPECT_EQ(slot.state, SlotState::decode);
    EXPECT_GT(slot.tokens, slot.prompt_tokens);
  }
  const auto of_a = std::ranges::find(slots, "a", &SlotActivity::tenant);
  ASSERT_NE(of_a, slots.end());
  EXPECT_EQ(of_a->request, RequestId{1});
  EXPECT_EQ(of_a->prompt_tokens, 3);
  ASSERT_EQ(seen->worker.waiting.size(), 2u);
  EXPECT_EQ(seen->worker.waiting[0].request, RequestId{3});
  EXPECT_EQ(seen->worker.waiting[0].stage, WaitStage::queued);
  EXPECT_EQ(seen->worker.waiting[1].request, RequestId{4});
  EXPECT_TRUE(seen->worker.waiting[1].is_background);
  EXPECT_GT(seen->worker.contract_ms, 0);
  EXPECT_EQ(seen->tenants.at("a").sequences_active, 1);
  EXPECT_EQ(seen->tenants.at("b").sequences_active, 1);
  EXPECT_EQ(seen->tenants.at("b").queue_depth, 2);
  EXPECT_GT(seen->tenants.at("a").work, 3);
}

TEST_F(LaneActivityTest, SaysThatItRestsThoughNobodyReads) {
  make({.sequences = 2}, without_drafts());
  post(of_session("s", job_of("a", 1, "one", 5)));
  run();
  const auto seen = activity();
  ASSERT_NE(seen, nullptr);
  for (const SlotActivity& slot : seen->worker.slots) EXPECT_EQ(slot.state, SlotState::idle);
  const auto used = std::ranges::find_if(seen->worker.slots, [](const SlotActivity& slot) { return slot.tokens > 0; });
  ASSERT_NE(used, seen->worker.slots.end()) << "the tokens of the session stay";
  EXPECT_EQ(used->request, RequestId{});
  EXPECT_THAT(seen->tenants, ElementsAre(Key("a")));
}

TEST_F(LaneActivityTest, MakesNothingForNobody) {
  make({.sequences = 2}, without_drafts());
  run();
  const auto before = activity();
  clock_.advance(std::chrono::seconds(20));
  post(job(1, "one", 120));
  for (int i = 0; i < 55; ++i) step();
  EXPECT_EQ(activity(), before);
  for (int i = 0; i < 55; ++i) step();
  EXPECT_FALSE(lane_->is_idle());
  EXPECT_NE(activity(), before) << "it was asked";
}

// The pauses of the decode calls that `tail` has not read yet, in ms.
std::vector<double> pauses_ms(TraceTail& tail) {
  std::vector<double> pauses;
  tail.read([&](const std::string&, const std::string&, const TraceSpan& span) {
    if (span.kind->name == "decode") pauses.push_back(static_cast<double>(span.numbers[3]) / 1000);
  });
  return pauses;
}

TEST_F(LaneActivityTest, DecodeCallsTellTheLongestPauseOfTheirStreams) {
  TraceTail tail;
  make({.sequences = 2}, without_drafts());
  post(job(1, "one", 20));
  while (sinks_[1]->tokens.size() < 3) step();
  (void)pauses_ms(tail);
  clock_.advance(std::chrono::milliseconds(200));
  step();
  ASSERT_EQ(sinks_[1]->tokens.size(), 4u);
  EXPECT_THAT(pauses_ms(tail), ElementsAre(DoubleNear(201.1, 0.2)));
  step();
  EXPECT_THAT(pauses_ms(tail), ElementsAre(DoubleNear(1.1, 0.2)));
}

}  // namespace
}  // namespace uma::engine
