// Makes text of a model, another client or the daemon safe for a terminal. An escape sequence in it could otherwise move the
// cursor, rewrite earlier output, change the title or type input for the user.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace uma::cli {

// Keeps newline and tab. Other C0 controls become ^X, DEL ^?, C1 controls (U+0080 to U+009F) <80> to <9F>, invalid bytes
// U+FFFD.
[[nodiscard]] std::string printable(std::string_view text);

// Like printable(), for one line of a table: newline and tab become ^J and ^I.
[[nodiscard]] std::string printable_line(std::string_view text);

// Columns of valid UTF-8 `text` on a terminal, by the locale's LC_CTYPE.
[[nodiscard]] std::size_t display_width(std::string_view text);

// The longest prefix of `text` in whole characters that takes at most `columns`.
[[nodiscard]] std::string_view clip(std::string_view text, std::size_t columns);

}  // namespace uma::cli
