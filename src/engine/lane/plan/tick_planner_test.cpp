// The content of a tick, and its beginning.
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_stats.h"
#include "engine/lane/lane_test_support.h"
#include "llm/media/image_tokens.h"

namespace uma::engine {
namespace {

using TickPlannerTest = LaneTest;

TEST_F(TickPlannerTest, PrefillNeverHoldsUpADecodingSequence) {
  make({.cells = 4000, .sequences = 2, .batch_rows_max = 64});
  post(job(1, "stream", 200));
  lane_->step();
  lane_->step();
  post(job(2, std::string(600, 'p'), 4));
  for (int i = 0; i < 10; ++i) {
    const std::size_t before = sinks_[1]->tokens.size();
    lane_->step();
    EXPECT_EQ(sinks_[1]->tokens.size(), before + 1) << "one token in every tick";
  }
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected(std::string(600, 'p'), 4));
}

TEST_F(TickPlannerTest, AnImageAndAPromptAreNeverInTheSameTickBesideAStream) {
  constexpr std::int32_t kRows = 32;
  constexpr Duration kRow = std::chrono::milliseconds(1);
  make({.cells = 4096, .sequences = 3, .row_cost = kRow});
  post(job(1, "a stream", 400));
  for (int i = 0; i < 20; ++i) step();
  GenerationJob pictures = job(2, "", 1);
  auto encoded = std::make_shared<image::EncodedImage>();
  encoded->row_width = 1;
  encoded->pieces_end = {kRows};
  for (std::int32_t row = 0; row < kRows; ++row) {
    pictures.tokens.push_back(llm::image_token("i", "p", row));
    encoded->rows.push_back(testing::fake_row_value(pictures.tokens.back()));
  }
  pictures.tokens.push_back(7);
  pictures.images = {{.image = "i", .begin = 0, .count = kRows, .first_row = 0, .encoded = std::move(encoded)}};
  post(job(3, std::string(200, 'p'), 1));
  step();
  post(std::move(pictures));
  Duration longest{};
  while (sinks_[2]->tokens.empty() || sinks_[3]->tokens.empty()) {
    const TimePoint began = clock_.now();
    const std::size_t before = sinks_[1]->tokens.size();
    step();
    longest = std::max(longest, clock_.now() - began);
    EXPECT_EQ(sinks_[1]->tokens.size(), before + 1) << "one token in every tick";
  }
  EXPECT_LT(longest, (kRows + 8) * kRow);
  run();
}

TEST_F(TickPlannerTest, AWantedFirstTokenComesBeforeOthersOfTheTenantButNotBeforeATenantWithLessWork) {
  for (const bool is_of_one_tenant : {true, false}) {
    make({.cells = 4096, .sequences = 3, .row_cost = std::chrono::milliseconds(1)});
    GenerationJob stream = job(1, "a stream", 200);
    stream.flow = {"busy", 1};
    post(std::move(stream));
    for (int i = 0; i < 20; ++i) step();
    GenerationJob quiet = job(2, std::string(100, 'q'), 2);
    quiet.flow = {is_of_one_tenant ? "busy" : "quiet", 2};
    post(std::move(quiet));
    step();
    GenerationJob hurried = job(3, std::string(100, 'h'), 2);
    hurried.flow = {"busy", 1};
    hurried.target_ttft_ms = 3'600'000;
    post(std::move(hurried));
    while (sinks_[2]->tokens.empty() && sinks_[3]->tokens.empty()) step();
    EXPECT_EQ(sinks_[3]->tokens.empty(), !is_of_one_tenant);
    run();
  }
}

TEST_F(TickPlannerTest, AWantedTimeBetweenTokensShortensTicksByHalfAtMost) {
  std::vector<std::int64_t> steps;
  for (const double wanted_ms : {0.0, 20.0, 1e-6}) {
    LaneOptions options;
    options.target_tbt_ms = 40;
    make({.cells = 4096, .sequences = 2, .row_cost = std::chrono::milliseconds(1)}, std::move(options));
    GenerationJob stream = job(1, "a stream", 400);
    stream.target_tbt_ms = wanted_ms;
    post(std::move(stream));
    for (int i = 0; i < 20; ++i) step();
    post(job(2, std::string(300, 'p'), 1));
    std::int64_t count = 0;
    for (; sinks_[2]->tokens.empty(); ++count) step();
    steps.push_back(count);
    run();
  }
  EXPECT_GT(steps[1], steps[0]);
  EXPECT_EQ(steps[2], steps[1]) << "no shorter than half";
}

TEST_F(TickPlannerTest, ABandwidthBudgetSpacesTheTicks) {
  LaneOptions options;
  options.weights = {.always = 1'000'000};
  options.bmt_budget_gbps = 0.1;  // 100 kB a ms: a tick every 10 ms.
  make({}, std::move(options));
  post(job(1, "hello", 20));
  const TimePoint began = clock_.now();
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("hello", 20));
  EXPECT_GE(to_ms(clock_.now() - began), 19 * 10);
  EXPECT_LT(to_ms(clock_.now() - began), 19 * 10 + 40);
  EXPECT_GE(lane_->stats().bytes_moved_total.value(), 20'000'000u);
}

LaneOptions with_target_tbt(double ms) {
  LaneOptions options;
  options.target_tbt_ms = ms;
  options.stats = std::make_shared<LaneStats>();
  return options;
}

// A planner with sequences in given states; nothing is computed.
class TickPlannerAlone : public ::testing::Test {
 protected:
  // Adds a sequence in the slot with its index, with so many cached tokens.
  Sequence& add(std::int32_t tokens, std::int32_t cached, std::int32_t generated = 0, const std::string& tenant = "a") {
    GenerationJob job;
    const std::size_t slot = sequences_.size();
    job.id = RequestId{slot + 1};
    job.flow = {tenant, slot};
    job.tokens.assign(static_cast<std::size_t>(tokens - generated), 'x');
    job.received = clock_.now();
    tenants_.shares.enter(job.flow);
    auto sequence = std::make_unique<Sequence>(std::move(job), vocab_, std::span<const Token>());
    sequence->chain.resize(static_cast<std::size_t>(tokens), 'y');
    slots_.append(slot, std::span(sequence->chain).first(static_cast<std::size_t>(cached)));
    Sequence& added = *sequence;
    sequences_.add(std::move(sequence));
    sequences_.set_running(added, slot);
    return added;
  }

  SimClock clock_;
  LaneOptions options_ = with_target_tbt(40);
  testing::FakeVocab vocab_;
  FakeContext context_{{.cells = 4000}};
  CoreShare cores_{1, 0};
  sched::BandwidthBudget bandwidth_{0};
  LaneCosts costs_;
  TenantShares tenants_;
  StateMemory states_{nullptr, "", true};
  SequenceList sequences_;
  SlotTable slots_{context_, true};
  const LaneParts parts_{.options = options_,
                         .clock = clock_,
                         .context = context_,
                         .costs = costs_,
                         .tenants = tenants_,
                         .states = states_,
                         .sequences = sequences_,
                         .slots = slots_};
  LatencyTargets targets_{options_, costs_.step_model};
  TickPlanner planner_{parts_, targets_, cores_, bandwidth_};
};

TEST_F(TickPlannerAlone, SeesWhatCanBeComputed) {
  add(20, 5);
  add(20, 19, 3);
  add(20, 5).begin(Verifying());
  sequences_.set_waiting(add(20, 5));
  planner_.build_views(clock_.now());
  ASSERT_EQ(planner_.views().size(), 2u);
  EXPECT_EQ(planner_.views()[0].pending_tokens, 15);
  EXPECT_FALSE(planner_.views()[0].decodes);
  EXPECT_TRUE(planner_.views()[1].decodes);
  EXPECT_TRUE(planner_.someone_decodes());
}

TEST_F(TickPlannerAlone, TheFirstTickAfterIdlenessWaitsForMoreAMoment) {
  sched::StepShape prompt;
  prompt.add_chunk(15, 0);
  for (int i = 0; i < 20; ++i) costs_.step_model.observe(prompt, 100);
  add(20, 5);
  planner_.build_views(clock_.now());
  const auto until = planner_.begin_tick(clock_.now(), false);
  ASSERT_TRUE(until);
  EXPECT_GT(*until, clock_.now());
  EXPECT_LE(*until, clock_.now() + std::chrono::milliseconds(1));
  EXPECT_EQ(planner_.begin_tick(*until, false), std::nullopt) << "none has come";
}

TEST_F(TickPlannerAlone, AStreamThatIsUnderWayIsNotHeldUp) {
  add(20, 19, 3).in_batch = true;
  planner_.build_views(clock_.now());
  EXPECT_EQ(planner_.begin_tick(clock_.now(), false), std::nullopt);
  const sched::BatchPlan& plan = planner_.plan(0, false);
  ASSERT_EQ(plan.decode.size(), 1u);
  EXPECT_TRUE(plan.prefill.empty());
}

TEST_F(TickPlannerAlone, ATickIsShorterForAStreamThatIsBehind) {
  Sequence& stream = add(20, 19, 3);
  planner_.build_views(clock_.now());
  EXPECT_EQ(planner_.tick_target_ms(), 40);
  stream.times.gap_ms = 50;
  EXPECT_EQ(planner_.tick_target_ms(), 30);
  stream.times.gap_ms = 500;
  EXPECT_EQ(planner_.tick_target_ms(), 20) << "by half at most";
  stream.job.is_background = true;
  EXPECT_EQ(planner_.tick_target_ms(), 40) << "nobody waits for it";
}

TEST_F(TickPlannerAlone, AWantedFirstTokenMakesAPromptDueWhereItsTenantHasItsTurn) {
  Sequence& wants = add(20, 5);
  wants.job.target_ttft_ms = 100;
  planner_.build_views(clock_.now());
  EXPECT_EQ(planner_.prompt_due(wants), clock_.now() + std::chrono::milliseconds(100));
  EXPECT_EQ(planner_.views()[0].due_ms, 100);
  add(20, 5, 0, "b");
  tenants_.shares.charge(wants.job.flow, 1000);
  planner_.build_views(clock_.now());
  EXPECT_EQ(planner_.prompt_due(wants), kNever) << "less was done for the other tenant";
}

}  // namespace
}  // namespace uma::engine
