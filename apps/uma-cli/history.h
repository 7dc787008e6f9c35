// The lines typed at the chat prompt, kept between runs in $XDG_STATE_HOME/uma/history, else ~/.local/state/uma/history, mode
// 0600. A file that cannot be read or written costs the history, nothing else. Two chats at once append to the same file.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace uma::cli {

inline constexpr std::size_t kHistoryLinesMax = 1000;

// Empty when the environment names no home.
[[nodiscard]] std::string history_path();

// The last kHistoryLinesMax lines, oldest first. Shortens a file that has grown to several times that.
[[nodiscard]] std::vector<std::string> load_history(const std::string& path);

// Adds one line, making the file and its folders when they are missing.
void append_history(const std::string& path, const std::string& line);

}  // namespace uma::cli
