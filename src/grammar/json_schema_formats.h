// The string formats of JSON Schema, and those of zod and pydantic, as regular expressions (pattern_syntax.h).
#pragma once

#include <string_view>

namespace uma::grammar {

// A pattern for some texts of the format; empty for an unknown format, which is an annotation. `is_bounded`: other conditions
// bound the text, so that the pattern need not.
[[nodiscard]] std::string_view format_pattern(std::string_view format, bool is_bounded = false);

// Formats whose texts depend on the machine that reads them, so that there is no pattern.
[[nodiscard]] bool is_local_format(std::string_view format);

}  // namespace uma::grammar
