#include "uma-cli/format.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <format>
#include <string_view>

namespace uma::cli {

std::string human_bytes(double bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? std::format("{:.0f} B", bytes) : std::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string short_bytes(double bytes) {
  static constexpr std::string_view kUnits = "KMGTP";
  if (bytes < 1000) return std::format("{:.0f}", bytes);
  std::size_t unit = 0;
  bytes /= 1024;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return bytes < 9.95 ? std::format("{:.1f}{}", bytes, kUnits[unit]) : std::format("{:.0f}{}", bytes, kUnits[unit]);
}

std::string human_age(std::int64_t seconds) {
  seconds = std::max<std::int64_t>(0, seconds);
  if (seconds < 60) return std::format("{} s", seconds);
  if (seconds < 3600) return std::format("{} min", seconds / 60);
  if (seconds < 86400) return std::format("{} h", seconds / 3600);
  return std::format("{} d", seconds / 86400);
}

std::string human_number(double number) {
  std::string text = std::format("{:.3f}", number);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::string count_of(std::int64_t n, const char* singular) {
  return std::format("{} {}{}", n, singular, n == 1 ? "" : "s");
}

}  // namespace uma::cli
