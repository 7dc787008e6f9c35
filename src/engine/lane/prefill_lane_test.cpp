#include "engine/lane/prefill_lane.h"

#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "llm/image_tokens.h"
#include "testing/fake_model.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

class PrefillLaneTest : public ::testing::Test {
 protected:
  void post(PrefillJob job) {
    cores_.prefill_job_sent();
    lane_.post(std::move(job));
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
  PrefillLane lane_{std::make_unique<testing::FakeContext>(testing::FakeOptions{.cells = 400, .sequences = 1}),
                    {},
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

}  // namespace
}  // namespace uma::engine
