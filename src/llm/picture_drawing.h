// One picture that is being drawn, by Euler's method on a straight path from noise to the picture (rectified flow). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace uma::llm {

struct DrawingOptions {
  std::int32_t size = 0;  // Pixels of a side.
  std::int32_t steps = 1;
  float guidance = 1;  // How far the caption is followed beyond its own prediction; 1: not beyond.
  float shift = 1;     // More than 1: more of the steps are where the noise is strong.
  std::uint64_t seed = 0;
};

// Pictures are [size, size, 3] numbers, by row, column and RGB, from -1 to 1.
class PictureDrawing {
 public:
  // Begins with the seed's noise.
  explicit PictureDrawing(const DrawingOptions& options);

  [[nodiscard]] std::int32_t steps_done() const { return steps_done_; }
  [[nodiscard]] bool is_done() const { return steps_done_ == options_.steps; }
  [[nodiscard]] const DrawingOptions& options() const { return options_; }
  // Whether a step also needs what is predicted for the negative caption.
  [[nodiscard]] bool needs_negative() const { return options_.guidance != 1; }

  // What the next step's prediction is made from. Time is 1 for noise and 0 for the picture.
  [[nodiscard]] std::span<const float> noisy() const { return noisy_; }
  [[nodiscard]] float time() const { return static_cast<float>(time_of(steps_done_)); }
  // Takes the predicted clean pictures: for the caption, and for the negative one if it is needed. Requires: not done.
  void advance(std::span<const float> clean, std::span<const float> clean_of_negative);

  // The prediction of the last step, and after the last one the picture: [size, size, 3] levels.
  [[nodiscard]] std::vector<std::uint8_t> levels() const;

 private:
  [[nodiscard]] double time_of(std::int32_t step) const;

  const DrawingOptions options_;
  std::int32_t steps_done_ = 0;
  std::vector<float> noisy_;
  std::vector<float> clean_;
};

}  // namespace uma::llm
