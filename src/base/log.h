// Log lines for people: time, level, text on standard error. UMA_DEBUG=1 in the environment shows debug lines too.
// Thread-safe. A debug call that is not shown formats nothing.
#pragma once

#include <format>
#include <string_view>
#include <utility>

namespace uma {

enum class LogLevel { debug, info, warning, error };

// Called once at start, before other threads exist. Without it, lines go out with the default settings.
void init_log(LogLevel level);
[[nodiscard]] bool log_shows(LogLevel level);
void log_line(LogLevel level, std::string_view text);

template <class... Args>
void log_debug(std::format_string<Args...> text, Args&&... args) {
  if (log_shows(LogLevel::debug)) log_line(LogLevel::debug, std::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(std::format_string<Args...> text, Args&&... args) {
  if (log_shows(LogLevel::info)) log_line(LogLevel::info, std::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(std::format_string<Args...> text, Args&&... args) {
  if (log_shows(LogLevel::warning)) log_line(LogLevel::warning, std::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(std::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::error, std::format(text, std::forward<Args>(args)...));
}

}  // namespace uma
