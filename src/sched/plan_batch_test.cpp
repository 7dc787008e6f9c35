#include "sched/plan_batch.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::sched {
namespace {

SequenceView decoding(std::int32_t index, std::int32_t slot) {
  return {.index = index, .slot = slot, .pending_tokens = 1, .decodes = true};
}

SequenceView prefilling(std::int32_t index, std::int32_t pending, double waited_ms = 0) {
  return {.index = index, .slot = index, .pending_tokens = pending, .waited_ms = waited_ms, .placed_ms = waited_ms};
}

StepShape decodes(std::int32_t rows) {
  StepShape shape;
  for (std::int32_t i = 0; i < rows; ++i) shape.add_decode(100);
  return shape;
}

StepShape chunk(std::int32_t rows, std::int64_t cached = 0) {
  StepShape shape;
  shape.add_chunk(rows, cached);
  return shape;
}

// 10 ms for a decode call, 1 ms for a prompt token.
StepModel measured_model() {
  StepModel model;
  for (int round = 0; round < 50; ++round) {
    model.observe(decodes(1 + round % 3), 10);
    for (const std::int32_t rows : {16, 32, 64, 128, 256, 512}) model.observe(chunk(rows), rows);
  }
  return model;
}

BatchPlan plan(std::vector<SequenceView> sequences, const StepModel& model = measured_model(), BatchLimits limits = {}) {
  BatchPlan made;
  ChunkSize fresh;
  plan_batch(sequences, model, limits, fresh, made);
  return made;
}

std::int32_t rows_of(const std::vector<PlanRow>& rows) {
  std::int32_t sum = 0;
  for (const PlanRow& row : rows) sum += row.tokens_count;
  return sum;
}

SequenceView of_group(std::int32_t group, SequenceView view) {
  view.group = group;
  return view;
}

TEST(PlanBatch, EveryGroupDecodesInEveryTick) {
  const BatchPlan made = plan({of_group(1, decoding(0, 5)), decoding(1, 2), of_group(1, decoding(2, 3)), decoding(3, 7)});
  ASSERT_EQ(made.decode.size(), 4u);
  std::vector<std::pair<std::int32_t, std::int32_t>> order;
  for (const PlanRow& row : made.decode) order.emplace_back(row.group, row.slot);
  EXPECT_EQ(order, (std::vector<std::pair<std::int32_t, std::int32_t>>{{0, 2}, {0, 7}, {1, 3}, {1, 5}}));
}

TEST(PlanBatch, PromptsOfOneGroupShareACallAndTheFirstPromptChoosesIt) {
  const BatchPlan made =
      plan({of_group(1, prefilling(0, 40)), prefilling(1, 20), of_group(1, prefilling(2, 30)), prefilling(3, 50)});
  ASSERT_EQ(made.prefill.size(), 2u);
  EXPECT_EQ(made.prefill[0].index, 1);
  EXPECT_EQ(made.prefill[1].index, 3);
  const BatchPlan aged = plan({of_group(1, prefilling(0, 40, 1000)), prefilling(1, 20), of_group(1, prefilling(2, 30))});
  ASSERT_EQ(aged.prefill.size(), 2u);
  EXPECT_EQ(aged.prefill[0].index, 0);
  EXPECT_EQ(aged.prefill[1].index, 2);
}

TEST(PlanBatch, PromptsGetTheTimeThatTheCallsOfAllGroupsLeave) {
  const std::vector<SequenceView> together{decoding(0, 0), decoding(1, 1), prefilling(2, 1000)};
  std::vector<SequenceView> apart = together;
  apart[1].group = 1;
  const BatchLimits limits{.tick_ms = 60};
  const BatchPlan one_call = plan(together, measured_model(), limits);
  const BatchPlan two_calls = plan(apart, measured_model(), limits);
  ASSERT_EQ(one_call.prefill.size(), 1u);
  ASSERT_EQ(two_calls.prefill.size(), 1u);
  EXPECT_GE(one_call.prefill[0].tokens_count, two_calls.prefill[0].tokens_count + kChunkStep / 2) << "10 ms less";
}

TEST(PlanBatch, BackgroundStreamsYieldIfTheirGroupNeedsAnotherCall) {
  SequenceView background = decoding(1, 1);
  background.is_background = true;
  const BatchLimits limits{.tick_ms = 15, .serves_background = false};
  EXPECT_EQ(plan({decoding(0, 0), background}, measured_model(), limits).decode.size(), 2u);
  EXPECT_EQ(plan({decoding(0, 0), of_group(1, background)}, measured_model(), limits).decode.size(), 1u);
}

TEST(PlanBatch, NothingToDoIsAnEmptyPlan) {
  EXPECT_TRUE(plan({}).is_empty());
}

TEST(PlanBatch, EveryDecodingSequenceGetsOneTokenInOrderOfSlots) {
  const BatchPlan made = plan({decoding(0, 5), decoding(1, 2), decoding(2, 3)});
  ASSERT_EQ(made.decode.size(), 3u);
  EXPECT_EQ(made.decode[0].slot, 2);
  EXPECT_EQ(made.decode[1].slot, 3);
  EXPECT_EQ(made.decode[2].slot, 5);
  EXPECT_TRUE(made.prefill.empty());
}

TEST(PlanBatch, PrefillIsSizedByTimeWhileSomeoneDecodes) {
  const BatchPlan made = plan({decoding(0, 0), prefilling(1, 1000)});
  ASSERT_EQ(made.prefill.size(), 1u);
  EXPECT_EQ(made.prefill[0].tokens_count, 16) << "30 ms tick less 10 ms decode at 1 ms a token, in steps of 16";
}

TEST(PlanBatch, ABurstOfShortPromptsIsCompletedTogether) {
  std::vector<SequenceView> burst;
  for (std::int32_t i = 0; i < 16; ++i) burst.push_back(prefilling(i, 32));
  const BatchPlan made = plan(burst);
  ASSERT_EQ(made.prefill.size(), 16u) << "512 ms, more than a tick of one long prompt, but everyone gets a first token";
  burst.push_back(decoding(16, 16));
  EXPECT_EQ(plan(burst).prefill.size(), 1u) << "not where a stream would wait for it";
}

TEST(PlanBatch, ShortPromptsShareACallHoweverSlowTheModelIs) {
  const BatchLimits slow{.prefill_tick_ms = 20, .whole_prompts_ms = 20};
  std::vector<SequenceView> burst;
  for (std::int32_t i = 0; i < 17; ++i) burst.push_back(prefilling(i, 32));
  EXPECT_EQ(plan(burst, measured_model(), slow).prefill.size(), 16u) << "as many as fit into one library call";
  EXPECT_EQ(plan({prefilling(0, 32), prefilling(1, 65)}, measured_model(), slow).prefill.size(), 1u) << "a longer one waits";

  std::vector<SequenceView> in_background = burst;
  for (SequenceView& view : in_background) view.is_background = true;
  EXPECT_EQ(plan(in_background, measured_model(), slow).prefill.size(), 1u) << "an interactive one may come meanwhile";

  std::vector<SequenceView> with_due = burst;
  with_due[3].due_ms = 100;
  EXPECT_EQ(plan(with_due, measured_model(), slow).prefill.size(), 3u) << "a fourth prompt would make the first token late";
  with_due[3].due_ms = 10;
  EXPECT_EQ(plan(with_due, measured_model(), slow).prefill.size(), 16u) << "it is late in any case";
}

TEST(PlanBatch, ABurstBeforeAnythingIsKnownIsCompletedTogetherToo) {
  std::vector<SequenceView> burst;
  for (std::int32_t i = 0; i < 9; ++i) burst.push_back(prefilling(i, 32));
  const BatchPlan made = plan(burst, StepModel());
  EXPECT_EQ(made.prefill.size(), 8u) << "of 256 rows";
  EXPECT_EQ(rows_of(plan({prefilling(0, 400)}, StepModel()).prefill), kFastChunk) << "a long prompt shows what rows cost";
  const BatchPlan beside = plan({decoding(0, 0), prefilling(1, 32), prefilling(2, 32), prefilling(3, 32)}, StepModel());
  EXPECT_LE(rows_of(beside.prefill), kFastChunk) << "a stream does not wait for more";
}

TEST(PlanBatch, PrefillTakesLargeChunksWhenNobodyDecodes) {
  const BatchPlan made = plan({prefilling(1, 5000)});
  EXPECT_EQ(made.prefill[0].tokens_count, 192) << "250 ms at 1 ms a token, in multiples of 64";
}

TEST(PlanBatch, AChunkDeepInAPromptIsSmaller) {
  StepModel model;
  for (int round = 0; round < 50; ++round) {
    model.observe(decodes(1), 10);
    for (const std::int32_t cached : {0, 1000, 4000}) {
      for (const std::int32_t rows : {16, 48, 64, 256})
        model.observe(chunk(rows, cached), 0.5 * rows + 1e-4 * static_cast<double>(chunk(rows, cached).kv_tokens));
    }
  }
  SequenceView deep = prefilling(1, 4000);
  EXPECT_EQ(plan({decoding(0, 0), deep}, model, {.tick_ms = 60}).prefill.at(0).tokens_count, 64) << "32 ms of 50";
  deep.cached_tokens = 8000;
  EXPECT_EQ(plan({decoding(0, 0), deep}, model, {.tick_ms = 60}).prefill.at(0).tokens_count, 32) << "41 ms of 50";
}

TEST(PlanBatch, SeveralChunksTogetherKeepTheTick) {
  const StepModel model = measured_model();
  const BatchPlan made =
      plan({decoding(0, 0), prefilling(1, 20), prefilling(2, 30), prefilling(3, 500)}, model, {.tick_ms = 110});
  ASSERT_EQ(made.prefill.size(), 3u);
  StepShape call;
  for (const PlanRow& row : made.prefill) call.add_chunk(row.tokens_count, 0);
  EXPECT_LE(model.guarded_ms(decodes(1), call), 110);
  EXPECT_EQ(call.prefill_rows, 64) << "and use it";
}

TEST(PlanBatch, WhereDecodingTakesTheWholeTickPrefillGetsItsLeast) {
  StepModel model = measured_model();
  for (int i = 0; i < 200; ++i) model.observe(decodes(1), 20);
  EXPECT_EQ(plan({decoding(0, 0), prefilling(1, 1000)}, model, {.tick_ms = 60}).prefill.at(0).tokens_count, 32);
  EXPECT_EQ(plan({decoding(0, 0), prefilling(1, 1000)}, model, {.tick_ms = 20}).prefill.at(0).tokens_count, kPrefillChunkMin);
}

TEST(PlanBatch, BackgroundStreamsYieldWhereTimeIsShort) {
  StepModel model;
  for (int i = 0; i < 200; ++i) {
    for (const std::int32_t rows : {1, 2, 4}) model.observe(decodes(rows), 10.0 * rows);
  }
  std::vector<SequenceView> views{decoding(0, 0), decoding(1, 1), decoding(2, 2), decoding(3, 3)};
  for (SequenceView& view : views) view.cached_tokens = 100;
  views[1].is_background = views[2].is_background = true;
  const auto rows_of = [&](const BatchLimits& limits) { return plan(views, model, limits).decode.size(); };
  EXPECT_EQ(rows_of({.tick_ms = 100, .serves_background = false}), 4) << "all fit";
  EXPECT_EQ(rows_of({.tick_ms = 35, .serves_background = false}), 3);
  EXPECT_EQ(rows_of({.tick_ms = 25, .serves_background = false}), 2);
  EXPECT_EQ(rows_of({.tick_ms = 1, .serves_background = false}), 2) << "interactive ones are always served";
  EXPECT_EQ(rows_of({.tick_ms = 1, .serves_background = true}), 4);
  views[0].is_background = views[3].is_background = true;
  EXPECT_EQ(rows_of({.tick_ms = 1, .serves_background = false}), 4) << "nobody to yield to";
}

TEST(PrefillRank, WhoseFirstTokenIsDueGoesFirstWhileItCanComeInTime) {
  const StepModel model = measured_model();
  const double tokens_per_ms = model.prefill_tokens_per_ms();
  const auto rank = [&](std::int32_t pending, double due_ms, bool is_background = false) {
    return prefill_rank({.pending_tokens = pending, .is_background = is_background, .due_ms = due_ms}, model);
  };
  const double needed_ms = 1000 / tokens_per_ms;
  EXPECT_LT(rank(1000, needed_ms + 10), rank(16, kNotDue));
  EXPECT_LT(rank(1000, needed_ms + 10), rank(1000, needed_ms + 20)) << "the one with less to spare";
  EXPECT_GT(rank(1000, needed_ms - 10), rank(16, kNotDue)) << "it is too late for this one anyway";
  EXPECT_LT(rank(5000, kNotDue), rank(16, kNotDue, true));
}

TEST(ChunkSize, ShrinksAtOnceAndGrowsLate) {
  ChunkSize size;
  EXPECT_EQ(size.follow(128), 128);
  EXPECT_EQ(size.follow(32), 32);
  for (const std::int32_t fitting : {64, 192, 128}) EXPECT_EQ(size.follow(fitting), 32);
  EXPECT_EQ(size.follow(128), 64) << "the fewest rows that fitted in the four ticks";
  for (const std::int32_t fitting : {128, 128, 128, 64, 128, 128, 128}) EXPECT_EQ(size.follow(fitting), 64);
  EXPECT_EQ(size.follow(128), 128);
}

TEST(PlanBatch, PrefillAlwaysProgresses) {
  StepModel slow;
  slow.observe(decodes(1), 500);
  slow.observe(chunk(16), 10'000);
  EXPECT_EQ(plan({decoding(0, 0), prefilling(1, 1000)}, slow).prefill.at(0).tokens_count, kPrefillChunkMin);
}

TEST(PlanBatch, ALateChunkIsOneOfTheFastAttentionIfThatTakesHardlyLonger) {
  constexpr std::int32_t kDeep = 13'000;
  const auto deep = [](std::int32_t rows) {
    StepShape shape;
    shape.add_chunk(rows, kDeep);
    return shape;
  };
  StepModel model;
  for (int i = 0; i < 50; ++i) {
    model.observe(decodes(1), 20);
    model.observe(chunk(16), 16);
    model.observe(chunk(64), 50);
    model.observe(deep(16), 600);
    model.observe(deep(64), 830);
  }
  SequenceView prompt = prefilling(1, 1000);
  prompt.cached_tokens = kDeep;
  EXPECT_EQ(plan({decoding(0, 0), prompt}, model, {.tick_ms = 60}).prefill.at(0).tokens_count, kFastChunk);
}

TEST(PlanBatch, AShortRemainderGoesWithTheChunk) {
  StepModel slow;
  slow.observe(decodes(1), 500);
  slow.observe(chunk(16), 10'000);
  EXPECT_EQ(plan({decoding(0, 0), prefilling(1, 2 * kPrefillChunkMin - 1)}, slow).prefill.at(0).tokens_count,
            2 * kPrefillChunkMin - 1);
  EXPECT_EQ(plan({decoding(0, 0), prefilling(1, 2 * kPrefillChunkMin)}, slow).prefill.at(0).tokens_count, kPrefillChunkMin);
}

TEST(PlanBatch, ARemainderDoesNotBreakATickThatCouldBeKept) {
  const StepModel model = measured_model();
  for (std::int32_t pending = 1; pending <= 150; ++pending) {
    const BatchPlan made = plan({decoding(0, 0), prefilling(1, pending)}, model, {.tick_ms = 60});
    const std::int32_t rows = made.prefill.at(0).tokens_count;
    EXPECT_LE(model.guarded_ms(decodes(1), chunk(rows)), 60) << pending << " tokens";
    EXPECT_GE(rows, std::min(pending, 32)) << pending << " tokens";
  }
}

TEST(PlanBatch, ShortPromptsGoFirstUntilLongOnesHaveWaited) {
  const BatchPlan fresh = plan({prefilling(1, 5000), prefilling(2, 20)});
  EXPECT_EQ(fresh.prefill[1].index, 2);
  EXPECT_EQ(fresh.prefill[1].tokens_count, 20) << "whole, before the long one gets the rest";
  const double own_ms = 5000 / measured_model().prefill_tokens_per_ms();
  const double patience_ms = std::min(kPatience * own_ms, own_ms + kPatienceMaxMs);
  // Whoever comes first leaves the other the rest of the call, of which a long prompt leaves nothing.
  const auto has_short = [](double placed_ms) {
    return plan({prefilling(1, 5000, placed_ms), prefilling(2, 20)}).prefill.size() == 2;
  };
  EXPECT_TRUE(has_short(0.9 * patience_ms)) << "the next turn of a conversation is served before a long new prompt";
  EXPECT_FALSE(has_short(1.1 * patience_ms)) << "but a long prompt does not wait for ever";
}

TEST(PlanBatch, BackgroundPrefillsAfterInteractiveUnlessItWaitedLong) {
  SequenceView background = prefilling(1, 10);
  background.is_background = true;
  EXPECT_EQ(plan({background, prefilling(2, 4000)}).prefill.at(0).index, 2);
  background.waited_ms = 20'000;
  EXPECT_EQ(plan({background, prefilling(2, 4000)}).prefill.at(0).index, 1);
}

// A machine with tiled attention: rows of small chunks attend three times as slowly.
StepModel model_with_tiles() {
  StepModel model;
  for (int round = 0; round < 20; ++round) {
    for (const std::int32_t cached : {0, 500, 7000}) {
      for (const std::int32_t rows : {20, 40, 60}) model.observe(chunk(rows, cached), rows * (1.2 + 0.003 * cached));
      for (const std::int32_t rows : {64, 128, 512}) model.observe(chunk(rows, cached), rows * (1 + 0.001 * cached));
    }
  }
  return model;
}

TEST(AlignedRows, TheRemainderIsComputedWhereItIsCheapest) {
  const StepModel model = model_with_tiles();
  const auto rows = [&](std::int32_t cached, std::int32_t pending) { return aligned_rows(model, 300, cached, pending, 512); };
  EXPECT_EQ(rows(0, 316), 60 + 192) << "with as many multiples of 64 as fit";
  EXPECT_EQ(rows(0, 280), 24) << "alone it costs 29 ms, in a large call 64";
  EXPECT_EQ(rows(7000, 124), 124) << "alone, 60 rows cost as much as 170";
  EXPECT_EQ(rows(7000, 78), 14) << "few rows are cheaper alone";
  EXPECT_EQ(rows(0, 256), 256) << "without a remainder";
  EXPECT_EQ(rows(7000, 256), 64) << "although it takes longer than the budget";
  EXPECT_EQ(rows(7000, 60), 60) << "less than a multiple";
  EXPECT_EQ(aligned_rows(model, 300, 7000, 256, 512, 128), 128) << "two multiples at least";
  EXPECT_EQ(aligned_rows(model, 300, 7000, 124, 128, 128), 124) << "no more than are left";
  EXPECT_EQ(aligned_rows(model, 300, 7000, 188, 160, 128), 124) << "nor than a call may have";
  EXPECT_EQ(aligned_rows(model, 300, 7000, 124, 64), 60) << "both together are more than one call may have";
}

TEST(AlignedRows, OnlyTheFirstCallHasARemainder) {
  const StepModel model = model_with_tiles();
  for (std::int32_t pending = 1; pending <= 1000; ++pending) {
    std::int32_t left = pending;
    std::int32_t cached = 3000;
    while (left > 0) {
      const std::int32_t rows = aligned_rows(model, 200, cached, left, 512);
      ASSERT_TRUE(rows >= 1 && rows <= left) << pending;
      ASSERT_TRUE(left == pending || rows % kFastChunk == 0) << pending;
      left -= rows;
      cached += rows;
    }
  }
}

TEST(PlanBatch, HoldsItsPromisesForRandomLoads) {
  Random random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<SequenceView> sequences;
    const auto count = static_cast<std::int32_t>(random.next_below(20));
    for (std::int32_t i = 0; i < count; ++i) {
      SequenceView view =
          random.next_below(2) == 0 ? decoding(i, i) : prefilling(i, 1 + static_cast<std::int32_t>(random.next_below(3000)));
      view.waited_ms = static_cast<double>(random.next_below(20'000));
      view.placed_ms = view.waited_ms;
      view.cached_tokens = static_cast<std::int32_t>(random.next_below(3000));
      view.is_background = random.next_below(4) == 0;
      sequences.push_back(view);
    }
    BatchLimits limits;
    limits.rows_max = 1 + static_cast<std::int32_t>(random.next_below(600));
    const BatchPlan made = plan(sequences, random.next_below(3) == 0 ? StepModel() : measured_model(), limits);

    const auto decoders = std::ranges::count_if(sequences, &SequenceView::decodes);
    EXPECT_EQ(static_cast<std::int64_t>(made.decode.size()), std::min<std::int64_t>(decoders, limits.rows_max));
    std::set<std::int32_t> seen;
    std::int32_t prefill_rows = 0;
    for (const PlanRow& row : made.prefill) {
      EXPECT_TRUE(seen.insert(row.index).second) << "a sequence appears once";
      EXPECT_GE(row.tokens_count, 1);
      EXPECT_LE(row.tokens_count, sequences[static_cast<std::size_t>(row.index)].pending_tokens);
      prefill_rows += row.tokens_count;
    }
    EXPECT_LE(prefill_rows, limits.rows_max);
    EXPECT_TRUE(std::ranges::is_sorted(made.prefill, {}, &PlanRow::slot));
    EXPECT_EQ(decoders < count, prefill_rows >= 1) << "prefill always progresses";
  }
}

}  // namespace
}  // namespace uma::sched
