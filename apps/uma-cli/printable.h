// Text for a terminal: what is safe to print (base/printable.h), and how wide it is.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/printable.h"

namespace uma::cli {

// Columns of valid UTF-8 `text` on a terminal, by the locale's LC_CTYPE.
[[nodiscard]] std::size_t display_width(std::string_view text);

// The longest prefix of `text` in whole characters that takes at most `columns`.
[[nodiscard]] std::string_view clip(std::string_view text, std::size_t columns);

}  // namespace uma::cli
