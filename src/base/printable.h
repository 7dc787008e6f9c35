// Makes text of a model, a client or a file safe for a terminal and for a log. An escape sequence in it could otherwise move
// the cursor, rewrite earlier output, change the title or type input for the user; marks of direction could show it in another
// order.
#pragma once

#include <string>
#include <string_view>

namespace uma {

// Keeps newline and tab. Other C0 controls become ^X, DEL ^?, C1 controls (U+0080 to U+009F) <80> to <9F>, marks of direction
// and other characters that show nothing their code such as <U+202E>, invalid bytes U+FFFD.
[[nodiscard]] std::string printable(std::string_view text);

// Like printable(), for one line: newline and tab become ^J and ^I.
[[nodiscard]] std::string printable_line(std::string_view text);

}  // namespace uma
