// The lines typed at the chat prompt, kept in $XDG_STATE_HOME/uma/history or ~/.local/state/uma/history, which is made with the
// mode 0600. If the file cannot be read or written, the chat works without history. Chats append to the same file; a line that
// comes while another chat shortens it is lost. An empty path means no history.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace uma::cli {

inline constexpr std::size_t kHistoryLinesMax = 1000;

// Empty if the environment names no home folder.
[[nodiscard]] std::string history_path();

// The last kHistoryLinesMax lines, oldest first. Shortens a file that has grown to four times that length.
[[nodiscard]] std::vector<std::string> load_history(const std::string& path);

// Appends one line; creates the file and its folders if they are missing.
void append_history(const std::string& path, const std::string& line);

}  // namespace uma::cli
