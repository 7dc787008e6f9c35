#include "llm/rope.h"

#include <algorithm>
#include <cmath>
#include <format>

#include "base/read_number.h"

namespace uma::llm {
namespace {

struct ScalingName {
  RopeScaling scaling = RopeScaling::of_model;
  std::string_view name{};
};
constexpr std::array<ScalingName, 4> kScalings{{
    {RopeScaling::of_model, "auto"},
    {RopeScaling::none, "none"},
    {RopeScaling::linear, "linear"},
    {RopeScaling::yarn, "yarn"},
}};
constexpr std::string_view kScaling = "scaling";

std::string_view name_of(RopeScaling scaling) {
  return std::ranges::find(kScalings, scaling, &ScalingName::scaling)->name;
}

}  // namespace

std::string rope_keys() {
  std::string keys(kScaling);
  for (const RopeNumber& number : kRopeNumbers) keys += std::format(", {}", number.name);
  return keys;
}

std::optional<std::string> set_rope(RopeOptions& options, std::string_view key, std::string_view text) {
  if (key == kScaling) {
    const auto* const named = std::ranges::find(kScalings, text, &ScalingName::name);
    if (named == kScalings.end()) return "auto, none, linear or yarn";
    options.scaling = named->scaling;
    return std::nullopt;
  }
  const auto* const number = std::ranges::find(kRopeNumbers, key, &RopeNumber::name);
  if (number == kRopeNumbers.end()) return "one of the keys " + rope_keys();
  double value = 0;
  const auto [end, problem] = read_number(text.data(), text.data() + text.size(), value);
  // The comparison also refuses NaN.
  const bool is_in_range =
      problem == std::errc() && end == text.data() + text.size() && value >= number->min && value <= number->max;
  if (!is_in_range || (number->is_whole && value != std::floor(value))) {
    return std::format("{} from {} to {}", number->is_whole ? "an integer" : "a number", number->min, number->max);
  }
  options.*number->value = value;
  return std::nullopt;
}

std::string rope_value(const RopeOptions& options, std::string_view key) {
  if (key == kScaling) return std::string(name_of(options.scaling));
  const std::optional<double> value = options.*std::ranges::find(kRopeNumbers, key, &RopeNumber::name)->value;
  return value ? std::format("{}", *value) : "";
}

std::optional<std::string> check_rope(const RopeOptions& options) {
  const std::string_view scaling = name_of(options.scaling);
  const bool has_scale = options.given_scale().has_value();
  if (options.scale && options.freq_scale) return "scale or freq_scale, which is 1 / scale, but not both";
  if (options.scaling == RopeScaling::none && has_scale) return "no scale with scaling none";
  if ((options.scaling == RopeScaling::linear || options.scaling == RopeScaling::yarn) && !has_scale) {
    return std::format("scale with scaling {}: how many times longer the context becomes, such as scale: 4", scaling);
  }
  for (const RopeNumber& number : kRopeNumbers) {
    const bool is_misplaced = options.scaling == RopeScaling::none || options.scaling == RopeScaling::linear;
    if (is_misplaced && number.name.starts_with("yarn_") && options.*number.value) {
      return std::format("scaling yarn with {}, got {}", number.name, scaling);
    }
  }
  if (options.scaling == RopeScaling::yarn && options.yarn_attn_factor && options.yarn_ext_factor != 0) {
    return "yarn_ext_factor: 0 with yarn_attn_factor; otherwise libllama computes the factor from the scale";
  }
  constexpr double kBetaSlow = 1;  // The library's values.
  constexpr double kBetaFast = 32;
  const double slow = options.yarn_beta_slow.value_or(kBetaSlow);
  const double fast = options.yarn_beta_fast.value_or(kBetaFast);
  if (slow > fast) return std::format("yarn_beta_slow of at most yarn_beta_fast, got {} and {}", slow, fast);
  return std::nullopt;
}

std::string rope_text(const RopeOptions& options) {
  std::string text;
  if (options.scaling != RopeScaling::of_model) text = std::format("scaling {}", name_of(options.scaling));
  for (const RopeNumber& number : kRopeNumbers) {
    const std::optional<double> value = options.*number.value;
    if (value) text += std::format("{}{} {}", text.empty() ? "" : ", ", number.name, *value);
  }
  return text;
}

std::int64_t supported_tokens(const RopeOptions& options, const ContextLengths& lengths, std::int64_t wanted) {
  const std::optional<double> scale = options.given_scale();
  const std::int64_t in_file = lengths.original > 0 ? lengths.original : lengths.train;
  std::int64_t tokens = options.scaling == RopeScaling::none ? in_file : lengths.train;
  if (scale) tokens = static_cast<std::int64_t>(options.yarn_orig_ctx.value_or(static_cast<double>(in_file)) * *scale);
  return options.freq_base ? std::max(tokens, wanted) : tokens;
}

}  // namespace uma::llm
