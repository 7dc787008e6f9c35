#include "kv/prefix_index.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::kv {
namespace {

using Tokens = std::vector<Token>;

TEST(PrefixIndex, FindsTheEntryThatSharesMost) {
  const Tokens short_one{1, 2};
  const Tokens long_one{1, 2, 3, 4, 5};
  const Tokens other{1, 9};
  PrefixIndex index;
  index.add(1, "a", short_one);
  index.add(2, "a", long_one);
  index.add(3, "a", other);

  const auto match = index.longest_common("a", Tokens{1, 2, 3, 7});
  ASSERT_TRUE(match);
  EXPECT_EQ(match->id, 2u);
  EXPECT_EQ(match->tokens_count, 3u);
  EXPECT_EQ(index.longest_common("a", Tokens{1, 9, 9})->id, 3u);
  EXPECT_FALSE(index.longest_common("a", Tokens{5}));
  EXPECT_FALSE(index.longest_common("a", Tokens{}));
}

TEST(PrefixIndex, KeepsScopesApart) {
  const Tokens tokens{1, 2, 3};
  PrefixIndex index;
  index.add(1, "a", tokens);
  EXPECT_FALSE(index.longest_common("b", tokens));
  EXPECT_FALSE(index.longest_whole("b", tokens));
  index.add(2, "b", tokens);
  EXPECT_EQ(index.longest_common("b", tokens)->id, 2u);
  index.remove(1, "a", tokens);
  EXPECT_FALSE(index.longest_common("a", tokens));
}

TEST(PrefixIndex, HoldsEqualEntriesSideBySide) {
  const Tokens tokens{4, 5};
  PrefixIndex index;
  index.add(1, "a", tokens);
  index.add(2, "a", tokens);
  index.remove(1, "a", tokens);
  EXPECT_EQ(index.longest_whole("a", Tokens{4, 5, 6})->id, 2u);
}

// Against a search through all entries.
TEST(PrefixIndex, AgreesWithLookingAtEveryEntry) {
  Random random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Tokens> entries(1 + random.next_below(12));
    PrefixIndex index;
    const auto draw = [&](std::size_t length_max) {
      Tokens tokens(1 + random.next_below(length_max));
      for (Token& token : tokens) token = static_cast<Token>(random.next_below(3));
      return tokens;
    };
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i] = draw(8);
      index.add(i + 1, "s", entries[i]);
    }
    const Tokens chain = draw(10);
    std::size_t common = 0;
    std::size_t whole = 0;
    for (const Tokens& entry : entries) {
      const std::size_t shared = common_prefix(entry, chain);
      common = std::max(common, shared);
      if (shared == entry.size()) whole = std::max(whole, shared);
    }
    const auto best = index.longest_common("s", chain);
    ASSERT_EQ(best ? best->tokens_count : 0, common);
    if (best) {
      ASSERT_EQ(common_prefix(entries[best->id - 1], chain), common);
    }
    const auto best_whole = index.longest_whole("s", chain);
    ASSERT_EQ(best_whole ? best_whole->tokens_count : 0, whole);
    if (best_whole) {
      ASSERT_EQ(entries[best_whole->id - 1].size(), whole);
    }
  }
}

}  // namespace
}  // namespace uma::kv
