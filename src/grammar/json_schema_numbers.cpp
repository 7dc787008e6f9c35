#include "grammar/json_schema_numbers.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <string_view>
#include <vector>

namespace uma::grammar {

std::string joined(std::span<const std::string> alternatives) {
  std::string out = "(";
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    if (i > 0) out += " | ";
    out += alternatives[i];
  }
  return alternatives.empty() ? "[]" : out + ")";  // A class without characters, which matches no text.
}

namespace {

// Appends alternatives for the integers from `low` to `high`, both given as texts of `digits` digits.
void add_equally_long(std::vector<std::string>& alternatives, const std::string& prefix, std::string_view low,
                      std::string_view high) {
  if (low.empty()) {
    alternatives.push_back(std::format("\"{}\"", prefix));
    return;
  }
  const auto rest = low.size() - 1;
  const bool low_is_least = low.substr(1).find_first_not_of('0') == std::string_view::npos;
  const bool high_is_most = high.substr(1).find_first_not_of('9') == std::string_view::npos;
  const auto add_free = [&](char first, char last) {
    if (first > last) return;
    std::string alternative = prefix.empty() ? "" : std::format("\"{}\" ", prefix);
    alternative += std::format("[{}-{}]", first, last);
    if (rest > 0) alternative += std::format(" [0-9]{{{}}}", rest);
    alternatives.push_back(std::move(alternative));
  };
  if (low[0] == high[0]) {
    if (low_is_least && high_is_most) return add_free(low[0], high[0]);
    return add_equally_long(alternatives, prefix + low[0], low.substr(1), high.substr(1));
  }
  char first = low[0];
  char last = high[0];
  if (!low_is_least) {
    add_equally_long(alternatives, prefix + low[0], low.substr(1), std::string(rest, '9'));
    ++first;
  }
  if (!high_is_most) --last;
  add_free(first, last);
  if (!high_is_most) add_equally_long(alternatives, prefix + high[0], std::string(rest, '0'), high.substr(1));
}

// Appends alternatives for the integers from `low` to `high`, 0 <= low <= high < kIntegerEnd.
void add_naturals(std::vector<std::string>& alternatives, std::int64_t low, std::int64_t high) {
  while (low <= high) {
    const std::string begin = std::to_string(low);
    const std::int64_t end = std::min(high, static_cast<std::int64_t>(std::pow(10.0, static_cast<double>(begin.size()))) - 1);
    add_equally_long(alternatives, "", begin, std::to_string(end));
    low = end + 1;
  }
}

std::string naturals(std::int64_t low, std::int64_t high) {
  std::vector<std::string> alternatives;
  add_naturals(alternatives, low, high);
  return joined(alternatives);
}

// Numbers without a sign from `low` (or above) to `high` (or below); kIntegerEnd: no upper bound.
std::string magnitudes(std::int64_t low, bool low_excluded, std::int64_t high, bool high_excluded) {
  constexpr std::string_view kAny = R"(("." [0-9]{1,15})?)";
  constexpr std::string_view kAbove = R"("." [0-9]{0,14} [1-9])";
  constexpr std::string_view kExact = R"(("." "0"{1,15})?)";
  std::vector<std::string> alternatives;
  const bool ends = high < kIntegerEnd;
  if (low > high || (low == high && (low_excluded || high_excluded))) return joined({});
  std::int64_t first = low;
  if (low_excluded) {
    alternatives.push_back(std::format("\"{}\" {}", low, kAbove));
    ++first;
  }
  if (first <= high - 1) alternatives.push_back(std::format("{} {}", naturals(first, high - 1), kAny));
  if (ends && !high_excluded && first <= high) alternatives.push_back(std::format("\"{}\" {}", high, kExact));
  return joined(alternatives);
}

}  // namespace

std::string integers(const Bounds& bounds) {
  if (!bounds.low && !bounds.high) return R"("-"? ("0" | [1-9] [0-9]{0,14}))";
  const std::int64_t low = std::max(bounds.low.value_or(1 - kIntegerEnd), 1 - kIntegerEnd);
  const std::int64_t high = std::min(bounds.high.value_or(kIntegerEnd - 1), kIntegerEnd - 1);
  std::vector<std::string> alternatives;
  if (low < 0) {
    const std::int64_t least = std::max<std::int64_t>(1, high < 0 ? -high : 1);
    if (least <= -low) alternatives.push_back("\"-\" " + naturals(least, -low));
  }
  if (high >= 0 && std::max<std::int64_t>(low, 0) <= high)
    alternatives.push_back(naturals(std::max<std::int64_t>(low, 0), high));
  return joined(alternatives);
}

std::string numbers(const Bounds& bounds) {
  if (!bounds.low && !bounds.high) return R"("-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?)";
  const std::int64_t low = bounds.low.value_or(-kIntegerEnd);
  const std::int64_t high = bounds.high.value_or(kIntegerEnd);
  std::vector<std::string> alternatives;
  // Zero has no minus sign.
  if (low < 0) {
    const bool is_negative = high <= 0;
    alternatives.push_back(
        "\"-\" " + magnitudes(is_negative ? -high : 0, high < 0 ? bounds.high_excluded : true, -low, bounds.low_excluded));
  }
  if (high >= 0) {
    const bool is_positive = low >= 0;
    alternatives.push_back(magnitudes(is_positive ? low : 0, is_positive && bounds.low_excluded, high, bounds.high_excluded));
  }
  return joined(alternatives);
}

}  // namespace uma::grammar
