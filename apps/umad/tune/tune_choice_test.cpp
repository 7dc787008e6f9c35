#include "umad/tune/tune_choice.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::umad {
namespace {

using ::testing::HasSubstr;

constexpr std::array<std::size_t, 1> kFirst = {0};
constexpr std::array<std::size_t, 2> kBoth = {0, 1};

Trial trial(std::string name, std::vector<Measurement> repetitions) {
  return {.name = std::move(name), .repetitions = std::move(repetitions)};
}

TEST(Choose, TakesTheLargestGain) {
  const std::vector<Trial> trials = {trial("a", {{10}, {10}, {10}}), trial("b", {{9}, {9}, {9}}), trial("c", {{8}, {8}, {8}})};
  const Choice choice = choose(trials, 0, kFirst);
  EXPECT_EQ(choice.index, 2U);
  EXPECT_DOUBLE_EQ(choice.gain, 0.2);
  EXPECT_THAT(choice.reason, HasSubstr("20.0 %"));
}

TEST(Choose, LessThanThreePercentKeepsTheDefault) {
  const std::vector<Trial> trials = {trial("a", {{9.75}, {9.75}, {9.75}}), trial("default", {{10}, {10}, {10}})};
  const Choice choice = choose(trials, 1, kFirst);
  EXPECT_EQ(choice.index, 1U);
  EXPECT_EQ(choice.gain, 0);
  EXPECT_THAT(choice.reason, HasSubstr("a gains only 2.5 %"));
  EXPECT_THAT(choose(std::array{trial("slow", {{11}, {11}, {11}}), trial("default", {{10}, {10}, {10}})}, 1, kFirst).reason,
              HasSubstr("nothing is faster"));
}

TEST(Choose, ComparesWithinARepetitionSoThatAMachineThatSlowsDownFavoursNobody) {
  // The machine becomes three times slower; b is 10 % faster all the time.
  const std::vector<Trial> trials = {trial("a", {{10}, {20}, {30}, {30}}), trial("b", {{9}, {18}, {27}, {27}})};
  const Choice choice = choose(trials, 0, kFirst);
  EXPECT_EQ(choice.index, 1U);
  EXPECT_NEAR(choice.gain, 0.1, 1e-9);
}

TEST(Choose, AGainThatComesAndGoesIsNone) {
  const std::vector<Trial> trials = {trial("a", {{10}, {10}, {10}, {10}, {10}}), trial("b", {{5}, {5}, {9}, {11}, {12}})};
  EXPECT_EQ(choose(trials, 0, kFirst).index, 0U);
  EXPECT_THAT(choose(trials, 0, kFirst).reason, HasSubstr("not in three of four"));
}

TEST(Choose, ASteadyGainIsTakenWhereALargerOneIsNotSteady) {
  const std::vector<Trial> trials = {trial("a", {{10}, {10}, {10}}), trial("b", {{1}, {1}, {50}}), trial("c", {{9}, {9}, {9}})};
  EXPECT_EQ(choose(trials, 0, kFirst).index, 2U);
}

TEST(Choose, FewRepetitionsProveNothing) {
  const std::vector<Trial> trials = {trial("a", {{10}, {10}}), trial("b", {{5}, {5}})};
  EXPECT_EQ(choose(trials, 0, kFirst).index, 0U);
  EXPECT_THAT(choose(trials, 0, kFirst).reason, HasSubstr("2 repetition(s)"));
}

TEST(Choose, WeighsTheColumnsByTheirRatios) {
  // A quarter less here against half as much again there.
  const std::vector<Trial> trials = {trial("a", {{100, 1}, {100, 1}, {100, 1}}), trial("b", {{75, 1.5}, {75, 1.5}, {75, 1.5}})};
  EXPECT_EQ(choose(trials, 0, kBoth).index, 0U);
  EXPECT_EQ(choose(trials, 0, kFirst).index, 1U) << "only the columns that were asked for count";
  EXPECT_NEAR(gain_of(trials[1], trials[0], kBoth), 1 - std::sqrt(0.75 * 1.5), 1e-9);
}

TEST(Choose, WhatWasNotMeasuredDoesNotCount) {
  const std::vector<Trial> trials = {trial("a", {{10, 0}, {10, 0}, {10, 0}}),
                                     trial("b", {{9, 5}, {9, 5}, {9, 5}}),
                                     {.name = "c", .impossible = "does not fit"}};
  EXPECT_EQ(choose(trials, 0, kBoth).index, 1U);
  EXPECT_NEAR(choose(trials, 0, kBoth).gain, 0.1, 1e-9);
  EXPECT_EQ(median(trials[0], 1), 0);
  EXPECT_THAT(choose(std::span(trials).subspan(2), 0, kBoth).reason, HasSubstr("no alternative works here"));
}

TEST(Median, IsTheMiddleOne) {
  EXPECT_EQ(median(trial("a", {{3}, {1}, {100}}), 0), 3);
  EXPECT_EQ(median(trial("a", {{3}, {1}, {100}, {4}}), 0), 3.5);
}

TEST(ChooseLanes, OnWhereStreamsStayEvenAndTheWorkTakesNotMuchLonger) {
  const Trial chunks = trial("chunks", {{400, 25}, {400, 25}, {400, 25}});
  const std::vector<Trial> even = {chunks, trial("lanes", {{40, 26}, {40, 26}, {40, 26}})};
  EXPECT_EQ(choose_lanes(even, 1).index, 1U);
  EXPECT_EQ(choose_lanes(even, 0).index, 1U);
  const std::vector<Trial> slow = {chunks, trial("lanes", {{40, 35}, {40, 35}, {40, 35}})};
  EXPECT_EQ(choose_lanes(slow, 1).index, 0U) << "a worst tick of a tenth is not worth two fifths more time";
  EXPECT_THAT(choose_lanes(slow, 1).reason, HasSubstr("a quarter longer"));
  const std::vector<Trial> useless = {chunks, trial("lanes", {{500, 26}, {500, 26}, {500, 26}})};
  EXPECT_EQ(choose_lanes(useless, 1).index, 0U);
}

}  // namespace
}  // namespace uma::umad
