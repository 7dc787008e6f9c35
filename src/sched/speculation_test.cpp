// The guessing of tokens: where guesses come from, and how many are worth it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/draft_control.h"
#include "sched/ngram_drafter.h"

namespace uma::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Token> guess(NgramDrafter& drafter, const std::vector<Token>& chain, std::int32_t count = 4) {
  std::vector<Token> draft{99};
  drafter.draft(chain, count, draft);
  return draft;
}

TEST(NgramDrafter, GuessesWhatFollowedTheSameThreeTokens) {
  NgramDrafter drafter;
  EXPECT_THAT(guess(drafter, {1, 2, 3, 4, 5, 6, 7, 1, 2, 3}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(guess(drafter, {1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4}, 2), ElementsAre(5, 6)) << "the chain grew";
}

TEST(NgramDrafter, TakesTheLatestOccurrence) {
  NgramDrafter drafter;
  EXPECT_THAT(guess(drafter, {1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3}, 1), ElementsAre(5));
}

TEST(NgramDrafter, ARepetitionGoesOn) {
  NgramDrafter drafter;
  EXPECT_THAT(guess(drafter, {7, 7, 7, 7, 7}), ElementsAre(7, 7, 7, 7));
  NgramDrafter other;
  EXPECT_THAT(guess(other, {1, 2, 1, 2, 1, 2}, 5), ElementsAre(1, 2, 1, 2, 1));
}

TEST(NgramDrafter, HasNoGuessForWhatIsNew) {
  NgramDrafter drafter;
  EXPECT_THAT(guess(drafter, {1, 2, 3, 4, 5, 6}), IsEmpty());
  EXPECT_THAT(guess(drafter, {1, 2}), IsEmpty());
  EXPECT_THAT(guess(drafter, {}), IsEmpty());
}

TEST(DraftControl, TriesLittleUntilThePriceIsKnown) {
  EXPECT_EQ(DraftControl().tokens_worthwhile(10, 0), 2);
}

TEST(DraftControl, TriesMoreWhereGuessesAreRight) {
  DraftControl control;
  const std::int32_t at_first = control.tokens_worthwhile(10, 1);
  for (int i = 0; i < 20; ++i) control.observe(4, 4);
  EXPECT_GT(control.tokens_worthwhile(10, 1), at_first);
  EXPECT_EQ(control.tokens_worthwhile(10, 0.1), kDraftTokensMax);
}

TEST(DraftControl, GivesUpWhereTheyAreWrongAndTriesAgainLater) {
  DraftControl control(kDraftModelPrior);
  for (int i = 0; i < 20; ++i) control.observe(4, 0);
  EXPECT_EQ(control.tokens_worthwhile(10, 3), 0);
  for (int i = 0; i < 600; ++i) control.observe_untried();
  EXPECT_GT(control.tokens_worthwhile(10, 3), 0);
}

TEST(DraftControl, ARowThatCostsMoreThanATokenIsNeverWorthIt) {
  DraftControl control;
  for (int i = 0; i < 100; ++i) control.observe(8, 8);
  EXPECT_EQ(control.tokens_worthwhile(10, 11), 0) << "as with many sequences in a batch";
}

}  // namespace
}  // namespace uma::sched
