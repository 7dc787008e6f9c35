// The string formats of JSON Schema, and those of zod and pydantic, as regular expressions (pattern_syntax.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace uma::grammar {

// A pattern for the texts of the format, as far as readers take them; empty for an unknown format, which is an annotation, and
// for those without a pattern, such as "regex". `is_bounded`: other conditions bound the text, so that the pattern need not.
[[nodiscard]] std::string_view format_pattern(std::string_view format, bool is_bounded = false);

// The length of the format's longest valid text, if the pattern does not limit it.
[[nodiscard]] std::optional<std::int64_t> format_length_max(std::string_view format);

// Formats whose texts depend on the machine that reads them, so that there is no pattern.
[[nodiscard]] bool is_local_format(std::string_view format);

}  // namespace uma::grammar
