#include "pool/eviction_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::pool {
namespace {

using std::chrono::seconds;

ModelView idle_model(std::string name, std::uint64_t weights, std::uint64_t contexts, std::uint64_t warm = 0) {
  ModelView model;
  model.name = std::move(name);
  model.idle = seconds(100);
  model.loaded_for = seconds(200);
  model.load_ms = 1000;
  model.weight_bytes = weights;
  model.context_bytes = contexts;
  model.warm_bytes = warm;
  return model;
}

using Steps = std::vector<EvictionStep>;

TEST(PlanEvictions, NothingIsDoneWhereNothingIsMissing) {
  const std::vector<ModelView> models = {idle_model("a", 100, 10, 5)};
  const EvictionPlan plan = plan_evictions(0, models, {});
  EXPECT_EQ(plan.outcome, Outcome::fits);
  EXPECT_TRUE(plan.steps.empty());
}

TEST(PlanEvictions, TakesTheCheapestStepsFirst) {
  const std::vector<ModelView> models = {idle_model("a", 100, 10, 5), idle_model("b", 100, 20, 0)};
  EXPECT_EQ(plan_evictions(3, models, {}).steps, (Steps{{StepKind::drop_warm, "a", 3}}));
  EXPECT_EQ(plan_evictions(12, models, {}).steps, (Steps{{StepKind::drop_warm, "a", 5}, {StepKind::drop_contexts, "a", 10}}));
  EXPECT_EQ(plan_evictions(34, models, {}).steps,
            (Steps{{StepKind::drop_warm, "a", 5}, {StepKind::drop_contexts, "a", 10}, {StepKind::drop_contexts, "b", 20}}));
}

TEST(PlanEvictions, AModelThatIsUnloadedLosesItsContextsWithIt) {
  const std::vector<ModelView> models = {idle_model("a", 100, 10, 5), idle_model("b", 100, 20, 0)};
  const EvictionPlan plan = plan_evictions(110, models, {});
  EXPECT_EQ(plan.outcome, Outcome::fits);
  EXPECT_EQ(plan.steps, (Steps{{StepKind::unload, "a", 110}}));
  EXPECT_EQ(plan_evictions(130, models, {}).steps, (Steps{{StepKind::drop_contexts, "b", 20}, {StepKind::unload, "a", 110}}));
}

TEST(PlanEvictions, TheLongestIdleAndCheapestToLoadGoesFirst) {
  std::vector<ModelView> models = {idle_model("a", 100, 0), idle_model("b", 100, 0)};
  models[0].idle = seconds(400);
  EXPECT_EQ(plan_evictions(50, models, {}).steps.at(0).model, "a");
  models[0].load_ms = 10'000;
  EXPECT_EQ(plan_evictions(50, models, {}).steps.at(0).model, "b");
  models[1].weight = 100;
  EXPECT_EQ(plan_evictions(50, models, {}).steps.at(0).model, "a");
}

TEST(PlanEvictions, PinnedModelsLoseNothingButStates) {
  std::vector<ModelView> models = {idle_model("a", 100, 10, 5)};
  models[0].is_pinned = true;
  EXPECT_EQ(plan_evictions(5, models, {}).steps, (Steps{{StepKind::drop_warm, "a", 5}}));
  const EvictionPlan plan = plan_evictions(6, models, {});
  EXPECT_EQ(plan.outcome, Outcome::refuse);
  EXPECT_TRUE(plan.steps.empty());
}

TEST(PlanEvictions, WhatIsUsedOrWasJustUsedIsWaitedFor) {
  for (int i = 0; i < 5; ++i) {
    ModelView model = idle_model("a", 100, 10);
    if (i == 0) model.sequences_active = 1;
    if (i == 1) model.requests_waiting = 1;
    if (i == 2) model.is_loading = true;
    if (i == 3) model.idle = seconds(14);
    if (i == 4) model.loaded_for = seconds(14);
    const EvictionPlan plan = plan_evictions(50, std::span(&model, 1), {.min_loaded = seconds(15)});
    EXPECT_EQ(plan.outcome, Outcome::wait) << i;
    EXPECT_TRUE(plan.steps.empty()) << i;
    EXPECT_EQ(plan.bytes_held, 110u) << i;
    EXPECT_EQ(plan_evictions(111, std::span(&model, 1), {}).outcome, Outcome::refuse) << i;
  }
}

TEST(PlanEvictions, BackgroundRequestsAreHeldBackLast) {
  using Names = std::vector<std::string>;
  std::vector<ModelView> models = {idle_model("busy", 100, 30), idle_model("idle", 100, 0)};
  models[0].sequences_active = 2;
  models[0].sequences_background = 2;
  EXPECT_EQ(plan_evictions(80, models, {}).holds, Names{}) << "something idle is enough";
  EXPECT_EQ(plan_evictions(120, models, {}).outcome, Outcome::wait);
  EXPECT_EQ(plan_evictions(120, models, {}).holds, Names{"busy"});
  EXPECT_EQ(plan_evictions(231, models, {}).holds, Names{}) << "it would be in vain";
  EXPECT_EQ(plan_evictions(120, models, {.is_background = true}).holds, Names{});
  models[0].is_pinned = true;
  EXPECT_EQ(plan_evictions(120, models, {}).holds, Names{});
  models[0].is_pinned = false;
  models[0].sequences_background = 1;
  EXPECT_EQ(plan_evictions(120, models, {}).holds, Names{}) << "somebody waits for what it says";
}

TEST(PlanEvictions, WhoWasHeldBackGivesWayAtOnce) {
  ModelView model = idle_model("held", 100, 30);
  model.idle = {};
  EXPECT_EQ(plan_evictions(30, std::span(&model, 1), {.min_loaded = seconds(15)}).outcome, Outcome::wait);
  model.is_held = true;
  EXPECT_EQ(plan_evictions(30, std::span(&model, 1), {.min_loaded = seconds(15)}).steps,
            (Steps{{StepKind::drop_contexts, "held", 30}}));
  model.loaded_for = seconds(14);
  EXPECT_EQ(plan_evictions(30, std::span(&model, 1), {.min_loaded = seconds(15)}).outcome, Outcome::wait) << "it has just come";
}

TEST(PlanEvictions, SaysWhatItDoes) {
  constexpr std::uint64_t kGiB = 1u << 30;
  const Steps steps = {{StepKind::drop_warm, "a", kGiB}, {StepKind::unload, "b", 2 * kGiB}};
  EXPECT_EQ(text_of(steps), "drop states of a (1.00 GiB), unload b (2.00 GiB)");
}

// The promises of plan_evictions, for models of every kind.
TEST(PlanEvictions, KeepsItsPromisesForAnyModels) {
  std::array<int, 3> outcomes{};
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    Random random(seed);
    std::vector<ModelView> models;
    for (std::uint64_t i = 0; i < random.next_below(6); ++i) {
      ModelView model = idle_model(std::to_string(i), random.next_below(100), random.next_below(40), random.next_below(20));
      model.is_pinned = random.next_below(4) == 0;
      model.is_loading = random.next_below(8) == 0;
      model.sequences_active = static_cast<std::int32_t>(random.next_below(3));
      model.sequences_background =
          static_cast<std::int32_t>(random.next_below(static_cast<std::uint64_t>(model.sequences_active) + 1));
      model.requests_waiting = static_cast<std::int32_t>(random.next_below(2));
      model.idle = seconds(random.next_below(40));
      model.loaded_for = model.idle + seconds(random.next_below(40));
      models.push_back(std::move(model));
    }
    const std::uint64_t shortage = random.next_below(300);
    const EvictionOptions options{.is_background = random.next_below(2) == 0};
    const EvictionPlan plan = plan_evictions(shortage, models, options);
    ++outcomes[static_cast<std::size_t>(plan.outcome)];
    for (const std::string& held : plan.holds) {
      const ModelView& model = *std::ranges::find(models, held, &ModelView::name);
      EXPECT_TRUE(!options.is_background && !model.is_pinned && model.sequences_active == model.sequences_background) << seed;
      EXPECT_EQ(plan.outcome, Outcome::wait) << seed;
    }
    std::uint64_t freed = 0;
    for (const EvictionStep& step : plan.steps) {
      freed += step.bytes;
      const ModelView& model = *std::ranges::find(models, step.model, &ModelView::name);
      if (step.kind == StepKind::drop_warm) {
        EXPECT_LE(step.bytes, model.warm_bytes);
        continue;
      }
      EXPECT_FALSE(model.is_pinned || model.is_loading) << seed;
      EXPECT_EQ(step.bytes, model.context_bytes + (step.kind == StepKind::unload ? model.weight_bytes : 0)) << seed;
      EXPECT_TRUE(model.is_idle() && model.idle >= options.min_loaded && model.loaded_for >= options.min_loaded) << seed;
      // Whoever is unloaded is in no other step that takes the same bytes.
      EXPECT_EQ(1, std::ranges::count_if(plan.steps,
                                         [&](const EvictionStep& other) {
                                           return other.model == step.model && other.kind != StepKind::drop_warm;
                                         }))
          << seed;
    }
    EXPECT_EQ(freed, plan.bytes_freed) << seed;
    EXPECT_EQ(plan.outcome == Outcome::fits, freed >= shortage) << seed;
    // No step is superfluous.
    for (const EvictionStep& step : plan.steps) EXPECT_LT(freed - step.bytes, shortage) << seed;
  }
  for (const int count : outcomes) EXPECT_GT(count, 200);
}

}  // namespace
}  // namespace uma::pool
