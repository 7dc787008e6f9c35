#include "image/audio_header.h"

#include <algorithm>
#include <array>
#include <format>
#include <optional>
#include <string_view>

#include "image/file_bytes.h"

namespace uma::image {
namespace {

std::unexpected<Error> refuse_clip(std::string_view why) {
  return fail(ErrorCode::proto_field, std::format("the clip cannot be read: {}", why));
}

std::unexpected<Error> refuse_short_clip() {
  return refuse_clip("the file is truncated");
}

Expected<AudioHeader> check_length(const AudioHeader& header) {
  if (header.channels < 1 || header.channels > kAudioChannelsMax) {
    return refuse_clip(std::format("it has {} channels; 1 to {} are supported", header.channels, kAudioChannelsMax));
  }
  if (header.sample_rate < kAudioRateMin || header.sample_rate > kAudioRateMax) {
    return refuse_clip(
        std::format("its sample rate is {} Hz; {} to {} Hz are supported", header.sample_rate, kAudioRateMin, kAudioRateMax));
  }
  if (header.samples < 1) return refuse_clip("it has no samples");
  if (header.samples > kAudioSecondsMax * header.sample_rate) {
    return refuse_clip(std::format("it takes {} s; the limit is {} s", header.samples / header.sample_rate, kAudioSecondsMax));
  }
  return header;
}

// --- WAV: RIFF, the size, WAVE, then chunks: a name, a size, and data padded to an even size

struct WavFormat {
  std::uint32_t tag = 0;
  std::uint32_t channels = 0;
  std::uint32_t sample_rate = 0;
  std::uint32_t frame_bytes = 0;  // Bytes of the samples of all channels.
  std::uint32_t bits = 0;
};

WavFormat read_wav_format(File chunk) {
  WavFormat format{.tag = little16(chunk, 0),
                   .channels = little16(chunk, 2),
                   .sample_rate = little32(chunk, 4),
                   .frame_bytes = little16(chunk, 12),
                   .bits = little16(chunk, 14)};
  constexpr std::uint32_t kExtensible = 0xFFFE;
  constexpr std::size_t kTagAt = 24;
  if (format.tag == kExtensible && chunk.size() > kTagAt + 1) format.tag = little16(chunk, kTagAt);
  return format;
}

// The length of other formats is not that of their data.
bool is_plain(const WavFormat& format) {
  switch (format.tag) {
    case 1:  // Integers.
      return format.bits == 8 || format.bits == 16 || format.bits == 24 || format.bits == 32;
    case 3:  // Floating point.
      return format.bits == 32 || format.bits == 64;
    case 6:  // A-law.
    case 7:  // mu-law.
      return format.bits == 8;
    default:
      return false;
  }
}

Expected<AudioHeader> check_wav(File file) {
  constexpr std::size_t kFirstChunk = 12;
  constexpr std::size_t kChunkHead = 8;
  constexpr std::size_t kFormatBytes = 16;
  std::optional<WavFormat> format;
  std::optional<std::size_t> data;
  for (std::size_t at = kFirstChunk; file.size() - at >= kChunkHead;) {
    const std::size_t length = little32(file, at + 4);
    const File chunk = file.subspan(at + kChunkHead);
    const bool is_format = begins_with(file.subspan(at), "fmt ");
    const bool is_data = begins_with(file.subspan(at), "data");
    if ((is_format && format) || (is_data && data)) return refuse_clip("the WAV file has two formats, or data twice");
    if (length > chunk.size()) {
      if (data && !is_format) break;
      return refuse_short_clip();
    }
    if (is_format) {
      if (length < kFormatBytes) return refuse_clip("the format of the WAV file is invalid");
      format = read_wav_format(chunk.first(length));
    }
    if (is_data) {
      if (!format) return refuse_clip("the WAV file has no format before its data");
      data = length;
    }
    at = std::min(file.size(), at + kChunkHead + length + length % 2);
  }
  if (!data) return refuse_short_clip();
  if (!is_plain(*format)) {
    return refuse_clip(
        std::format("the WAV file has format {} with {} bits; PCM, floating point, A-law and mu-law are supported", format->tag,
                    format->bits));
  }
  if (format->channels == 0 || format->frame_bytes != format->channels * (format->bits / 8)) {
    return refuse_clip("the format of the WAV file is invalid");
  }
  return check_length({.kind = AudioKind::wav,
                       .channels = format->channels,
                       .sample_rate = format->sample_rate,
                       .samples = static_cast<std::int64_t>(*data / format->frame_bytes)});
}

// --- FLAC (RFC 9639): a signature, then blocks of metadata, the first of which has the format, then frames

Expected<AudioHeader> check_flac(File file) {
  constexpr std::size_t kSignature = 4;
  constexpr std::size_t kBlockHead = 4;
  constexpr std::uint32_t kFormatBytes = 34;
  if (file.size() < kSignature + kBlockHead + kFormatBytes) return refuse_short_clip();
  const auto length_at = [&](std::size_t at) { return big32(file, at) & 0xFFFFFF; };
  if ((byte_at(file, kSignature) & 0x7F) != 0 || length_at(kSignature) != kFormatBytes) {
    return refuse_clip("the FLAC file does not begin with a valid STREAMINFO block");
  }
  const File format = file.subspan(kSignature + kBlockHead);
  const std::uint32_t block_min = big16(format, 0);
  const std::uint32_t block_max = big16(format, 2);
  const std::uint64_t packed = std::uint64_t{big32(format, 10)} << 32 | big32(format, 14);
  const auto bits = static_cast<std::uint32_t>(packed >> 36 & 0x1F) + 1;
  if (block_min < 16 || block_max < block_min || bits < 4)
    return refuse_clip("the STREAMINFO block of the FLAC file is invalid");
  std::size_t at = kSignature;
  for (bool is_last = false; !is_last;) {
    if (file.size() - at < kBlockHead) return refuse_short_clip();
    const std::uint32_t head = byte_at(file, at);
    const std::size_t length = length_at(at);
    if ((head & 0x7F) == 0x7F) return refuse_clip("a block of the FLAC file is invalid");
    if (length > file.size() - at - kBlockHead) return refuse_short_clip();
    at += kBlockHead + length;
    is_last = (head & 0x80) != 0;
  }
  if (file.size() - at < 2) return refuse_short_clip();
  if ((big16(file, at) & 0xFFFC) != 0xFFF8) return refuse_clip("the FLAC file has no frame behind its metadata");
  const auto samples = static_cast<std::int64_t>(packed & 0xFFFFFFFFF);
  if (samples == 0) return refuse_clip("the FLAC file does not state its length: encode it as a file, not as a stream");
  return check_length({.kind = AudioKind::flac,
                       .channels = static_cast<std::int64_t>(packed >> 41 & 0x7) + 1,
                       .sample_rate = static_cast<std::int64_t>(packed >> 44),
                       .samples = samples});
}

// --- MP3 (ISO 11172-3, 13818-3): tags, then frames of layer III one after another, then tags

struct Mp3Frame {
  std::uint32_t version = 0;  // 3: MPEG 1; 2: MPEG 2; 0: MPEG 2.5.
  std::int64_t sample_rate = 0;
  std::int64_t channels = 0;
  std::int64_t samples = 0;
  std::size_t bytes = 0;

  [[nodiscard]] bool is_like(const Mp3Frame& other) const {
    return version == other.version && sample_rate == other.sample_rate && channels == other.channels;
  }
};

// The frame whose head is at `at`; nothing if there is none.
std::optional<Mp3Frame> mp3_frame_at(File file, std::size_t at) {
  constexpr std::size_t kHead = 4;
  constexpr std::array<std::int64_t, 15> kRates1 = {0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320};
  constexpr std::array<std::int64_t, 15> kRates2 = {0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160};
  constexpr std::array<std::int64_t, 3> kSampleRates = {44'100, 48'000, 32'000};
  if (file.size() - at < kHead) return std::nullopt;
  const std::uint32_t head = big32(file, at);
  const std::uint32_t version = head >> 19 & 3;
  const std::uint32_t layer = head >> 17 & 3;
  const std::uint32_t rate = head >> 12 & 15;
  const std::uint32_t sample_rate = head >> 10 & 3;
  // A rate of 0 is any rate, whose frames have no known size.
  if (head >> 21 != 0x7FF || version == 1 || layer != 1 || rate == 0 || rate == 15 || sample_rate == 3) return std::nullopt;
  const bool is_first = version == 3;
  Mp3Frame frame{.version = version,
                 .sample_rate = kSampleRates[sample_rate] / (is_first       ? 1
                                                             : version == 2 ? 2
                                                                            : 4),
                 .channels = (head >> 6 & 3) == 3 ? 1 : 2,
                 .samples = is_first ? 1152 : 576};
  const std::int64_t bits_per_s = 1000 * (is_first ? kRates1[rate] : kRates2[rate]);
  frame.bytes = static_cast<std::size_t>(frame.samples / 8 * bits_per_s / frame.sample_rate) + (head >> 9 & 1);
  return frame;
}

// The size of the tag (ID3v2) at `at`; 0: there is none.
std::size_t tag_bytes(File file, std::size_t at) {
  constexpr std::size_t kHead = 10;
  const File tag = file.subspan(at);
  if (tag.size() < kHead || !begins_with(tag, "ID3")) return 0;
  std::size_t bytes = 0;
  for (std::size_t i = 6; i < kHead; ++i) bytes = bytes << 7 | (byte_at(tag, i) & 0x7F);
  const bool has_footer = (byte_at(tag, 5) & 0x10) != 0;
  return kHead + bytes + (has_footer ? kHead : 0);
}

// The number of frames that the first frame claims for the file (Xing); a decoder believes it.
std::int64_t claimed_frames(File frame) {
  constexpr std::size_t kHead = 12;
  for (std::size_t at = 0; at + kHead <= frame.size(); ++at) {
    const File head = frame.subspan(at);
    const bool is_head = begins_with(head, "Xing") || begins_with(head, "Info");
    if (is_head && (byte_at(head, 7) & 1) != 0) return big32(head, 8);
  }
  return 0;
}

Expected<AudioHeader> check_mp3(File file) {
  // A decoder may look for frames in tags, and these are not counted here.
  constexpr std::size_t kTagsMax = 1 << 20;
  constexpr std::size_t kTailMax = 64 << 10;
  std::size_t at = 0;
  while (const std::size_t bytes = tag_bytes(file, at)) {
    if (bytes > file.size() - at) return refuse_short_clip();
    at += bytes;
    if (at > kTagsMax) return refuse_clip("the tags of the MP3 file have more than a MiB: remove its pictures");
  }
  const auto first = mp3_frame_at(file, at);
  if (!first) return refuse_clip("the MP3 file has no frame of layer III behind its tags");
  if (first->bytes > file.size() - at) return refuse_short_clip();
  std::int64_t frames = 0;
  const std::int64_t claimed = claimed_frames(file.subspan(at, first->bytes));
  for (auto frame = first; frame && frame->is_like(*first) && frame->bytes <= file.size() - at;
       frame = mp3_frame_at(file, at)) {
    at += frame->bytes;
    ++frames;
  }
  if (file.size() - at > kTailMax) {
    return refuse_clip(std::format("the MP3 file is damaged: it has {} bytes behind its last frame", file.size() - at));
  }
  return check_length({.kind = AudioKind::mp3,
                       .channels = first->channels,
                       .sample_rate = first->sample_rate,
                       .samples = std::max(frames, claimed) * first->samples});
}

bool is_wav(File file) {
  return begins_with(file, "RIFF") && file.size() >= 12 && begins_with(file.subspan(8), "WAVE");
}

bool is_mp3(File file) {
  return begins_with(file, "ID3") || (file.size() >= 2 && big16(file, 0) >> 5 == 0x7FF);
}

}  // namespace

bool is_audio(File file) {
  return is_wav(file) || begins_with(file, "fLaC") || is_mp3(file);
}

Expected<AudioHeader> check_audio(File file) {
  if (file.size() > kAudioBytesMax) {
    return refuse_clip(std::format("the file has {} bytes; the limit is {}", file.size(), kAudioBytesMax));
  }
  if (is_wav(file)) return check_wav(file);
  if (begins_with(file, "fLaC")) return check_flac(file);
  if (is_mp3(file)) return check_mp3(file);
  return refuse_clip("it is not a WAV, MP3 or FLAC file");
}

}  // namespace uma::image
