// Reads the files from which models are made.
#pragma once

#include <cerrno>
#include <cstring>
#include <expected>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <string>

namespace uma {

// Returns what `parse` makes of the file's text, or its error behind the file's path.
template <class Parse>
auto parse_file(const std::filesystem::path& path, const Parse& parse) -> decltype(parse(std::string())) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::unexpected(std::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse(text).transform_error([&](const std::string& problem) { return std::format("{}: {}", path.string(), problem); });
}

}  // namespace uma
