// Property: the check of a clip ends for any bytes, and an accepted clip is within the limits.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "image/audio_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace uma::image;
  const auto header = check_audio(std::as_bytes(std::span(data, size)));
  if (!header) {
    UMA_CHECK(header.error().code == uma::ErrorCode::proto_field);
    return 0;
  }
  UMA_CHECK(is_audio(std::as_bytes(std::span(data, size))));
  UMA_CHECK(header->channels >= 1 && header->channels <= kAudioChannelsMax);
  UMA_CHECK(header->sample_rate >= kAudioRateMin && header->sample_rate <= kAudioRateMax);
  UMA_CHECK(header->samples >= 1 && header->samples <= kAudioSecondsMax * header->sample_rate);
  return 0;
}
