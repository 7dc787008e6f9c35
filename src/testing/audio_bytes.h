// Short clips of sound, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace uma::testing {

inline std::string little_bytes(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

struct WavFormat {
  std::uint32_t tag = 1;
  std::uint32_t channels = 1;
  std::uint32_t sample_rate = 16'000;
  std::uint32_t bits = 16;
};

inline std::string wav_chunk(std::string_view name, std::string_view data) {
  return std::string(name) + little_bytes(data.size(), 4) + std::string(data) + std::string(data.size() % 2, '\0');
}

inline std::string wav_format_chunk(const WavFormat& format) {
  const std::uint32_t frame_bytes = format.channels * format.bits / 8;
  return wav_chunk("fmt ", little_bytes(format.tag, 2) + little_bytes(format.channels, 2) +
                               little_bytes(format.sample_rate, 4) + little_bytes(format.sample_rate * frame_bytes, 4) +
                               little_bytes(frame_bytes, 2) + little_bytes(format.bits, 2));
}

inline std::string riff_of(std::string_view chunks) {
  return "RIFF" + little_bytes(4 + chunks.size(), 4) + "WAVE" + std::string(chunks);
}

// A WAV file with this data.
inline std::string wav_of(std::string_view data, const WavFormat& format = {}) {
  return riff_of(wav_format_chunk(format) + wav_chunk("data", data));
}

// A WAV file of 16,000 Hz with a rising tone; another `step` gives another clip.
inline std::string tone(std::size_t samples, std::uint32_t step = 400) {
  std::string data;
  for (std::uint32_t i = 0; i < samples; ++i) data += little_bytes(i * step & 0x3FFF, 2);
  return wav_of(data);
}

}  // namespace uma::testing
