// Sets of Unicode code points, as sorted and disjoint ranges. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace uma::grammar {

inline constexpr std::uint32_t kLastCodePoint = 0x10FFFF;

// Both bounds are included.
struct CodeRange {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  auto operator<=>(const CodeRange&) const = default;
};
using CharacterSet = std::vector<CodeRange>;

// Sorts ranges, and joins those that overlap or touch.
[[nodiscard]] CharacterSet sorted_and_joined(CharacterSet ranges);
// The code points outside the set; surrogates are not removed.
[[nodiscard]] CharacterSet complement(const CharacterSet& set);
[[nodiscard]] bool contains(const CharacterSet& set, std::uint32_t code_point);

// The set of a regular expression's \p{NAME}: general categories ("L", "Lu", "Letter", "gc=L") and the emoji properties that
// libraries use; null for another name. Static storage.
[[nodiscard]] const CharacterSet* property_set(std::string_view name);

// Takes the first code point from `text`. Requires: valid UTF-8, not empty.
[[nodiscard]] std::uint32_t take_code_point(std::string_view& text);

}  // namespace uma::grammar
