// Small text functions for several programs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <format>
#include <string>
#include <string_view>
#include <vector>

namespace uma {

// Converts ASCII letters only: for host names, file endings, hexadecimal numbers.
[[nodiscard]] inline std::string lower_ascii(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

// Without blanks, tabs and ends of lines at both ends.
[[nodiscard]] inline std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// The lines, each with its end; the last one may have none.
[[nodiscard]] inline std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    lines.push_back(text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
  return lines;
}

// Text such as "512 bytes", "1.5 MiB", "2.00 GiB".
[[nodiscard]] inline std::string readable_bytes(std::uint64_t bytes) {
  constexpr std::uint64_t kMiB = 1u << 20;
  if (bytes < kMiB / 10) return std::format("{} bytes", bytes);
  const double mib = static_cast<double>(bytes) / static_cast<double>(kMiB);
  return mib < 1024 ? std::format("{:.1f} MiB", mib) : std::format("{:.2f} GiB", mib / 1024);
}

// A folder by the XDG Base Directory Specification: the variable's value if it is an absolute path, else `in_home` under HOME;
// empty without either.
[[nodiscard]] inline std::string xdg_folder(std::string_view value, std::string_view home, std::string_view in_home) {
  if (value.starts_with('/')) return std::string(value);
  return home.starts_with('/') ? std::format("{}/{}", home, in_home) : "";
}

}  // namespace uma
