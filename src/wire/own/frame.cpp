#include "wire/own/frame.h"

#include <cstdint>
#include <format>
#include <limits>

#include "base/check.h"

namespace uma::wire {
namespace {

// A larger buffer is released once it is empty, so that thousands of idle connections need little memory.
constexpr std::size_t kIdleBufferBytesMax = 65'536;

std::size_t read_length(std::string_view header) {
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < kFrameHeaderBytes; ++i) {
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(header[i])) << (8 * i);
  }
  return length;
}

}  // namespace

void FrameReader::append(std::string_view bytes) {
  if (consumed_ >= buffer_.size() - consumed_) {
    // The rest is moved only if it is the smaller half, so the work is linear in the bytes received.
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  buffer_.append(bytes);
}

Expected<std::optional<std::string_view>> FrameReader::next() {
  if (consumed_ == buffer_.size()) {
    buffer_.clear();
    consumed_ = 0;
    if (buffer_.capacity() > kIdleBufferBytesMax) buffer_.shrink_to_fit();
  }
  const std::string_view unread = std::string_view(buffer_).substr(consumed_);
  if (unread.size() < kFrameHeaderBytes) return std::nullopt;
  const std::size_t length = read_length(unread);
  if (length > frame_bytes_max_) {
    return fail(ErrorCode::proto_frame,
                std::format("the frame has {} bytes, but the limit is {} (limits.max_frame_bytes)", length, frame_bytes_max_));
  }
  if (unread.size() - kFrameHeaderBytes < length) return std::nullopt;
  consumed_ += kFrameHeaderBytes + length;
  return unread.substr(kFrameHeaderBytes, length);
}

std::size_t begin_frame(std::string& out) {
  const std::size_t start = out.size();
  out.append(kFrameHeaderBytes, '\0');
  return start;
}

void end_frame(std::string& out, std::size_t start) {
  const std::size_t length = out.size() - start - kFrameHeaderBytes;
  UMA_CHECK(length <= std::numeric_limits<std::uint32_t>::max());
  for (std::size_t i = 0; i < kFrameHeaderBytes; ++i) out[start + i] = static_cast<char>((length >> (8 * i)) & 0xff);
}

void append_frame(std::string& out, std::string_view body) {
  const std::size_t start = begin_frame(out);
  out.append(body);
  end_frame(out, start);
}

}  // namespace uma::wire
