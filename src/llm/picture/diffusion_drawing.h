// A drawing by Stable Diffusion: noise is taken from a latent picture, step by step, and what is left is decoded. The methods
// are those that programs for it share (Karras et al., "Elucidating the design space of diffusion-based generative models",
// 2022; Lu et al., "DPM-Solver++", 2022; Luo et al., "Latent consistency models", 2023). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llm/picture/picture_drawing.h"

namespace uma::llm {

inline constexpr std::int32_t kLatentChannels = 4;
inline constexpr std::int32_t kLatentScale = 8;  // Pixels for one place of a latent picture, in each direction.

// The prediction of the network: the noise, or a mixture of noise and picture ("v", Salimans and Ho, 2022).
enum class Prediction : std::uint8_t { noise, velocity };

// The noise that each of the 1,000 times of the training has, as a multiple of the picture's own spread.
class NoiseLevels {
 public:
  static constexpr std::int32_t kTimes = 1000;

  NoiseLevels();
  // Between two times the logarithm is linear.
  [[nodiscard]] double of_time(double time) const;
  [[nodiscard]] double time_of(double level) const;
  // The levels of a drawing: one more than its steps, the last one 0.
  [[nodiscard]] std::vector<double> schedule(NoiseSchedule schedule, std::int32_t steps) const;
  // The levels of LCM: some of the 50 times that it was distilled for, and 0 at the end.
  [[nodiscard]] std::vector<double> schedule_of_lcm(std::int32_t steps) const;

 private:
  std::vector<double> logs_;  // The logarithms of the levels, by time.
};

// Latent pictures are [kLatentChannels, height / kLatentScale, width / kLatentScale] numbers. Time is that of the training,
// from 999 to 0.
class DiffusionDrawing final : public PictureDrawing {
 public:
  // Begins with the seed's noise, laid over the start's picture. The first of the noises that a sampler adds later follows it.
  DiffusionDrawing(const DrawingOptions& options, Prediction prediction, const DrawingStart& start);

  [[nodiscard]] bool is_done() const override { return !levels_.empty(); }
  [[nodiscard]] bool is_decoded() const override { return true; }
  [[nodiscard]] bool wants_decoding() const override { return steps_done() == options().steps && levels_.empty(); }
  [[nodiscard]] std::span<const float> noisy() const override { return scaled_; }
  [[nodiscard]] float time() const override;
  void advance(std::span<const float> predicted, std::span<const float> predicted_of_negative) override;
  [[nodiscard]] std::span<const float> latent() const override { return x_; }
  void finish(const std::vector<std::uint8_t>& levels) override { levels_ = levels; }
  // Before finish(): each place of the latent picture as a square of about its colour.
  [[nodiscard]] std::vector<std::uint8_t> levels() const override;

 private:
  void scale_input();
  void add_noise(double level);
  void step_to(double level);

  const Prediction prediction_;
  const NoiseLevels noise_levels_;
  std::vector<double> schedule_;
  std::uint32_t noises_ = 0;      // Drawn so far.
  std::vector<float> x_;          // The latent picture with the noise of the next step's level.
  std::vector<float> scaled_;     // The noisy picture as the network wants it.
  std::vector<float> clean_;      // The picture without noise that the last step has predicted.
  std::vector<float> clean_old_;  // That of the step before; empty: there was none.
  std::vector<std::uint8_t> levels_;
};

}  // namespace uma::llm
