// Numbers and marks in the bytes of a file. Requires: the bytes are there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace uma::image {

using File = std::span<const std::byte>;

inline std::uint32_t byte_at(File file, std::size_t at) {
  return std::to_integer<std::uint32_t>(file[at]);
}
inline std::uint32_t big16(File file, std::size_t at) {
  return byte_at(file, at) << 8 | byte_at(file, at + 1);
}
inline std::uint32_t big32(File file, std::size_t at) {
  return big16(file, at) << 16 | big16(file, at + 2);
}
inline std::uint32_t little16(File file, std::size_t at) {
  return byte_at(file, at + 1) << 8 | byte_at(file, at);
}
inline std::uint32_t little32(File file, std::size_t at) {
  return little16(file, at + 2) << 16 | little16(file, at);
}

// For a file of any size.
inline bool begins_with(File file, std::string_view magic) {
  return file.size() >= magic.size() && std::ranges::equal(file.first(magic.size()), magic, [](std::byte left, char right) {
           return left == static_cast<std::byte>(right);
         });
}

}  // namespace uma::image
