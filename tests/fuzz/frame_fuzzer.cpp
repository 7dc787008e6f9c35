// Property: FrameReader returns the same frames and the same error, however the bytes are divided. The first byte of the input
// is the seed for the division, the rest is the stream.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "wire/own/frame.h"

namespace {

constexpr std::size_t kFrameBytesMax = 1000;

struct Outcome {
  std::vector<std::string> frames;
  std::optional<std::string> refusal;
  bool operator==(const Outcome&) const = default;
};

void take_frames(uma::wire::FrameReader& reader, Outcome& outcome) {
  while (!outcome.refusal) {
    const auto next = reader.next();
    if (!next) {
      outcome.refusal = next.error().message;
      UMA_CHECK(next.error().code == uma::ErrorCode::proto_frame);
      return;
    }
    if (!*next) return;
    UMA_CHECK((*next)->size() <= kFrameBytesMax);
    outcome.frames.emplace_back(**next);
  }
}

Outcome read_in_pieces(std::string_view stream, uma::Random& random, std::size_t piece_bytes_max) {
  uma::wire::FrameReader reader(kFrameBytesMax);
  Outcome outcome;
  while (!stream.empty()) {
    const std::size_t size = std::min(stream.size(), static_cast<std::size_t>(1 + random.next_below(piece_bytes_max)));
    reader.append(stream.substr(0, size));
    stream.remove_prefix(size);
    // Frames may stay unread for a while, like those of a paused connection.
    if (random.next_below(2) == 0) take_frames(reader, outcome);
  }
  take_frames(reader, outcome);
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  uma::Random random(data[0]);
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  uma::wire::FrameReader reader(kFrameBytesMax);
  reader.append(stream);
  Outcome whole;
  take_frames(reader, whole);
  UMA_CHECK(read_in_pieces(stream, random, 1) == whole);
  UMA_CHECK(read_in_pieces(stream, random, 100) == whole);
  UMA_CHECK(read_in_pieces(stream, random, stream.size() + 1) == whole);
  return 0;
}
