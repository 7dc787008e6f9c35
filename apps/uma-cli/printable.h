// Text of a model, another client or the daemon, made safe for a terminal: an escape sequence in it could otherwise move the
// cursor, rewrite what was said before, change the title or answer for the user.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace uma::cli {

// Keeps newline and tab. Other C0 controls become ^X, DEL ^?, C1 controls (U+0080 to U+009F) <80> to <9F>, invalid bytes
// U+FFFD.
[[nodiscard]] std::string printable(std::string_view text);

// The same for one line of a table: newline and tab become ^J and ^I.
[[nodiscard]] std::string printable_line(std::string_view text);

// Columns that valid UTF-8 `text` takes on a terminal, by the locale's LC_CTYPE.
[[nodiscard]] std::size_t display_width(std::string_view text);

// The longest start of `text` that takes at most `columns`; whole characters.
[[nodiscard]] std::string_view clip(std::string_view text, std::size_t columns);

}  // namespace uma::cli
