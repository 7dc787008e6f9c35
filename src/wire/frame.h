// Frames of the Unix socket: uint32 little-endian length of the body, then the body (docs/protocol/socket.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::wire {

inline constexpr std::size_t kFrameHeaderBytes = 4;

// Cuts a stream of bytes, arriving in any pieces, into frames. Not thread-safe: one owner, the reader of the stream.
// Invariants: (1) the frames do not depend on how the bytes were cut. (2) Memory is bounded by frame_bytes_max plus what one
// append() brought. (3) Each byte is moved a bounded number of times, however many frames one append() brings.
class FrameReader {
 public:
  explicit FrameReader(std::size_t frame_bytes_max) : frame_bytes_max_(frame_bytes_max) {}

  // Longer frames are accepted from now on; one that was refused is the next.
  void raise_limit(std::size_t frame_bytes_max) { frame_bytes_max_ = std::max(frame_bytes_max_, frame_bytes_max); }

  void append(std::string_view bytes);
  // Bytes that it holds.
  [[nodiscard]] std::size_t size() const { return buffer_.size(); }

  // The body of the next whole frame, valid until the next call; nothing when more bytes are needed. Error
  // proto_frame as soon as a length above the limit is announced: the stream cannot be read any further, and every later call
  // returns the same error, unless the limit is raised.
  [[nodiscard]] Expected<std::optional<std::string_view>> next();

 private:
  std::size_t frame_bytes_max_;
  std::string buffer_;
  std::size_t consumed_ = 0;  // bytes at the start of buffer_ that were handed out
};

// Begins a frame at the end of `out`; returns where. The body is appended next, then end_frame(out, start) writes its length.
[[nodiscard]] std::size_t begin_frame(std::string& out);
void end_frame(std::string& out, std::size_t start);

// Appends one whole frame. Requires body.size() < 2^32.
void append_frame(std::string& out, std::string_view body);

}  // namespace uma::wire
