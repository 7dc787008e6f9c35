// The string formats of JSON Schema as regular expressions (json_pattern.h).
#pragma once

#include <string_view>

namespace uma::grammar {

// A pattern for a subset of the format; empty for an unsupported format.
[[nodiscard]] std::string_view format_pattern(std::string_view format);

}  // namespace uma::grammar
