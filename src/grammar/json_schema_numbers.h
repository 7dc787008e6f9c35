// Integers and numbers between bounds, as GBNF. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace uma::grammar {

inline constexpr std::int64_t kIntegerEnd = 1'000'000'000'000'000;  // Integers have up to 15 digits.

// Bounds of numbers, inclusive for integers.
struct Bounds {
  std::optional<std::int64_t> low;
  std::optional<std::int64_t> high;
  bool low_excluded = false;  // For numbers only.
  bool high_excluded = false;
};

[[nodiscard]] std::string integers(const Bounds& bounds);
[[nodiscard]] std::string numbers(const Bounds& bounds);

// The alternatives as one expression. Without alternatives, the expression matches no text.
[[nodiscard]] std::string joined(std::span<const std::string> alternatives);

}  // namespace uma::grammar
