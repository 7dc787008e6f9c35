// Reads the head of a GGUF file forwards in pieces, within bounds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <format>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llm/file/gguf_header.h"

namespace uma::llm {

// The first problem is kept; every later read returns zeros.
class HeadReader {
 public:
  HeadReader(std::uint64_t file_bytes, const ReadAt& read)
      : end_(std::min(file_bytes, kGgufHeadBytesMax)), file_bytes_(file_bytes), read_(read) {}

  [[nodiscard]] bool is_ok() const { return problem_.empty(); }
  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] std::uint64_t position() const { return position_; }
  void refuse(std::string problem) {
    if (is_ok()) problem_ = std::move(problem);
  }

  std::uint64_t unsigned_number(std::uint64_t width) {
    std::array<std::byte, 8> bytes{};
    take(std::span(bytes).first(width));
    std::uint64_t value = 0;
    for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<std::uint64_t>(bytes[i]);
    return value;
  }
  std::uint32_t u32() { return static_cast<std::uint32_t>(unsigned_number(4)); }
  std::uint64_t u64() { return unsigned_number(8); }

  // Reads a text of at most `bytes_max` bytes. A longer text is a problem.
  std::string text(std::uint64_t bytes_max, std::string_view what) {
    const std::uint64_t size = u64();
    if (is_ok() && size > bytes_max) refuse(std::format("{} of {} bytes", what, size));
    if (!is_ok() || !has(size)) return {};
    std::string text(size, '\0');
    take(std::as_writable_bytes(std::span(text)));
    return text;
  }

  void skip(std::uint64_t bytes) {
    if (has(bytes)) position_ += bytes;
  }

 private:
  // Whether this many bytes are left. Records a problem if not.
  bool has(std::uint64_t bytes) {
    if (is_ok() && bytes > end_ - position_) {
      refuse(end_ < file_bytes_ ? std::format("its metadata is larger than {} MiB", kGgufHeadBytesMax >> 20)
                                : std::format("the file is truncated in its metadata, after {} bytes", file_bytes_));
    }
    return is_ok();
  }

  void take(std::span<std::byte> into) {
    if (!has(into.size())) return;
    while (!into.empty()) {
      if (position_ < window_begin_ || position_ >= window_begin_ + window_bytes_) {
        window_begin_ = position_;
        window_bytes_ = read_(position_, std::span(window_).first(std::min<std::uint64_t>(window_.size(), end_ - position_)));
        if (window_bytes_ == 0) return refuse(std::format("it cannot be read at byte {}", position_));
      }
      const std::uint64_t at = position_ - window_begin_;
      const std::uint64_t count = std::min<std::uint64_t>(into.size(), window_bytes_ - at);
      std::memcpy(into.data(), window_.data() + at, count);
      into = into.subspan(count);
      position_ += count;
    }
  }

  const std::uint64_t end_;
  const std::uint64_t file_bytes_;
  const ReadAt& read_;
  std::string problem_;
  std::uint64_t position_ = 0;
  std::vector<std::byte> window_ = std::vector<std::byte>(std::size_t{1} << 16);
  std::uint64_t window_begin_ = 0;
  std::uint64_t window_bytes_ = 0;
};

}  // namespace uma::llm
