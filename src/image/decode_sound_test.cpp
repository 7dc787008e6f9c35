#include "image/decode_sound.h"

#include <cmath>
#include <span>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "testing/audio_bytes.h"

namespace uma::image {
namespace {

using testing::little_bytes;
using testing::riff_of;
using testing::wav_chunk;
using testing::wav_format_chunk;
using testing::wav_of;
using testing::WavFormat;

constexpr std::int32_t kRate = 16'000;

Expected<llm::Clip> decode_clip(const std::string& file, std::int32_t rate = kRate) {
  return decode_sound(std::as_bytes(std::span(file)), rate);
}

std::string sound_problem(const std::string& file) {
  const auto clip = decode_clip(file);
  if (clip) return "";
  EXPECT_EQ(clip.error().code, ErrorCode::proto_field);
  return clip.error().message;
}

std::size_t samples_of(const std::string& file) {
  const auto clip = decode_clip(file);
  EXPECT_TRUE(clip) << clip.error().message;
  return clip ? clip->samples.size() : 0;
}

std::string big_bytes(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// A frame of MPEG 1, layer III, 32 kbit/s, 32,000 Hz, one channel: 36 ms of silence.
std::string mp3_frame(std::string_view data = "") {
  std::string frame = big_bytes(0xFFFB18C0, 4) + std::string(data);
  frame.resize(144);
  return frame;
}
std::string mp3_frames(int count) {
  std::string file;
  for (int i = 0; i < count; ++i) file += mp3_frame();
  return file;
}
// The first frame of a file, which says how many frames follow.
std::string mp3_count(std::uint32_t frames) {
  return mp3_frame(std::string(17, '\0') + "Xing" + big_bytes(1, 4) + big_bytes(frames, 4));
}

std::string id3(std::size_t bytes) {
  std::string size;
  for (const int shift : {21, 14, 7, 0}) size += static_cast<char>(bytes >> shift & 0x7F);
  return "ID3" + std::string("\x04\x00\x00", 3) + size + std::string(bytes, '\0');
}

std::string numbers(std::initializer_list<std::int16_t> values) {
  std::string data;
  for (const std::int16_t value : values) data += little_bytes(static_cast<std::uint16_t>(value), 2);
  return data;
}

TEST(DecodeSound, GivesTheMeanOfTheChannels) {
  const auto mono = decode_clip(wav_of(numbers({0, 16'384, -32'768})));
  ASSERT_TRUE(mono) << mono.error().message;
  EXPECT_EQ(mono->samples, (std::vector<float>{0, 0.5, -1}));
  EXPECT_EQ(mono->sample_rate, kRate);
  const auto stereo = decode_clip(wav_of(numbers({16'384, 0, -16'384, 16'384}), {.channels = 2}));
  ASSERT_TRUE(stereo);
  EXPECT_EQ(stereo->samples, (std::vector<float>{0.25, 0}));
}

TEST(DecodeSound, BringsAClipToTheRateThatIsWanted) {
  std::string data;
  for (int i = 0; i < 44'100; ++i) {
    data += little_bytes(static_cast<std::uint16_t>(static_cast<std::int16_t>(8'000 * std::sin(i * 0.05))), 2);
  }
  const auto clip = decode_clip(wav_of(data, {.sample_rate = 44'100}));
  ASSERT_TRUE(clip);
  EXPECT_NEAR(static_cast<double>(clip->samples.size()), 16'000, 2);
  double difference = 0;
  for (std::size_t i = 1'000; i < 15'000; ++i) {
    const double wanted = 8'000 * std::sin(static_cast<double>(i) * 0.05 * 44'100 / kRate) / 32'768;
    difference = std::max(difference, std::abs(static_cast<double>(clip->samples[i]) - wanted));
  }
  EXPECT_LT(difference, 0.01);
}

TEST(DecodeSound, TakesAsMuchAsThereIsWhateverTheFileClaims) {
  const std::size_t of_frame = 1'152 / 2;  // At half the rate.
  EXPECT_NEAR(static_cast<double>(samples_of(mp3_frames(30))), 30.0 * of_frame, 3.0 * of_frame);
  for (const std::uint32_t claimed : {2'000u, 1'000'000u, 0xFFFFFFFFu}) {
    const std::string counted = mp3_count(claimed) + mp3_frames(30);
    EXPECT_LE(decode_clip(counted).transform([](const auto& clip) { return clip.samples.size(); }).value_or(0), 34 * of_frame)
        << claimed;
    // Two tags, and a count behind them; a WAV file that an MP3 reader would take.
    const std::string tagged = id3(30) + id3(30) + counted;
    EXPECT_LE(decode_clip(tagged).transform([](const auto& clip) { return clip.samples.size(); }).value_or(0), 34 * of_frame);
    const std::string extension = little_bytes(0xFFFE, 2) + little_bytes(1, 2) + little_bytes(16'000, 4) +
                                  little_bytes(32'000, 4) + little_bytes(2, 2) + little_bytes(16, 2) + little_bytes(21, 2) +
                                  std::string(21, '\0');
    const std::string both =
        riff_of(wav_chunk("JUNK", counted) + wav_chunk("fmt ", extension) + wav_chunk("data", "1234") + mp3_frames(9));
    EXPECT_LE(decode_clip(both).transform([](const auto& clip) { return clip.samples.size(); }).value_or(0), 34 * of_frame);
  }
  EXPECT_EQ(samples_of(riff_of(wav_format_chunk({}) + wav_chunk("data", "12345678")).replace(40, 4, "\xFF\xFF\xFF\xFF")), 4u)
      << "written to a pipe, with an unknown length";
}

TEST(DecodeSound, RefusesWhatIsNoClip) {
  for (const std::string file : {"", "hello", "\x89PNG\r\n\x1a\n", "\xFF\xD8\xFF\xE0", "OggS", "RIFFxxxxAVI "}) {
    EXPECT_TRUE(sound_problem(file).contains("not a WAV, MP3 or FLAC")) << file;
    EXPECT_FALSE(is_audio(std::as_bytes(std::span(file))));
  }
  EXPECT_TRUE(sound_problem(wav_of(std::string(360, '\0'), {.channels = 9})).contains("9 channels"));
  EXPECT_TRUE(sound_problem(wav_of("1234", {.sample_rate = 1})).contains("sample rate is 1 Hz"));
  EXPECT_TRUE(sound_problem(wav_of("1234", {.sample_rate = 500'000})).contains("sample rate is 500000 Hz"));
  EXPECT_FALSE(sound_problem(wav_of("1234", {.sample_rate = 4'000'000'000})).empty());
  EXPECT_FALSE(sound_problem(wav_of("")).empty());
  EXPECT_TRUE(sound_problem(wav_of(little_bytes(0x7FC00000, 4), {.tag = 3, .bits = 32})).contains("not finite"));
}

TEST(DecodeSound, EndsAtTheLimit) {
  const std::string longest(600 * 8'000, '\0');
  EXPECT_NEAR(static_cast<double>(samples_of(wav_of(longest, {.sample_rate = 8'000, .bits = 8}))), 600.0 * kRate, 2);
  EXPECT_TRUE(sound_problem(wav_of(longest + "12", {.sample_rate = 8'000, .bits = 8})).contains("more than 600 s"));
}

TEST(DecodeSound, EndsForEveryBeginningOfAFile) {
  const std::string file = id3(20) + mp3_count(2'000) + mp3_frames(3);
  for (std::size_t length = 0; length < file.size(); ++length) (void)decode_clip(file.substr(0, length));
  const std::string wav = wav_of("12345678");
  for (std::size_t length = 0; length < wav.size(); ++length) (void)decode_clip(wav.substr(0, length));
}

}  // namespace
}  // namespace uma::image
