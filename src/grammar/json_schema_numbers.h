// Integers and numbers between bounds, as regular expressions. Pure.
#pragma once

#include <compare>
#include <optional>
#include <span>
#include <string>

#include <boost/json/value.hpp>

#include "grammar/text_automaton.h"

namespace uma::grammar {

// A bound, in digits.
struct NumberBound {
  bool is_negative = false;
  std::string whole = "0";  // Without leading zeros.
  std::string fraction{};   // Without zeros at its end.
  bool is_excluded = false;
};

// Requires: a finite number.
[[nodiscard]] NumberBound bound_of(const boost::json::value& number, bool is_excluded);
// The order of the bounds' numbers.
[[nodiscard]] std::weak_ordering compare(const NumberBound& a, const NumberBound& b);

struct NumberBounds {
  std::optional<NumberBound> low{};
  std::optional<NumberBound> high{};
};

// Numbers of up to 20 digits, and of more where the bounds need them. Empty: there are none. Nullopt: they would need more than
// 40 digits.
[[nodiscard]] std::optional<std::string> integers_between(const NumberBounds& bounds);
// Numbers with up to 15 decimals, without an exponent; their integer parts, and empty and nullopt, as above.
[[nodiscard]] std::optional<std::string> numbers_between(const NumberBounds& bounds);
// Numbers without bounds, with or without an exponent.
[[nodiscard]] std::string any_number();

// Nullopt: `number` is not above 0, or has too many digits.
[[nodiscard]] std::optional<Divisor> divisor_of(const boost::json::value& number);

// The alternatives as one expression of GBNF. Without alternatives, it matches no text.
[[nodiscard]] std::string joined(std::span<const std::string> alternatives);

}  // namespace uma::grammar
