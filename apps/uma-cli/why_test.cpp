#include "uma-cli/why.h"

#include <string_view>
#include <utility>

#include <boost/json/parse.hpp>
#include <gtest/gtest.h>

namespace uma::cli {
namespace {

std::string lines_of(std::string_view miss) {
  boost::json::object usage{{"prompt_tokens", 2016}, {"reused_tokens", 812}};
  if (!miss.empty()) usage["cache_miss"] = boost::json::parse(miss);
  return why_text(usage);
}

TEST(Why, NamesThePlace) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {R"({"kind":"text","token":812,"message":3,"role":"user","lost_tokens":1204})",
       "message 3 (user) differs from token 812 on: 1204 tokens computed again\n"},
      {R"({"kind":"system","token":5,"message":0,"role":"system","lost_tokens":1})",
       "the system prompt, message 0 (system), differs from token 5 on: 1 token computed again\n"},
      {R"({"kind":"tools","token":5,"lost_tokens":0})", "the tools differ from token 5 on: 0 tokens computed again\n"},
      {R"({"kind":"reasoning","token":5,"message":2,"role":"assistant","lost_tokens":9})",
       "the reasoning of message 2 (assistant) differs from token 5 on: 9 tokens computed again\n"},
      {R"({"kind":"image","token":5,"message":1,"role":"user","lost_tokens":9})",
       "an image of message 1 (user) differs from token 5 on: 9 tokens computed again\n"},
      {R"({"kind":"a later kind","token":5,"lost_tokens":9})", "the text differs from token 5 on: 9 tokens computed again\n"},
      {R"({"kind":"model","token":0,"lost_tokens":9})",
       "another model, or other adapters, had computed it: 9 tokens computed again\n"},
      {R"({"kind":"not_held","token":12,"lost_tokens":9})",
       "the prompt is known, but from token 12 on its KV is gone, or slower to read than to compute: 9 tokens computed "
       "again\n"},
      {R"({"kind":"not_found"})", "the reply that it should be compared with is not known\n"},
      {"", "what was known of it was reused\n"},
  };
  for (const auto& [miss, line] : cases) EXPECT_EQ(lines_of(miss), "812 of 2016 prompt tokens reused\n" + std::string(line));
  EXPECT_EQ(why_text({{"prompt_tokens", 1}}), "0 of 1 prompt token reused\nno prompt is remembered that begins like it\n");
}

TEST(Why, NamesTheOtherReplyAndAClock) {
  const std::string text =
      lines_of(R"({"kind":"tools","token":5,"lost_tokens":9,"known_tokens":40,"compared_with":"ab12","repeats":3})");
  EXPECT_TRUE(text.contains("compared with the prompt of reply ab12, 40 tokens with the reply\n")) << text;
  EXPECT_TRUE(text.contains("3 prompts have differed at this place")) << text;
}

}  // namespace
}  // namespace uma::cli
