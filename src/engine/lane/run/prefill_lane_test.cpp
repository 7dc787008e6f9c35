#include "engine/lane/run/prefill_lane.h"

#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/move/state_transfer.h"
#include "llm/media/image_tokens.h"
#include "testing/fake_model.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

class PrefillLaneTest : public ::testing::Test {
 protected:
  void post(PrefillJob job) { lane_.post(std::move(job)); }
  // A prompt of so many tokens, with the memory for a wider context.
  void post_prompt(std::uint64_t id, std::size_t tokens) {
    PrefillJob job;
    job.id = RequestId{id};
    job.tokens.assign(tokens, 'y');
    job.wider_context = pool_.reserve(lane_.wider_bytes(static_cast<std::int32_t>(tokens))).value();
    post(std::move(job));
  }
  void step_until_final() {
    for (int i = 0; i < 1000 && (reports_.empty() || !reports_.back().is_final()); ++i) {
      (void)lane_.step();
      lane_.check_invariants();
    }
    ASSERT_FALSE(reports_.empty());
    ASSERT_TRUE(reports_.back().is_final());
  }

  testing::SimClock clock_;
  kv::BytePool pool_{1 << 24};
  CoreShare cores_{2, 1};
  sched::BandwidthBudget bandwidth_{0};
  LaneStats stats_;
  std::vector<PrefillReport> reports_;
  bool makes_wider_ = true;
  std::unique_ptr<testing::FakeContext> first_context_ =
      std::make_unique<testing::FakeContext>(testing::FakeOptions{.cells = 400, .sequences = 1});
  testing::FakeContext* const context_ = first_context_.get();
  PrefillLane lane_{std::move(first_context_),
                    {.weights = {},
                     .make_wider = [this](std::int32_t cells) -> Expected<std::unique_ptr<llm::Context>> {
                       if (!makes_wider_) return fail(ErrorCode::model_load, "no memory");
                       return std::make_unique<testing::FakeContext>(testing::FakeOptions{.cells = cells, .sequences = 1});
                     },
                     .cells_max = 1000},
                    pool_,
                    cores_,
                    bandwidth_,
                    stats_,
                    clock_,
                    [this](PrefillReport report) { reports_.push_back(std::move(report)); }};
};

// A job that begins again meets an image of the cached beginning, whose encoding was never needed.
TEST_F(PrefillLaneTest, APromptWithAnImageThatIsNotEncodedIsGivenBack) {
  std::vector<Token> tokens(300, 'x');
  for (std::size_t i = 0; i < 5; ++i) tokens[10 + i] = llm::image_token("img", "proj", static_cast<std::int32_t>(i));
  PrefillJob job;
  job.id = RequestId{1};
  job.tokens = std::move(tokens);
  job.images.push_back({.image = "img", .begin = 10, .count = 5, .first_row = 0, .encoded = nullptr});
  post(std::move(job));
  step_until_final();
  ASSERT_TRUE(reports_.back().error);
  EXPECT_EQ(reports_.back().id, RequestId{1});

  reports_.clear();
  PrefillJob next;
  next.id = RequestId{2};
  next.tokens.assign(40, 'y');
  post(std::move(next));
  step_until_final();
  EXPECT_FALSE(reports_.back().error) << "the next prompt";
  EXPECT_EQ(reports_.back().snapshot->tokens.size(), 40u);
}

TEST_F(PrefillLaneTest, APromptWhoseStateCannotBeSavedKeepsItsMemory) {
  PrefillJob job;
  job.id = RequestId{1};
  job.tokens.assign(300, 'x');
  job.is_background = true;
  const std::uint64_t bytes = prompt_reservation_bytes(lane_.shape_for(300), 300);
  job.reservation = pool_.reserve(bytes).value();
  post(std::move(job));
  (void)lane_.step();
  ASSERT_EQ(reports_.size(), 1u) << "a part of the prompt";

  context_->fail_state = true;
  PrefillJob urgent;
  urgent.id = RequestId{2};
  urgent.tokens.assign(40, 'y');
  post(std::move(urgent));
  while (context_->sequence_length(0) >= 40) (void)lane_.step();
  context_->fail_state = false;
  EXPECT_GE(pool_.bytes_reserved(), bytes) << "the first one begins again, with its memory";
  pool_.limit(pool_.bytes_reserved());
  reports_.clear();
  for (int i = 0; i < 100 && (reports_.empty() || !reports_.back().snapshot || reports_.back().id != RequestId{1}); ++i) {
    (void)lane_.step();
    lane_.check_invariants();
  }
  ASSERT_FALSE(reports_.empty());
  ASSERT_TRUE(reports_.back().snapshot);
  EXPECT_LE(pool_.bytes_reserved(), pool_.bytes_max());
}

TEST_F(PrefillLaneTest, AWiderContextStaysForTheNextTurnsAndReturnsItsMemoryWhenItIsNotNeeded) {
  post_prompt(1, 500);
  step_until_final();
  ASSERT_TRUE(reports_.back().snapshot);
  EXPECT_EQ(lane_.cells(), 625) << "a quarter more";
  const std::uint64_t beyond_first = lane_.context().shape().memory_bytes * (625 - 400) / 625;
  reports_.clear();
  EXPECT_EQ(pool_.bytes_reserved(), beyond_first);

  EXPECT_EQ(lane_.wider_bytes(600), 0u) << "the next turn";
  post_prompt(2, 900);
  step_until_final();
  ASSERT_TRUE(reports_.back().snapshot);
  EXPECT_EQ(lane_.cells(), 1000) << "not beyond the limit";
  reports_.clear();

  post_prompt(3, 40);
  step_until_final();
  ASSERT_TRUE(reports_.back().snapshot);
  reports_.clear();
  StepOutcome outcome = lane_.step();
  EXPECT_FALSE(outcome.did_work);
  ASSERT_NE(outcome.wake, kNever);
  clock_.advance(outcome.wake - clock_.now());
  EXPECT_TRUE(lane_.step().did_work);
  EXPECT_EQ(lane_.cells(), 400);
  EXPECT_EQ(pool_.bytes_reserved(), 0u);
  outcome = lane_.step();
  EXPECT_FALSE(outcome.did_work);
  EXPECT_EQ(outcome.wake, kNever);
}

TEST_F(PrefillLaneTest, APromptForWhichNoWiderContextCanBeMadeIsGivenBack) {
  makes_wider_ = false;
  post_prompt(1, 500);
  step_until_final();
  ASSERT_TRUE(reports_.back().error);
  EXPECT_EQ(reports_.back().error->message, "no memory");
  EXPECT_EQ(pool_.bytes_reserved(), 0u);
  reports_.clear();
  post_prompt(2, 400);
  step_until_final();
  EXPECT_TRUE(reports_.back().snapshot) << "the next prompt";
}

}  // namespace
}  // namespace uma::engine
