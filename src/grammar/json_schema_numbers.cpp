#include "grammar/json_schema_numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <format>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace uma::grammar {
namespace {

constexpr std::size_t kWholeDigits = 20;  // Digits of numbers without a bound: those of uint64 and more.
constexpr std::size_t kDecimals = 15;     // More would round to an excluded bound in readers' doubles.
constexpr std::size_t kDigitsMax = 40;    // Digits of a bound.

using Alternatives = std::vector<std::string>;

// One expression for all alternatives, of which there is at least one.
std::string any_of(const Alternatives& alternatives) {
  std::string out = "(?:";
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    if (i > 0) out += '|';
    out += alternatives[i];
  }
  return out + ")";
}

std::string digit_between(char first, char last) {
  return first == last ? std::string(1, first) : std::format("[{}-{}]", first, last);
}

std::string plus_one(std::string digits) {
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
    if (*digit != '9') {
      ++*digit;
      return digits;
    }
    *digit = '0';
  }
  return "1" + digits;
}

// Requires: not 0.
std::string minus_one(std::string digits) {
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
    if (*digit != '0') {
      --*digit;
      break;
    }
    *digit = '9';
  }
  const std::size_t zeros = std::min(digits.find_first_not_of('0'), digits.size() - 1);
  return digits.substr(zeros);
}

bool is_less(std::string_view a, std::string_view b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

// Appends the integers from `low` to `high`, which have equally many digits.
void add_equally_long(Alternatives& alternatives, const std::string& prefix, std::string_view low, std::string_view high) {
  if (low.empty()) {
    alternatives.push_back(prefix);
    return;
  }
  const auto rest = low.size() - 1;
  const bool low_is_least = low.substr(1).find_first_not_of('0') == std::string_view::npos;
  const bool high_is_most = high.substr(1).find_first_not_of('9') == std::string_view::npos;
  const auto add_free = [&](char first, char last) {
    if (first > last) return;
    alternatives.push_back(prefix + digit_between(first, last) + (rest > 0 ? std::format("[0-9]{{{}}}", rest) : ""));
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

// Appends the integers from `low` to `high`; without `high`, up to those with a digit more, or 20.
void add_naturals(Alternatives& alternatives, std::string low, const std::optional<std::string>& high) {
  const std::string end = high.value_or(std::string(std::max(kWholeDigits, low.size() + 1), '9'));
  while (!is_less(end, low)) {
    const bool is_power = low[0] == '1' && low.find_first_not_of('0', 1) == std::string::npos;
    if (is_power && end.size() > low.size()) {
      // All numbers of these lengths.
      alternatives.push_back(std::format("[1-9][0-9]{{{},{}}}", low.size() - 1, end.size() - 2));
      low = "1" + std::string(end.size() - 1, '0');
      continue;
    }
    const std::string last = end.size() == low.size() ? end : std::string(low.size(), '9');
    add_equally_long(alternatives, "", low, last);
    low = "1" + std::string(low.size(), '0');
  }
}

std::string up_to(std::size_t digits, std::string_view digit = "[0-9]") {
  return digits == 0 ? "" : std::format("{}{{0,{}}}", digit, digits);
}

std::string without_zeros(std::string digits) {
  digits.resize(digits.find_last_not_of('0') + 1);
  return digits;
}

// Appends the digits behind `prefix` of fractions that are not below 0.`least`, at most `room` digits.
void add_from(Alternatives& alternatives, const std::string& prefix, const std::string& least, bool is_excluded,
              std::size_t room) {
  for (std::size_t i = 0; i < least.size(); ++i) {
    if (least[i] == '9') continue;
    alternatives.push_back(prefix + least.substr(0, i) + digit_between(static_cast<char>(least[i] + 1), '9') +
                           up_to(room - i - 1));
  }
  const std::size_t left = room - least.size();
  if (!is_excluded) {
    alternatives.push_back(prefix + least + up_to(left));
  } else if (left > 0) {
    alternatives.push_back(prefix + least + up_to(left - 1) + "[1-9]");
  }
}

// Appends the digits behind `prefix` of fractions that are not above 0.`most`, at least `digits_min` and at most `room` digits.
void add_up_to(Alternatives& alternatives, const std::string& prefix, const std::string& most, bool is_excluded,
               std::size_t room, std::size_t digits_min) {
  for (std::size_t i = 0; i < most.size(); ++i) {
    if (i >= digits_min) alternatives.push_back(prefix + most.substr(0, i));
    if (most[i] == '0') continue;
    alternatives.push_back(prefix + most.substr(0, i) + digit_between('0', static_cast<char>(most[i] - 1)) +
                           up_to(room - i - 1));
  }
  if (!is_excluded) alternatives.push_back(prefix + most + up_to(room - most.size(), "0"));
}

// The point and the decimals, or nothing, of numbers from 0.`least` to 0.`most`.
Alternatives fractions_between(const NumberBound& low, const NumberBound& high) {
  Alternatives decimals;  // Behind the point.
  Alternatives all;
  std::string least = low.fraction;
  std::string most = high.fraction;
  const std::size_t size = std::max(least.size(), most.size());
  least.resize(size, '0');
  most.resize(size, '0');
  if (least > most || (least == most && (low.is_excluded || high.is_excluded))) return {};
  if (!low.is_excluded && low.fraction.empty()) all.emplace_back("");
  if (least == most) {
    if (low.fraction.empty()) {
      all.push_back(std::format("\\.0{{1,{}}}", kDecimals));
    } else {
      all.push_back("\\." + low.fraction + up_to(kDecimals - low.fraction.size(), "0"));
    }
    return all;
  }
  const auto differs = static_cast<std::size_t>(std::ranges::mismatch(least, most).in1 - least.begin());
  const std::string same = least.substr(0, differs);
  const std::size_t room = kDecimals - differs - 1;
  if (!low.is_excluded && !low.fraction.empty() && low.fraction.size() <= differs) decimals.push_back(low.fraction);
  if (least[differs] + 1 < most[differs]) {
    decimals.push_back(same + digit_between(static_cast<char>(least[differs] + 1), static_cast<char>(most[differs] - 1)) +
                       up_to(room));
  }
  add_from(decimals, same + least[differs], without_zeros(least.substr(differs + 1)), low.is_excluded, room);
  add_up_to(decimals, same + most[differs], without_zeros(most.substr(differs + 1)), high.is_excluded, room, 0);
  all.push_back("\\." + any_of(decimals));
  return all;
}

Alternatives fractions_from(const NumberBound& low) {
  if (low.fraction.empty() && !low.is_excluded) return {std::format("(?:\\.[0-9]{{1,{}}})?", kDecimals)};
  Alternatives decimals;
  add_from(decimals, "", low.fraction, low.is_excluded, kDecimals);
  return decimals.empty() ? Alternatives() : Alternatives{"\\." + any_of(decimals)};
}

Alternatives fractions_up_to(const NumberBound& high) {
  if (high.fraction.empty())
    return high.is_excluded ? Alternatives() : Alternatives{std::format("(?:\\.0{{1,{}}})?", kDecimals)};
  Alternatives decimals;
  add_up_to(decimals, "", high.fraction, high.is_excluded, kDecimals, 1);
  return {std::format("(?:\\.{})?", any_of(decimals))};
}

// Appends the numbers without a sign from `low` to `high`.
void add_numbers(Alternatives& alternatives, NumberBound low, std::optional<NumberBound> high) {
  // Generated numbers have fewer decimals.
  if (low.fraction.size() > kDecimals) {
    low.fraction = without_zeros(low.fraction.substr(0, kDecimals));
    low.is_excluded = true;
  }
  if (high && high->fraction.size() > kDecimals) {
    high->fraction = without_zeros(high->fraction.substr(0, kDecimals));
    high->is_excluded = false;
  }
  const auto add = [&](const std::string& whole, const Alternatives& fractions) {
    if (!fractions.empty()) alternatives.push_back(whole + any_of(fractions));
  };
  if (high && high->whole == low.whole) return add(low.whole, fractions_between(low, *high));
  if (high && is_less(high->whole, low.whole)) return;
  add(low.whole, fractions_from(low));
  Alternatives between;
  const std::string first = plus_one(low.whole);
  if (!high || is_less(first, high->whole))
    add_naturals(between, first, high ? std::optional(minus_one(high->whole)) : std::nullopt);
  if (!between.empty()) alternatives.push_back(any_of(between) + fractions_from({}).front());
  if (high) add(high->whole, fractions_up_to(*high));
}

void add_integers(Alternatives& alternatives, const NumberBound& low, const std::optional<NumberBound>& high) {
  const std::string first = low.fraction.empty() && !low.is_excluded ? low.whole : plus_one(low.whole);
  if (!high) return add_naturals(alternatives, first, std::nullopt);
  if (!high->fraction.empty() || !high->is_excluded) return add_naturals(alternatives, first, high->whole);
  if (high->whole != "0") add_naturals(alternatives, first, minus_one(high->whole));
}

template <typename Add>
std::optional<std::string> between(const NumberBounds& bounds, const Add& add) {
  std::optional<NumberBound> low = bounds.low;
  std::optional<NumberBound> high = bounds.high;
  // Bounds beyond all numbers that are made say nothing.
  const auto is_far = [](const NumberBound& bound) { return bound.whole.size() > kWholeDigits; };
  if (low && low->is_negative && is_far(*low)) low.reset();
  if (high && !high->is_negative && is_far(*high)) high.reset();
  for (const auto* bound : {&low, &high}) {
    if (*bound && (*bound)->whole.size() > kDigitsMax) return std::nullopt;
  }
  Alternatives alternatives;
  const auto magnitude = [](NumberBound bound) {
    bound.is_negative = false;
    return bound;
  };
  if (!low || low->is_negative) {
    Alternatives negative;
    const NumberBound nearest = high && high->is_negative ? magnitude(*high) : NumberBound{.is_excluded = true};
    add(negative, nearest, low ? std::optional(magnitude(*low)) : std::nullopt);
    if (!negative.empty()) alternatives.push_back("-" + any_of(negative));
  }
  if (!high || !high->is_negative) add(alternatives, low && !low->is_negative ? *low : NumberBound{}, high);
  return alternatives.empty() ? std::string() : any_of(alternatives);
}

}  // namespace

NumberBound bound_of(const boost::json::value& number, bool is_excluded) {
  std::array<char, 2048> text{};
  std::to_chars_result end{};
  if (number.is_int64()) {
    end = std::to_chars(text.begin(), text.end(), number.get_int64());
  } else if (number.is_uint64()) {
    end = std::to_chars(text.begin(), text.end(), number.get_uint64());
  } else {
    end = std::to_chars(text.begin(), text.end(), number.get_double(), std::chars_format::fixed);
  }
  std::string_view digits(text.data(), static_cast<std::size_t>(end.ptr - text.data()));
  NumberBound bound{.is_negative = digits.starts_with('-'), .is_excluded = is_excluded};
  if (bound.is_negative) digits.remove_prefix(1);
  const std::size_t point = std::min(digits.find('.'), digits.size());
  bound.whole = digits.substr(0, point);
  if (point < digits.size()) bound.fraction = without_zeros(std::string(digits.substr(point + 1)));
  if (bound.whole == "0" && bound.fraction.empty()) bound.is_negative = false;
  return bound;
}

std::weak_ordering compare(const NumberBound& a, const NumberBound& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? std::weak_ordering::less : std::weak_ordering::greater;
  const auto magnitude = [](const NumberBound& bound) { return std::tuple(bound.whole.size(), bound.whole, bound.fraction); };
  return a.is_negative ? magnitude(b) <=> magnitude(a) : magnitude(a) <=> magnitude(b);
}

std::optional<std::string> integers_between(const NumberBounds& bounds) {
  return between(bounds, add_integers);
}

std::optional<std::string> numbers_between(const NumberBounds& bounds) {
  return between(bounds, add_numbers);
}

std::string any_number() {
  return "-?(?:0|[1-9][0-9]{0,19})(?:\\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,2})?";
}

std::optional<Divisor> divisor_of(const boost::json::value& number) {
  const NumberBound value = bound_of(number, false);
  const std::string digits = value.whole + value.fraction;
  Divisor divisor{.units = 0, .decimals = static_cast<int>(value.fraction.size())};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), divisor.units);
  if (value.is_negative || error != std::errc() || divisor.units == 0) return std::nullopt;
  return divisor;
}

std::string joined(std::span<const std::string> alternatives) {
  std::string out = "(";
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    if (i > 0) out += " | ";
    out += alternatives[i];
  }
  return alternatives.empty() ? "[]" : out + ")";  // A class without characters, which matches no text.
}

}  // namespace uma::grammar
