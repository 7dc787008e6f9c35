// Filters that return numbers, and range().
#include <charconv>
#include <cmath>
#include <optional>

#include "base/read_number.h"
#include "jinja/builtin_table.h"

namespace uma::jinja {
namespace {

constexpr std::int64_t kRangeMax = 100'000;

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\n\r\f\v");
  return begin == kNone ? std::string_view() : text.substr(begin, text.find_last_not_of(" \t\n\r\f\v") - begin + 1);
}

std::optional<double> read_double(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const auto [end, error] = read_number(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> truncated(double number) {
  if (!(std::abs(number) < 9e18)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

Value to_int(const Value& value, const Parameters& given, Budget&) {
  Value fallback = given.has(0) ? given.at(0) : Value::integer(0);
  const std::int64_t base = given.integer_or(1, 10);
  if (base < 2 || base > 36) throw TemplateError{"int: the base must be 2 to 36"};
  std::int64_t number = 0;
  if (as_integer(value, number)) return Value::integer(number);
  if (value.is_double()) {
    const auto whole = truncated(std::get<double>(value.data()));
    return whole ? Value::integer(*whole) : fallback;
  }
  const Text* text = value.as_text();
  if (text == nullptr) return fallback;
  std::string_view digits = trimmed(text->bytes());
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : " ";
  if (digits.starts_with(prefix)) digits.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, static_cast<int>(base));
  if (error == std::errc() && end == digits.data() + digits.size()) return Value::integer(number);
  const auto real = read_double(text->bytes());
  const auto whole = real ? truncated(*real) : std::nullopt;
  return whole ? Value::integer(*whole) : fallback;
}

Value to_float(const Value& value, const Parameters& given, Budget&) {
  double number = 0;
  if (as_double(value, number)) return Value::number(number);
  if (const Text* text = value.as_text()) {
    if (const auto real = read_double(text->bytes())) return Value::number(*real);
  }
  return given.has(0) ? given.at(0) : Value::number(0);
}

Value absolute(const Value& value, const Parameters&, Budget&) {
  std::int64_t whole = 0;
  if (as_integer(value, whole)) {
    if (whole == INT64_MIN) throw TemplateError{"an integer is too large"};
    return Value::integer(std::abs(whole));
  }
  if (!value.is_double()) throw TemplateError{std::format("abs needs a number, got {}", type_name(value))};
  return Value::number(std::abs(std::get<double>(value.data())));
}

constexpr Builtin kNumberFilters[] = {
    {"abs", {}, absolute},
    {"float", {"default"}, to_float},
    {"int", {"default", "base"}, to_int},
};

}  // namespace

std::span<const Builtin> number_filters() {
  return kNumberFilters;
}

Value range(const Arguments& arguments, Budget& budget) {
  const Parameters given("range", arguments, {"start", "stop", "step"});
  const bool has_stop = given.has(1);
  const std::int64_t begin = has_stop ? given.integer(0) : 0;
  const std::int64_t end = given.integer(has_stop ? 1 : 0);
  const std::int64_t step = given.integer_or(2, 1);
  if (step == 0) throw TemplateError{"range: the step is 0"};
  std::vector<Value> numbers;
  for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
    if (static_cast<std::int64_t>(numbers.size()) == kRangeMax) {
      throw TemplateError{std::format("range: more than {} numbers", kRangeMax)};
    }
    budget.take_steps(1);
    numbers.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return Value::list(std::move(numbers));
}

}  // namespace uma::jinja
