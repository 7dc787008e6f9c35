// Shows a PNG file inside a terminal that can do so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace uma::cli {

enum class ImageProtocol {
  none,
  kitty,  // Also Ghostty, WezTerm and Konsole.
  iterm,  // Also mintty, and the terminal of Visual Studio Code if it is set so.
  sixel,  // xterm -ti vt340, foot, mlterm, Windows Terminal and others.
};

// The variables of the environment that tell terminals apart; empty: not set.
struct TerminalNames {
  std::string term;
  std::string program;  // TERM_PROGRAM, or else LC_TERMINAL.
  bool is_kitty_window = false;
  bool is_in_multiplexer = false;  // tmux or screen, which pass no pictures on.

  [[nodiscard]] static TerminalNames of_environment();
};
// The protocol that the names indicate; none: they say nothing.
[[nodiscard]] ImageProtocol protocol_by_names(const TerminalNames& names);
// Whether a terminal's answer to ESC [ c names sixel graphics among what it can.
[[nodiscard]] bool says_sixel(std::string_view answer);
// Asks the terminal that the process is attached to, within `timeout_ms`.
[[nodiscard]] bool terminal_says_sixel(int timeout_ms);

// The bytes that show the file in `columns` of the terminal; sixel takes the picture's own pixels, enlarged to at least
// `pixels_min`. Nullopt: the file is no PNG picture that can be read.
[[nodiscard]] std::optional<std::string> terminal_image(std::string_view png, ImageProtocol protocol, int columns,
                                                        std::uint32_t pixels_min);

}  // namespace uma::cli
