// Checks a clip of sound before a decoder opens it: the format, the length, and whether the file has what its header claims.
// The memory of a decoder depends on the length that the header claims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/error.h"

namespace uma::image {

inline constexpr std::size_t kAudioBytesMax = 32ul << 20;
inline constexpr std::int64_t kAudioSecondsMax = 600;
inline constexpr std::int64_t kAudioChannelsMax = 8;
inline constexpr std::int64_t kAudioRateMin = 4'000;
inline constexpr std::int64_t kAudioRateMax = 192'000;

enum class AudioKind : std::uint8_t { wav, mp3, flac };

struct AudioHeader {
  AudioKind kind = AudioKind::wav;
  std::int64_t channels = 0;
  std::int64_t sample_rate = 0;  // Samples of a channel in a second.
  std::int64_t samples = 0;      // Samples of a channel.
};

// Whether the file begins like one of AudioKind, which no image does.
[[nodiscard]] bool is_audio(std::span<const std::byte> file);
// Pure. O(bytes). Errors: E_PROTO_003 with the reason: an unsupported format, too long, truncated, or not plausible.
[[nodiscard]] Expected<AudioHeader> check_audio(std::span<const std::byte> file);

}  // namespace uma::image
