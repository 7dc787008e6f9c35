#include "llm/sampling/text_finder.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::llm {
namespace {

TEST(TextFinder, FindsTextsWithinAndAcrossPieces) {
  const std::vector<std::string> texts{"stop", "\n", "op to"};
  const TextFinder finder(texts);
  EXPECT_TRUE(finder.is_in("a stop b"));
  EXPECT_TRUE(finder.is_in("\n"));
  EXPECT_FALSE(finder.is_in("sto op t"));
  EXPECT_FALSE(finder.is_in(""));
  TextFinder::State state = TextFinder::kStart;
  EXPECT_FALSE(finder.read(state, "st"));
  EXPECT_FALSE(finder.read(state, ""));
  EXPECT_TRUE(finder.read(state, "op"));
  EXPECT_FALSE(finder.read(state, " t"));
  EXPECT_TRUE(finder.read(state, "o")) << "it began within the other one";
}

TEST(TextFinder, FindsTheSameAsASearchForEach) {
  Random random(5);
  const auto letters = [&](std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += static_cast<char>('a' + random.next_below(2));
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> texts(1 + random.next_below(6));
    for (std::string& text : texts) text = letters(1 + random.next_below(7));
    const TextFinder finder(texts);
    TextFinder::State state = TextFinder::kStart;
    std::string whole;
    for (int i = 0; i < 20; ++i) {
      const std::string piece = letters(random.next_below(6));
      whole += piece;
      const bool is_expected = std::ranges::any_of(texts, [&](const std::string& text) {
        const std::size_t before = whole.size() - piece.size();
        return whole.find(text, before - std::min(before, text.size() - 1)) != std::string::npos;
      });
      ASSERT_EQ(finder.read(state, piece), is_expected) << "round " << round << ": " << whole;
    }
  }
}

}  // namespace
}  // namespace uma::llm
