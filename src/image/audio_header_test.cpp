#include "image/audio_header.h"

#include <span>
#include <string>
#include <string_view>
#include <utility>

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

Expected<AudioHeader> check_clip(const std::string& file) {
  return check_audio(std::as_bytes(std::span(file)));
}

std::string clip_problem(const std::string& file) {
  const auto header = check_clip(file);
  if (header) return "";
  EXPECT_EQ(header.error().code, ErrorCode::proto_field);
  return header.error().message;
}

std::string big_bytes(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// A FLAC file with one frame, of which only the mark is there.
std::string flac(std::uint64_t samples, std::uint64_t sample_rate = 16'000, std::uint64_t channels = 1,
                 std::uint64_t bits = 16) {
  const std::uint64_t packed = sample_rate << 44 | (channels - 1) << 41 | (bits - 1) << 36 | samples;
  const std::string format =
      big_bytes(4096, 2) + big_bytes(4096, 2) + std::string(6, '\0') + big_bytes(packed, 8) + std::string(16, '\0');
  const std::string comment = "12345";
  return "fLaC" + big_bytes(format.size(), 4) + format + big_bytes(0x84000000 | comment.size(), 4) + comment + "\xFF\xF8";
}

constexpr std::uint32_t kMono32k = 0xFFFB18C0;  // MPEG 1, 32 kbit/s, 32,000 Hz, one channel.
constexpr std::size_t kMono32kBytes = 144;

std::string mp3_frame(std::uint32_t head = kMono32k, std::size_t bytes = kMono32kBytes, std::string_view data = "") {
  std::string frame = big_bytes(head, 4) + std::string(data);
  frame.resize(bytes);
  return frame;
}

std::string mp3_frames(int count) {
  std::string file;
  for (int i = 0; i < count; ++i) file += mp3_frame();
  return file;
}

// The first frame of a file, which says how many frames follow.
std::string mp3_count(std::uint32_t frames) {
  return mp3_frame(kMono32k, kMono32kBytes, std::string(17, '\0') + "Xing" + big_bytes(1, 4) + big_bytes(frames, 4));
}

std::string id3(std::size_t bytes) {
  std::string size;
  for (const int shift : {21, 14, 7, 0}) size += static_cast<char>(bytes >> shift & 0x7F);
  return "ID3" + std::string("\x04\x00\x00", 3) + size + std::string(bytes, '\0');
}

TEST(AudioHeader, KnowsKindAndLength) {
  const std::string second(32'000, '\0');
  const std::pair<std::string, AudioHeader> files[] = {
      {wav_of(second), {AudioKind::wav, 1, 16'000, 16'000}},
      {wav_of(second, {.channels = 2, .sample_rate = 8'000}), {AudioKind::wav, 2, 8'000, 8'000}},
      {wav_of(second, {.tag = 3, .bits = 32}), {AudioKind::wav, 1, 16'000, 8'000}},
      {wav_of(second, {.tag = 7, .sample_rate = 8'000, .bits = 8}), {AudioKind::wav, 1, 8'000, 32'000}},
      {riff_of(wav_chunk("LIST", "odd") + wav_format_chunk({}) + wav_chunk("data", "1234") + "rest"),
       {AudioKind::wav, 1, 16'000, 2}},
      {flac(44'100, 44'100, 2, 24), {AudioKind::flac, 2, 44'100, 44'100}},
      {mp3_frames(10), {AudioKind::mp3, 1, 32'000, 11'520}},
      {id3(300) + mp3_frames(10) + "TAG" + std::string(125, ' '), {AudioKind::mp3, 1, 32'000, 11'520}},
      {mp3_count(9) + mp3_frames(9), {AudioKind::mp3, 1, 32'000, 11'520}},
      {mp3_frame(0xFFF31000, 24 * 24'000 / 22'050) + mp3_frame(0xFFF31000, 26), {AudioKind::mp3, 2, 22'050, 1'152}}};
  for (const auto& [file, wanted] : files) {
    const auto header = check_clip(file);
    ASSERT_TRUE(header) << &file - &files[0].first << ": " << header.error().message;
    EXPECT_EQ(std::tuple(header->kind, header->channels, header->sample_rate, header->samples),
              std::tuple(wanted.kind, wanted.channels, wanted.sample_rate, wanted.samples));
    EXPECT_TRUE(is_audio(std::as_bytes(std::span(file))));
  }
}

TEST(AudioHeader, RefusesWhatIsNoClip) {
  for (const std::string file : {"", "hello", "\x89PNG\r\n\x1a\n", "\xFF\xD8\xFF\xE0", "OggS", "RIFFxxxxAVI "}) {
    EXPECT_TRUE(clip_problem(file).contains("not a WAV, MP3 or FLAC")) << file;
    EXPECT_FALSE(is_audio(std::as_bytes(std::span(file))));
  }
}

TEST(AudioHeader, RefusesLengthsBeyondTheLimits) {
  EXPECT_EQ(clip_problem(flac(600 * 16'000)), "");
  EXPECT_TRUE(clip_problem(flac(600 * 16'000 + 1)).contains("limit is 600 s"));
  EXPECT_TRUE(clip_problem(flac((1ull << 36) - 1)).contains("limit is 600 s"));
  EXPECT_TRUE(clip_problem(mp3_count(0xFFFFFFFF) + mp3_frames(9)).contains("limit is 600 s"));
  EXPECT_TRUE(clip_problem(flac(16'000, 1)).contains("sample rate is 1 Hz"));
  EXPECT_TRUE(clip_problem(flac(16'000, 500'000)).contains("sample rate is 500000 Hz"));
  EXPECT_TRUE(clip_problem(wav_of("1234", {.sample_rate = 4'000'000'000})).contains("sample rate"));
  EXPECT_TRUE(clip_problem(wav_of(std::string(360, '\0'), {.channels = 9})).contains("9 channels"));
  EXPECT_TRUE(clip_problem(wav_of("")).contains("no samples"));
  EXPECT_TRUE(clip_problem(flac(0)).contains("does not state its length"));
}

TEST(AudioHeader, RefusesFormatsWhoseLengthIsNotThatOfTheirData) {
  for (const std::uint32_t tag : {2u, 17u, 85u, 0xFFFEu}) {
    EXPECT_TRUE(clip_problem(wav_of("12345678", {.tag = tag})).contains("PCM")) << tag;
  }
  EXPECT_TRUE(clip_problem(wav_of("12345678", {.bits = 12})).contains("12 bits"));
  EXPECT_TRUE(clip_problem(wav_of("12345678", {.channels = 0})).contains("invalid"));
  EXPECT_TRUE(clip_problem(riff_of(wav_chunk("data", "12"))).contains("no format"));
  EXPECT_TRUE(
      clip_problem(riff_of(wav_format_chunk({}) + wav_format_chunk({}) + wav_chunk("data", "12"))).contains("two formats"));
  EXPECT_TRUE(
      clip_problem(riff_of(wav_format_chunk({}) + wav_chunk("data", "12") + wav_chunk("data", "12"))).contains("twice"));
}

TEST(AudioHeader, RefusesFilesThatAreTruncated) {
  for (const std::string& file : {wav_of("1234"), flac(100), id3(100) + mp3_frame()}) {
    for (std::size_t length = 12; length < file.size(); ++length) {
      const std::string problem = clip_problem(file.substr(0, length));
      EXPECT_TRUE(problem.contains("truncated") || problem.contains("behind its tags")) << length << " of " << file.size();
    }
  }
  EXPECT_TRUE(clip_problem(wav_of("1234").replace(40, 4, "\xFF\xFF\xFF\xFF")).contains("truncated"));
}

TEST(AudioHeader, RefusesAnMp3WhoseFramesAreNotCounted) {
  EXPECT_TRUE(clip_problem(mp3_frames(2) + std::string(70'000, '\0')).contains("70000 bytes behind its last frame"));
  EXPECT_TRUE(clip_problem(id3(2 << 20) + mp3_frames(2)).contains("remove its pictures"));
  EXPECT_TRUE(clip_problem(id3(20) + flac(100)).contains("no frame of layer III"));
  EXPECT_TRUE(clip_problem(mp3_frame(kMono32k & ~0xF000u)).contains("no frame")) << "of any rate";
}

}  // namespace
}  // namespace uma::image
