#include "llm/rope.h"

#include <gtest/gtest.h>

namespace uma::llm {
namespace {

RopeOptions yarn(double scale) {
  return {.scaling = RopeScaling::yarn, .scale = scale};
}

TEST(Rope, KeysAreReadAndShown) {
  RopeOptions options;
  EXPECT_FALSE(options.is_given());
  EXPECT_EQ(rope_text(options), "");
  EXPECT_EQ(rope_value(options, "scaling"), "auto");
  EXPECT_EQ(rope_value(options, "scale"), "");
  EXPECT_EQ(set_rope(options, "scaling", "yarn"), std::nullopt);
  EXPECT_EQ(set_rope(options, "scale", "4"), std::nullopt);
  EXPECT_EQ(set_rope(options, "yarn_orig_ctx", "32768"), std::nullopt);
  EXPECT_EQ(set_rope(options, "yarn_ext_factor", "0.5"), std::nullopt);
  RopeOptions expected = yarn(4);
  expected.yarn_orig_ctx = 32'768;
  expected.yarn_ext_factor = 0.5;
  EXPECT_EQ(options, expected);
  EXPECT_TRUE(options.is_given());
  EXPECT_EQ(rope_text(options), "scaling yarn, scale 4, yarn_orig_ctx 32768, yarn_ext_factor 0.5");
  for (const RopeNumber& number : kRopeNumbers) {
    RopeOptions copy;
    EXPECT_EQ(set_rope(copy, number.name, rope_value(options, number.name)).has_value(), !(options.*number.value).has_value());
    EXPECT_EQ(copy.*number.value, options.*number.value);
  }
}

TEST(Rope, ValuesThatAreNoneAreNamed) {
  RopeOptions options;
  EXPECT_EQ(set_rope(options, "scaling", "longrope"), "auto, none, linear or yarn");
  for (const char* text : {"0", "0.5", "-4", "nan", "inf", "", "4x", "1e4"})
    EXPECT_EQ(set_rope(options, "scale", text), "a number from 1 to 1000") << text;
  EXPECT_EQ(set_rope(options, "freq_scale", "2"), "a number from 0.001 to 1");
  EXPECT_EQ(set_rope(options, "freq_base", "-1"), "a number from 2 to 1e+12");
  EXPECT_EQ(set_rope(options, "yarn_orig_ctx", "4096.5"), "an integer from 128 to 16777216");
  EXPECT_EQ(set_rope(options, "yarn_ext_factor", "-1"), "a number from 0 to 1");
  EXPECT_TRUE(set_rope(options, "colour", "red")->starts_with("one of the keys scaling, scale, freq_scale, "));
  EXPECT_FALSE(options.is_given());
}

TEST(Rope, OptionsThatDoNotFitTogetherAreNamed) {
  EXPECT_EQ(check_rope({}), std::nullopt);
  EXPECT_EQ(check_rope(yarn(4)), std::nullopt);
  EXPECT_EQ(check_rope({.scale = 2}), std::nullopt);
  EXPECT_EQ(check_rope({.scaling = RopeScaling::none}), std::nullopt);
  EXPECT_EQ(check_rope({.freq_base = 1e6}), std::nullopt);
  EXPECT_EQ(check_rope({.yarn_orig_ctx = 4096}), std::nullopt) << "the file may state YaRN";

  const auto problem = [](const RopeOptions& options) { return check_rope(options).value_or(""); };
  EXPECT_TRUE(problem({.scaling = RopeScaling::yarn}).starts_with("scale with scaling yarn"));
  EXPECT_TRUE(problem({.scaling = RopeScaling::linear}).starts_with("scale with scaling linear"));
  EXPECT_EQ(problem({.scaling = RopeScaling::none, .freq_scale = 0.5}), "no scale with scaling none");
  EXPECT_TRUE(problem({.scale = 2, .freq_scale = 0.5}).contains("not both"));
  EXPECT_EQ(problem({.scaling = RopeScaling::linear, .scale = 2, .yarn_orig_ctx = 4096}),
            "scaling yarn with yarn_orig_ctx, got linear");
  RopeOptions options = yarn(4);
  options.yarn_attn_factor = 2;
  EXPECT_TRUE(problem(options).starts_with("yarn_ext_factor: 0 with yarn_attn_factor"));
  options.yarn_ext_factor = 0;
  EXPECT_EQ(problem(options), "");
  options.yarn_beta_slow = 40;
  EXPECT_EQ(problem(options), "yarn_beta_slow of at most yarn_beta_fast, got 40 and 32");
}

TEST(Rope, SupportedTokensFollowFromTheScale) {
  const ContextLengths qwen{.train = 40'960, .original = 0};
  const ContextLengths scaled_in_file{.train = 131'072, .original = 32'768};
  EXPECT_EQ(supported_tokens({}, qwen, 1 << 20), 40'960);
  EXPECT_EQ(supported_tokens({}, scaled_in_file, 0), 131'072);
  RopeOptions options = yarn(4);
  EXPECT_EQ(supported_tokens(options, qwen, 0), 163'840);
  EXPECT_EQ(supported_tokens(options, scaled_in_file, 0), 131'072);
  options.yarn_orig_ctx = 32'768;
  EXPECT_EQ(supported_tokens(options, qwen, 1 << 20), 131'072);
  EXPECT_EQ(supported_tokens({.freq_scale = 0.5}, qwen, 0), 81'920);
  EXPECT_EQ(supported_tokens({.scaling = RopeScaling::none}, scaled_in_file, 0), 32'768);
  EXPECT_EQ(supported_tokens({.freq_base = 1e6}, qwen, 65'536), 65'536) << "as the user says";
  EXPECT_EQ(supported_tokens({.freq_base = 1e6}, qwen, 0), 40'960);
  EXPECT_EQ(supported_tokens(yarn(4), {}, 0), 0);
}

}  // namespace
}  // namespace uma::llm
