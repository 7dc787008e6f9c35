// Decodes clips of sound. One reader (libsndfile) checks a file and decodes it, so nothing is decoded that was not checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>

#include "core/error.h"
#include "llm/media/clip.h"

namespace uma::image {

inline constexpr std::size_t kAudioBytesMax = 32ul << 20;
inline constexpr std::int64_t kAudioSecondsMax = 600;
inline constexpr int kAudioChannelsMax = 8;
inline constexpr int kAudioRateMin = 4'000;
inline constexpr int kAudioRateMax = 192'000;

// Whether the file begins like a WAV, MP3 or FLAC file, which no image does.
[[nodiscard]] bool is_audio(std::span<const std::byte> file);

// The mean of the clip's channels, brought to `sample_rate`. Pure, any thread. A clip longer than
// kAudioSecondsMax is refused, whatever the file claims. Errors: E_PROTO_003 with the reason.
[[nodiscard]] Expected<llm::Clip> decode_sound(std::span<const std::byte> file, std::int32_t sample_rate);

// decode_sound(), which nothing ends early.
[[nodiscard]] inline Expected<llm::Clip> decode_sound_here(std::span<const std::byte> file, std::int32_t sample_rate,
                                                           const std::stop_token& /*end*/) {
  return decode_sound(file, sample_rate);
}
// A function in its place: umad's does it in another process (umad/process/media_process.h). Any thread; may block until
// `end` is requested.
using DecodeSound =
    std::function<Expected<llm::Clip>(std::span<const std::byte> file, std::int32_t sample_rate, const std::stop_token& end)>;

}  // namespace uma::image
