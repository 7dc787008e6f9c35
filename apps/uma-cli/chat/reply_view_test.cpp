#include "uma-cli/chat/reply_view.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace uma::cli {
namespace {

// Returns what a terminal shows of a reply that comes in pieces of `step` bytes, with <b>, <c>, <f> and </> for styles.
std::string shown(std::string_view reply, std::size_t columns, bool has_colour, std::size_t step) {
  ReplyView view(columns, has_colour);
  std::string printed;
  for (std::size_t at = 0; at < reply.size(); at += step) printed += view.take(reply.substr(at, step));
  printed += view.end();
  std::string screen;
  for (std::size_t at = 0; at < printed.size(); ++at) {
    if (printed[at] != '\x1b') {
      screen += printed[at];
      continue;
    }
    const std::size_t end = printed.find_first_of("mDK", at);
    const std::string code = printed.substr(at + 2, end - at - 2);
    if (printed[end] == 'D') {
      // The rest of the line is erased next; what was moved has no styles in these tests.
      screen.resize(screen.size() - std::stoul(code));
    } else if (printed[end] == 'm') {
      screen += code == "0" ? "</>" : code == "1" ? "<b>" : code == "36" ? "<c>" : "<f>";
    }
    at = end;
  }
  return screen;
}

TEST(ReplyView, LinesEndBetweenWords) {
  for (const std::size_t step : {1u, 2u, 5u, 100u}) {
    EXPECT_EQ(shown("one two three four\nfive", 10, false, step), "one two \nthree \nfour\nfive") << step;
    EXPECT_EQ(shown("a word_that_is_longer than a line", 10, false, step), "a \nword_that\n_is_longe\nr than a \nline") << step;
    EXPECT_EQ(shown("ends here! \nso", 11, false, step), "ends here!\nso") << step;
    EXPECT_EQ(shown("ends here! so", 11, false, step), "ends here!\nso") << step;
  }
}

TEST(ReplyView, MarkdownHasWeightAndColourInsteadOfMarks) {
  for (const std::size_t step : {1u, 2u, 3u, 100u}) {
    EXPECT_EQ(shown("a **bold** word and `code*s*`.", 80, true, step), "a </><b>bold</> word and </><c>code*s*</>.") << step;
    EXPECT_EQ(shown("# Head #1\n2 * 3\n", 80, true, step), "</><b># Head #1</>\n2 * 3\n") << step;
    EXPECT_EQ(shown("```cpp\nint **a = `x`;\n```\nafter **", 80, true, step),
              "</><f>```cpp</>\n</><c>int **a = `x`;</>\n</><f>```</>\nafter ")
        << step;
    EXPECT_EQ(shown("2 ** 10 and **a b**", 80, true, step), "2 ** 10 and </><b>a b</>") << step;
    EXPECT_EQ(shown("```x```\nplain", 80, true, step), "</><f>```x```</>\nplain") << step;
    EXPECT_EQ(shown("**open\nplain", 80, true, step), "</><b>open</>\nplain") << step;
    EXPECT_EQ(shown("no **colour** `here`", 80, false, step), "no **colour** `here`") << step;
  }
}

TEST(ReplyView, LinesOfCodeAreNotBroken) {
  EXPECT_EQ(shown("```\na long line of code\n```", 10, true, 4), "</><f>```</>\n</><c>a long line of code</>\n</><f>```</>");
}

TEST(ReplyView, AStyledWordIsMovedWithItsStyle) {
  ReplyView view(12, true);
  std::string printed = view.take("a line **strong**");
  printed += view.end();
  EXPECT_EQ(printed, "a line \x1b[0m\x1b[1mstro\x1b[4D\x1b[K\x1b[0m\n\x1b[0m\x1b[1m\x1b[0m\x1b[1mstrong\x1b[0m");
}

}  // namespace
}  // namespace uma::cli
