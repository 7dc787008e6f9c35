#include "llm/picture/clip_tokens.h"

#include <string>

#include <boost/json/parse.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/picture/diffusion_golden.h"

namespace uma::llm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ClipTokensTest, EncodesAsTheReferenceDoes) {
  std::size_t prompts = 0;
  for (std::string_view left = clip_tokens_golden(); !left.empty();) {
    std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    std::vector<std::int32_t> expected;
    while (!line.ends_with('"')) {
      const std::size_t at = line.rfind('\t');
      expected.insert(expected.begin(), std::stoi(std::string(line.substr(at + 1))));
      line = line.substr(0, at);
    }
    const std::string prompt(boost::json::parse(line).as_string());
    EXPECT_EQ(ClipTokens::shared().encode(prompt), expected) << prompt;
    ++prompts;
  }
  EXPECT_GT(prompts, 50u);
}

TEST(ClipTokensTest, ReadsAnyBytes) {
  const ClipTokens& tokens = ClipTokens::shared();
  EXPECT_THAT(tokens.encode("\xff"), tokens.encode("\xef\xbf\xbd"));
  EXPECT_THAT(tokens.encode(std::string_view("a\0b", 3)), ::testing::SizeIs(3));
  EXPECT_THAT(tokens.encode(" \n\t\xc2\xa0\xe3\x80\x80"), IsEmpty());
  EXPECT_THAT(tokens.encode("cat"), ElementsAre(2368));
}

}  // namespace
}  // namespace uma::llm
