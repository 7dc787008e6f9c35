// Property: decoding a clip ends for any bytes, with an error or with at most as many finite samples as the limit allows.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "image/decode_sound.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace uma::image;
  constexpr std::int32_t kRate = 8'000;
  const auto file = std::as_bytes(std::span(data, size));
  const auto clip = decode_sound(file, kRate);
  if (!clip) {
    UMA_CHECK(clip.error().code == uma::ErrorCode::proto_field);
    return 0;
  }
  UMA_CHECK(is_audio(file));
  UMA_CHECK(!clip->samples.empty() && clip->samples.size() <= (kAudioSecondsMax + 1) * kRate);
  UMA_CHECK(std::ranges::all_of(clip->samples, [](float sample) { return std::isfinite(sample); }));
  return 0;
}
