// Frames of the Unix socket: the length of the body as a little-endian uint32, then the body (docs/protocol/socket.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::wire {

inline constexpr std::size_t kFrameHeaderBytes = 4;

// Splits a byte stream into frames. Not thread-safe: owned by the reader of the stream. Invariants: (1) The frames do not
// depend on how the bytes were split. (2) Memory is bounded by frame_bytes_max plus the bytes of two calls of append(). (3)
// Each byte is moved a bounded number of times, however many frames one append() brings.
class FrameReader {
 public:
  explicit FrameReader(std::size_t frame_bytes_max) : frame_bytes_max_(frame_bytes_max) {}

  // Accepts longer frames from now on. A frame that was refused is returned next.
  void raise_limit(std::size_t frame_bytes_max) { frame_bytes_max_ = std::max(frame_bytes_max_, frame_bytes_max); }

  void append(std::string_view bytes);
  // Number of buffered bytes.
  [[nodiscard]] std::size_t size() const { return buffer_.size(); }

  // The body of the next complete frame, valid until the next call, or nullopt if more bytes are needed. Fails with proto_frame
  // as soon as a length above the limit is announced. The stream cannot be read any further, so every later call returns the
  // same error unless the limit is raised.
  [[nodiscard]] Expected<std::optional<std::string_view>> next();

 private:
  std::size_t frame_bytes_max_;
  std::string buffer_;
  std::size_t consumed_ = 0;  // Bytes at the start of buffer_ that were returned already.
};

// Begins a frame at the end of `out` and returns its position. The caller appends the body; end_frame(out, start) then writes
// its length.
[[nodiscard]] std::size_t begin_frame(std::string& out);
void end_frame(std::string& out, std::size_t start);

// Appends one whole frame. Requires body.size() < 2^32.
void append_frame(std::string& out, std::string_view body);

}  // namespace uma::wire
