// Small things with text that several programs need.
#pragma once

#include <algorithm>
#include <format>
#include <string>
#include <string_view>

namespace uma {

// ASCII letters only: host names, file endings, numbers in hexadecimal.
[[nodiscard]] inline std::string lower_ascii(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

// A folder as the XDG Base Directory Specification finds it: the value of its variable where that is an absolute path, else
// `in_home` under HOME; empty without either.
[[nodiscard]] inline std::string xdg_folder(std::string_view value, std::string_view home, std::string_view in_home) {
  if (value.starts_with('/')) return std::string(value);
  return home.starts_with('/') ? std::format("{}/{}", home, in_home) : "";
}

}  // namespace uma
