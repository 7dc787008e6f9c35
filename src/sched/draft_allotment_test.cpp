// How many draft tokens and unused rows a decode call gets, from the time that calls of each width take.
#include "sched/draft_allotment.h"

#include <array>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/draft_balance.h"
#include "sched/step_model.h"
#include "sched/width_costs.h"

namespace uma::sched {
namespace {

using ::testing::ElementsAre;

// Times of a 1.2 B model in Q4_0 on a CPU without AMX, in ms by rows.
constexpr std::array<double, WidthCosts::kWidths> kSteps{19.8, 36.1, 52.7, 33.6, 49.5, 65,  85,  62.5,
                                                         78.8, 94.5, 114,  92,   110,  124, 142, 111};
// The same where rows share nothing.
constexpr std::array<double, WidthCosts::kWidths> kEven{4.3,  8.3,  10, 11.7, 13.3, 14.8, 16.4, 18,
                                                        19.6, 21.5, 23, 24.5, 26,   27.6, 29.2, 30.8};

std::vector<DraftOffer> allotted(std::vector<DraftOffer> offers, bool evenly, std::span<const double, WidthCosts::kWidths> ms,
                                 std::int32_t rows_max = 64) {
  const WidthCosts costs(ms);
  const auto present = static_cast<std::int32_t>(offers.size());
  allot_drafts(offers, rows_max, evenly, [&](std::int32_t more) { return ms[0] * costs.of(present + more); });
  return offers;
}

MATCHER_P2(Rows, drafts, fill, "") {
  return arg.allotted == drafts && arg.fill == fill;
}

TEST(DraftAllotment, TakesAsManyAsGiveTheMostTokensPerTime) {
  EXPECT_THAT(allotted({{.chance = 0.98, .available = 12, .room = 50}}, false, kSteps), ElementsAre(Rows(7, 0)))
      << "8 rows are cheap";
  EXPECT_THAT(allotted({{.chance = 0.7, .available = 12, .room = 50}}, false, kSteps), ElementsAre(Rows(3, 0)));
  EXPECT_THAT(allotted({{.chance = 0.98, .available = 12, .room = 50}}, false, kEven), ElementsAre(Rows(12, 0)));
  EXPECT_THAT(allotted({{.chance = 0.6, .available = 12, .room = 50}}, false, kEven), ElementsAre(Rows(0, 0)));
}

TEST(DraftAllotment, FillsUpToACheaperWidth) {
  const DraftOffer none{.chance = 0.9, .available = 0, .room = 50};
  EXPECT_THAT(allotted({none, none, none}, false, kSteps), ElementsAre(Rows(0, 1), Rows(0, 0), Rows(0, 0)))
      << "3 rows take longer than 4";
  EXPECT_THAT(allotted({none, none, none}, false, kEven), ElementsAre(Rows(0, 0), Rows(0, 0), Rows(0, 0)));
  EXPECT_THAT(allotted({{.chance = 0.9, .available = 1, .room = 50}}, false, kSteps), ElementsAre(Rows(1, 2)));
}

TEST(DraftAllotment, KeepsToTheRoomThereIs) {
  EXPECT_THAT(allotted({{.chance = 0.98, .available = 2, .room = 2}}, false, kSteps), ElementsAre(Rows(2, 0)))
      << "4 rows do not fit";
  EXPECT_THAT(allotted({{.chance = 0.7, .available = 2, .room = 2}}, false, kSteps), ElementsAre(Rows(0, 0)))
      << "3 rows cost too much";
  EXPECT_THAT(allotted({{.chance = 0.98, .available = 12, .room = 50}}, false, kSteps, 5), ElementsAre(Rows(3, 0)));
  EXPECT_THAT(allotted({{.chance = 0.98, .available = 12, .room = 50}}, false, kSteps, 0), ElementsAre(Rows(0, 0)));
  EXPECT_THAT(allotted({}, true, kSteps), ElementsAre());
}

TEST(DraftAllotment, PrefersTheLikelierDraftTokens) {
  const auto offers =
      allotted({{.chance = 0.5, .available = 12, .room = 50}, {.chance = 0.98, .available = 12, .room = 50}}, false, kSteps);
  EXPECT_GT(offers[1].allotted, offers[0].allotted);
}

TEST(DraftAllotment, InASplitContextAllSequencesGetAsManyRows) {
  const DraftOffer good{.chance = 0.98, .available = 12, .room = 50};
  const DraftOffer none{.chance = 0.9, .available = 0, .room = 50};
  const auto both = allotted({good, good}, true, kSteps);
  EXPECT_GT(both[0].allotted, 0);
  EXPECT_EQ(both[0].allotted, both[1].allotted);
  EXPECT_THAT(allotted({none, none, none}, true, kSteps), ElementsAre(Rows(0, 0), Rows(0, 0), Rows(0, 0)))
      << "a row for each is too much";
  const auto one = allotted({good, none}, true, kSteps);
  EXPECT_EQ(one[1].fill, one[0].allotted + one[0].fill);
  EXPECT_THAT(allotted({good, {.chance = 0.98, .available = 0, .room = 0}}, true, kSteps), ElementsAre(Rows(0, 0), Rows(0, 0)));
}

TEST(DraftAllotment, DelaysOtherSequencesByThreeCallsAtMost) {
  std::array<double, WidthCosts::kWidths> ms = kEven;
  for (std::size_t i = 1; i < ms.size(); ++i) ms[i] = ms[0] * (1 + 0.21 * static_cast<double>(i));
  const DraftOffer good{.chance = 0.98, .available = 12, .room = 50};
  const auto offers = allotted({good, good}, true, ms);
  EXPECT_EQ(offers[0].allotted, 5) << "14 rows take more than three times as long as 2";
  EXPECT_EQ(allotted({good}, false, ms)[0].allotted, 12);
}

TEST(WidthCosts, TheLastPeriodGoesOn) {
  const WidthCosts costs(kSteps);
  EXPECT_DOUBLE_EQ(costs.of(1), 1);
  EXPECT_DOUBLE_EQ(costs.of(16), kSteps[15] / kSteps[0]);
  EXPECT_DOUBLE_EQ(costs.of(24), (2 * kSteps[15] - kSteps[7]) / kSteps[0]);
  EXPECT_DOUBLE_EQ(costs.of(19) - costs.of(11), costs.of(16) - costs.of(8));
  EXPECT_LT(costs.of(20), costs.of(19));
}

TEST(StepModel, KnowsWidthsThatWereMeasured) {
  StepModel model;
  StepShape one;
  one.add_decode(0);
  EXPECT_FALSE(model.knows_draft_rows());
  model.set_width_costs(kSteps);
  EXPECT_TRUE(model.knows_draft_rows());
  for (const std::int32_t rows : {1, 3, 4, 12}) {
    EXPECT_NEAR(model.predict_ms(one.with_drafts(rows - 1)), kSteps[static_cast<std::size_t>(rows - 1)], 1) << rows;
  }
  model.set_threads(1);
  for (int i = 0; i < 60; ++i) model.observe(one, 2 * kSteps[0]);
  EXPECT_NEAR(model.predict_ms(one.with_drafts(3)), 2 * kSteps[3], 10) << "a slower machine is slower at every width";
}

TEST(DraftBalance, StopsAfterALossAndGoesOnLater) {
  DraftBalance balance;
  EXPECT_TRUE(balance.may_draft());
  balance.add_drafted(30, 10, 1, 0);
  EXPECT_FALSE(balance.may_draft());
  int calls = 0;
  while (!balance.may_draft()) {
    balance.add_plain(10);
    ++calls;
  }
  EXPECT_NEAR(calls, 199, 2) << "20 ms were lost, and a hundredth of a call's time may be";
}

TEST(DraftBalance, GainsPayForALimitedLoss) {
  DraftBalance balance;
  for (int i = 0; i < 100; ++i) balance.add_drafted(20, 10, 1, 9);
  balance.add_drafted(25, 10, 1, 0);
  EXPECT_TRUE(balance.may_draft()) << "15 ms of the credit of two calls";
  balance.add_drafted(25, 10, 1, 0);
  EXPECT_FALSE(balance.may_draft());
}

TEST(DraftBalance, ALongLossIsForgotten) {
  DraftBalance balance;
  for (int i = 0; i < 100; ++i) balance.add_drafted(100, 10, 1, 0);
  int calls = 0;
  while (!balance.may_draft()) {
    balance.add_plain(10);
    ++calls;
  }
  EXPECT_LE(calls, 301);
}

}  // namespace
}  // namespace uma::sched
