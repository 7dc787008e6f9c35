// One picture that is being drawn, step by step, from noise. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/picture.h"

namespace uma::llm {

struct DrawingOptions {
  std::int32_t width = 0;  // Pixels.
  std::int32_t height = 0;
  std::int32_t steps = 1;
  float guidance = 1;  // How far the caption is followed beyond its own prediction; 1: not beyond.
  std::uint64_t seed = 0;
  PictureSampler sampler = PictureSampler::euler;
  std::optional<NoiseSchedule> schedule{};  // Nullopt: the sampler's usual one.
};

// The picture that a drawing begins with instead of noise alone.
struct DrawingStart {
  std::span<const float> picture{};  // The output of PictureContext::encode(); empty: noise alone.
  std::int32_t first_step = 0;       // The step whose noise is laid over the picture. Below the number of steps.
};

class PictureDrawing {
 public:
  explicit PictureDrawing(const DrawingOptions& options, std::int32_t steps_done = 0)
      : options_(options), steps_done_(steps_done) {}
  virtual ~PictureDrawing() = default;
  PictureDrawing(const PictureDrawing&) = delete;
  PictureDrawing& operator=(const PictureDrawing&) = delete;

  [[nodiscard]] const DrawingOptions& options() const { return options_; }
  [[nodiscard]] std::int32_t steps_done() const { return steps_done_; }
  // The picture is finished.
  [[nodiscard]] virtual bool is_done() const { return steps_done_ == options_.steps; }
  // Its picture is decoded after the last step.
  [[nodiscard]] virtual bool is_decoded() const { return false; }
  // All steps are done, and PictureContext::decode() makes the picture of latent().
  [[nodiscard]] virtual bool wants_decoding() const { return false; }
  // Whether a step also needs what is predicted for the negative caption.
  [[nodiscard]] bool needs_negative() const { return options_.guidance != 1; }

  // The input of the next step's prediction.
  [[nodiscard]] virtual std::span<const float> noisy() const = 0;
  [[nodiscard]] virtual float time() const = 0;
  // Takes what was predicted for the caption, and for the negative one if it is needed. Requires: steps are left.
  virtual void advance(std::span<const float> predicted, std::span<const float> predicted_of_negative) = 0;

  // Requires: wants_decoding().
  [[nodiscard]] virtual std::span<const float> latent() const { return {}; }
  // Takes the decoded picture: [height, width, 3] levels. Requires: wants_decoding().
  virtual void finish(const std::vector<std::uint8_t>& /*levels*/) {}

  // The picture as far as it can be told after the last step: [height, width, 3] levels. Requires: a step is done.
  [[nodiscard]] virtual std::vector<std::uint8_t> levels() const = 0;

 protected:
  void count_step() { ++steps_done_; }

 private:
  const DrawingOptions options_;
  std::int32_t steps_done_;
};

}  // namespace uma::llm
