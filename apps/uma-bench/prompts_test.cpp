#include "uma-bench/prompts.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace uma::bench {
namespace {

std::string first_word(const std::string& text) {
  return text.substr(0, text.find(' '));
}

TEST(PromptMaker, MakesTheSamePromptsFromTheSameSeed) {
  PromptMaker one(5), same(5), other(6);
  const std::string prompt = one.make_unique(40);
  EXPECT_EQ(prompt, same.make_unique(40));
  EXPECT_NE(prompt, other.make_unique(40));
}

TEST(PromptMaker, CountsWordsAndSharesNoBeginning) {
  PromptMaker prompts(1);
  std::set<std::string> beginnings;
  for (int i = 0; i < 500; ++i) {
    const std::string prompt = prompts.make_unique(12);
    EXPECT_EQ(std::ranges::count(prompt, ' '), 11);
    EXPECT_TRUE(beginnings.insert(first_word(prompt)).second) << prompt;
  }
}

TEST(PromptMaker, RepeatsABlockByItsIdWhateverElseWasMade) {
  PromptMaker prompts(1);
  const std::string block = prompts.make_block(17, 512);
  (void)prompts.make_unique(100);
  EXPECT_EQ(prompts.make_block(17, 512), block);
  EXPECT_NE(prompts.make_block(18, 512), block);
  EXPECT_TRUE(block.starts_with(prompts.make_block(17, 100))) << "a cut block is the beginning of the whole one";
}

}  // namespace
}  // namespace uma::bench
