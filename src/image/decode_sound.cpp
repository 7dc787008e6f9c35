#include "image/decode_sound.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <format>
#include <memory>
#include <samplerate.h>
#include <sndfile.h>
#include <string_view>
#include <vector>

#include "image/file_bytes.h"

namespace uma::image {
namespace {

constexpr sf_count_t kFramesAtOnce = 16'384;

std::unexpected<Error> refuse_clip(std::string_view why) {
  return fail(ErrorCode::proto_field, std::format("the clip cannot be read: {}", why));
}

// A file in memory, for libsndfile.
class MemoryFile {
 public:
  explicit MemoryFile(File file) : file_(file) {}

  SNDFILE* open(SF_INFO& info) {
    SF_VIRTUAL_IO io{.get_filelen = &MemoryFile::size,
                     .seek = &MemoryFile::seek,
                     .read = &MemoryFile::read,
                     .write = nullptr,
                     .tell = &MemoryFile::tell};
    return ::sf_open_virtual(&io, SFM_READ, &info, this);
  }

 private:
  static MemoryFile& of(void* file) { return *static_cast<MemoryFile*>(file); }
  static sf_count_t size(void* file) { return static_cast<sf_count_t>(of(file).file_.size()); }
  static sf_count_t tell(void* file) { return of(file).at_; }
  static sf_count_t seek(sf_count_t offset, int whence, void* file) {
    const sf_count_t begin = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? of(file).at_ : size(file);
    return of(file).at_ = std::clamp<sf_count_t>(begin + offset, 0, size(file));
  }
  static sf_count_t read(void* to, sf_count_t count, void* file) {
    count = std::clamp<sf_count_t>(count, 0, size(file) - of(file).at_);
    std::memcpy(to, of(file).file_.data() + of(file).at_, static_cast<std::size_t>(count));
    of(file).at_ += count;
    return count;
  }

  File file_;
  sf_count_t at_ = 0;
};

struct CloseSound {
  void operator()(SNDFILE* sound) const { ::sf_close(sound); }
};
struct EndResampling {
  void operator()(SRC_STATE* state) const { ::src_delete(state); }
};

// Appends samples to a clip at another rate.
class Resampler {
 public:
  Resampler(std::int32_t from, llm::Clip& clip)
      : clip_(clip), ratio_(static_cast<double>(clip.sample_rate) / from), is_needed_(from != clip.sample_rate) {
    int problem = 0;
    if (is_needed_) state_.reset(::src_new(SRC_SINC_FASTEST, 1, &problem));
  }

  // False: the library fails.
  [[nodiscard]] bool append(std::span<const float> samples, bool is_last) {
    if (!is_needed_) {
      clip_.samples.insert(clip_.samples.end(), samples.begin(), samples.end());
      return true;
    }
    if (!state_) return false;
    constexpr float kNone = 0;  // The library takes no null pointer.
    std::array<float, 4096> made{};
    for (SRC_DATA data{.data_in = samples.empty() ? &kNone : samples.data(),
                       .data_out = made.data(),
                       .input_frames = static_cast<long>(samples.size()),
                       .output_frames = static_cast<long>(made.size()),
                       .input_frames_used = 0,
                       .output_frames_gen = 0,
                       .end_of_input = is_last ? 1 : 0,
                       .src_ratio = ratio_};
         ;) {
      if (::src_process(state_.get(), &data) != 0) return false;
      if (data.output_frames_gen == 0 && data.input_frames_used == 0) return true;
      clip_.samples.insert(clip_.samples.end(), made.begin(), made.begin() + data.output_frames_gen);
      data.data_in += data.input_frames_used;
      data.input_frames -= data.input_frames_used;
    }
  }

 private:
  llm::Clip& clip_;
  double ratio_;
  bool is_needed_;
  std::unique_ptr<SRC_STATE, EndResampling> state_;  // Null: it is not needed, or cannot be made.
};

bool is_known_format(int format) {
  switch (format & SF_FORMAT_TYPEMASK) {
    case SF_FORMAT_WAV:
    case SF_FORMAT_WAVEX:
    case SF_FORMAT_FLAC:
    case SF_FORMAT_MPEG:
      return true;
    default:
      return false;
  }
}

// The mean of the channels of each frame.
void mix(std::span<const float> frames, std::size_t channels, std::vector<float>& mixed) {
  mixed.clear();
  for (std::size_t at = 0; at + channels <= frames.size(); at += channels) {
    float sum = 0;
    for (std::size_t i = 0; i < channels; ++i) sum += frames[at + i];
    mixed.push_back(sum / static_cast<float>(channels));
  }
}

}  // namespace

bool is_audio(File file) {
  const bool is_wav = begins_with(file, "RIFF") && file.size() >= 12 && begins_with(file.subspan(8), "WAVE");
  const bool is_mp3 = begins_with(file, "ID3") || (file.size() >= 2 && big16(file, 0) >> 5 == 0x7FF);
  return is_wav || is_mp3 || begins_with(file, "fLaC");
}

Expected<llm::Clip> decode_sound(File file, std::int32_t sample_rate) {
  if (!is_audio(file)) return refuse_clip("it is not a WAV, MP3 or FLAC file");
  SF_INFO info{};
  MemoryFile memory(file);
  const std::unique_ptr<SNDFILE, CloseSound> sound(memory.open(info));
  if (!sound || !is_known_format(info.format)) {
    return refuse_clip(std::format("it is not a WAV, MP3 or FLAC file, or is damaged ({})", ::sf_strerror(sound.get())));
  }
  if (info.channels < 1 || info.channels > kAudioChannelsMax) {
    return refuse_clip(std::format("it has {} channels; 1 to {} are supported", info.channels, kAudioChannelsMax));
  }
  if (info.samplerate < kAudioRateMin || info.samplerate > kAudioRateMax) {
    return refuse_clip(
        std::format("its sample rate is {} Hz; {} to {} Hz are supported", info.samplerate, kAudioRateMin, kAudioRateMax));
  }
  llm::Clip clip{.sample_rate = sample_rate, .samples = {}};
  Resampler resampler(info.samplerate, clip);
  const auto channels = static_cast<std::size_t>(info.channels);
  std::vector<float> frames(static_cast<std::size_t>(kFramesAtOnce) * channels);
  std::vector<float> mixed;
  const sf_count_t most = kAudioSecondsMax * info.samplerate;
  sf_count_t decoded = 0;
  while (true) {
    const sf_count_t got = ::sf_readf_float(sound.get(), frames.data(), kFramesAtOnce);
    decoded += std::max<sf_count_t>(got, 0);
    if (decoded > most) return refuse_clip(std::format("it takes more than {} s", kAudioSecondsMax));
    if (got <= 0) break;
    mix(std::span(frames).first(static_cast<std::size_t>(got) * channels), channels, mixed);
    if (!resampler.append(mixed, false)) return refuse_clip("its rate cannot be changed");
  }
  if (::sf_error(sound.get()) != SF_ERR_NO_ERROR)
    return refuse_clip(std::format("it is damaged ({})", ::sf_strerror(sound.get())));
  if (!resampler.append({}, true)) return refuse_clip("its rate cannot be changed");
  if (clip.samples.empty()) return refuse_clip("it has no samples");
  if (!std::ranges::all_of(clip.samples, [](float sample) { return std::isfinite(sample); })) {
    return refuse_clip("it has samples that are not finite");
  }
  return clip;
}

}  // namespace uma::image
