// Requests to models that draw pictures from captions, and what they deliver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/bytes.h"
#include "core/error.h"
#include "core/event.h"
#include "core/image.h"
#include "core/request.h"

namespace uma {

inline constexpr std::int32_t kPicturesMax = 10;        // Limit per request.
inline constexpr std::int32_t kPictureStepsMax = 150;   // Limit per picture.
inline constexpr std::int32_t kPartialPicturesMax = 3;  // Limit per picture.
inline constexpr std::int32_t kPictureSideMax = 1024;   // Pixels.
inline constexpr float kPictureGuidanceMax = 30;
inline constexpr float kPictureStrength = 0.75;  // Usual in image programs.
inline constexpr std::size_t kCaptionBytesMax = 4000;

// How a model that predicts noise gets from one step to the next.
enum class PictureSampler : std::uint8_t { euler, euler_ancestral, dpmpp_2m, lcm };
// Which levels of noise the steps have: evenly spaced times; more of the low levels (Karras); evenly spaced times without the
// last one, as models that were distilled to few steps want it.
enum class NoiseSchedule : std::uint8_t { discrete, karras, trailing };

// "euler", "euler_a", "dpm++_2m", "lcm"; "discrete", "karras", "trailing".
[[nodiscard]] std::string_view sampler_name(PictureSampler sampler);
[[nodiscard]] std::string_view schedule_name(NoiseSchedule schedule);
// Labels as image programs write them: "Euler a", "DPM++ 2M"; "Karras".
[[nodiscard]] std::string_view sampler_label(PictureSampler sampler);
[[nodiscard]] std::string_view schedule_label(NoiseSchedule schedule);
// From a name or a label, or what other programs call it, in letters of any case; nullopt: it is none.
[[nodiscard]] std::optional<PictureSampler> sampler_of(std::string_view name);
[[nodiscard]] std::optional<NoiseSchedule> schedule_of(std::string_view name);
[[nodiscard]] std::span<const PictureSampler> all_samplers();
[[nodiscard]] std::span<const NoiseSchedule> all_schedules();
// All names, for people: "euler, euler_a, …".
[[nodiscard]] std::string sampler_names();
[[nodiscard]] std::string schedule_names();

struct PictureOptions {
  std::int32_t width = 0;             // Pixels; 0: as the model draws.
  std::int32_t height = 0;            // Height in pixels, with the rules of width.
  std::int32_t count = 1;             // 1 to kPicturesMax.
  std::optional<std::int32_t> steps;  // 1 to kPictureStepsMax; nullopt: the model's number.
  std::optional<float> guidance;      // How far the caption is followed, 1 to kPictureGuidanceMax; nullopt: the model's number.
  std::optional<std::uint64_t> seed;  // Seed of the first picture; the others count up from it. Nullopt: random.
  std::optional<PictureSampler> sampler{};  // Nullopt: the model's.
  std::optional<NoiseSchedule> schedule{};  // Nullopt: the model's, or the sampler's usual one.
  std::int32_t partial_pictures = 0;        // Unfinished pictures to deliver of each; up to kPartialPicturesMax.
  bool has_metadata = true;                 // The files contain the caption and the options.
  // How much of a picture that the drawing begins with is drawn anew, above 0 to 1: 1 leaves nothing of it.
  float strength = kPictureStrength;
};

struct PictureRequest {
  std::string model;                   // Empty: the default one of those that draw.
  std::uint64_t client = 0;            // See TextOptions.
  std::string caption;                 // UTF-8 of up to kCaptionBytesMax.
  std::string negative_caption{};      // Content that the pictures should not show; rules of `caption`.
  std::optional<ImageSource> begin{};  // A picture that the drawings begin with instead of noise, as data; nullopt: none.
  PictureOptions options{};
  RequestClass request_class = RequestClass::interactive;
  std::optional<std::int64_t> deadline_ms{};  // See TextOptions.
  RequestShare share{};
};
[[nodiscard]] std::size_t memory_of(const PictureRequest& request);

// The captions are read, and the pictures wait for their turn. The errors that can follow are those of drawing.
struct PictureBegun {
  std::int32_t width = 0;
  std::int32_t height = 0;
  std::int32_t pictures = 0;
  std::int32_t steps = 0;           // That are drawn of each picture; a picture to begin with saves some.
  std::uint64_t seed = 0;           // Seed of the first picture.
  std::int64_t caption_tokens = 0;  // Words of both captions that the model has read.
  std::int64_t picture_tokens = 0;  // Positions of each picture, as the model computes them.
};

// A step of a picture is done.
struct PictureStep {
  std::int32_t picture = 0;  // From 0.
  std::int32_t step = 0;     // From 1.
  std::int32_t steps = 0;
  double eta_ms = 0;  // Until all pictures of the request are drawn, at the speed so far.
};

// A picture, or an unfinished one.
struct DrawnPicture {
  std::int32_t picture = 0;  // From 0.
  std::int32_t partial = 0;  // Number of an unfinished one, from 1; 0: it is finished.
  std::uint64_t seed = 0;
  std::string_view png;  // Borrowed during the call.
};

using PictureEvent = std::variant<PictureBegun, PictureStep, DrawnPicture>;

// The receiver of a request's events. Shared by the connection and the lane that draws.
class PictureSink {
 public:
  virtual ~PictureSink() = default;
  // Called by engine threads, one at a time, before the request's reply. Copies what it needs and never blocks. Returns false
  // if the client reads too slowly and a picture was dropped; the request then ends with slow_consumer.
  virtual bool deliver(const PictureEvent& event) = 0;
};

// The receipt of a request.
struct PictureReceipt {
  FinishReason reason = FinishReason::stop;  // stop, cancelled, timeout, slow_consumer or error.
  std::optional<Error> error;                // The error, with reason `error`.
  std::string model;
  std::int32_t width = 0;
  std::int32_t height = 0;
  std::int32_t pictures = 0;  // Finished ones.
  std::int32_t steps = 0;     // Steps of each picture.
  float guidance = 0;
  PictureSampler sampler = PictureSampler::euler;
  std::optional<NoiseSchedule> schedule{};  // Nullopt: the sampler's usual one.
  std::uint64_t seed = 0;                   // Seed of the first picture.
  std::int64_t caption_tokens = 0;          // See PictureBegun.
  std::int64_t picture_tokens = 0;          // Positions of all pictures; unfinished ones count by their share of steps.
  double queue_ms = 0;                      // From receipt until the first step began.
  double draw_ms = 0;                       // From then on.
};

// The text about the request's picture with this seed that is written into its file, in the form that image programs read.
[[nodiscard]] std::string parameters_of(const PictureRequest& request, const PictureReceipt& receipt, std::uint64_t seed);

}  // namespace uma
