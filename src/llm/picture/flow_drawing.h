// A drawing by Euler's method on a straight path from noise to the picture (rectified flow). What is predicted is the picture.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llm/picture/picture_drawing.h"

namespace uma::llm {

// Pictures are [height, width, 3] numbers, by row, column and RGB, from -1 to 1. Time is 1 for noise and 0 for the picture.
class FlowDrawing final : public PictureDrawing {
 public:
  // Begins with the seed's noise, laid over the start's picture. `shift`: more than 1: more of the steps are where the noise is
  // strong.
  FlowDrawing(const DrawingOptions& options, float shift, const DrawingStart& start);

  [[nodiscard]] std::span<const float> noisy() const override { return noisy_; }
  [[nodiscard]] float time() const override { return static_cast<float>(time_of(steps_done())); }
  void advance(std::span<const float> predicted, std::span<const float> predicted_of_negative) override;
  [[nodiscard]] std::vector<std::uint8_t> levels() const override;

 private:
  [[nodiscard]] double time_of(std::int32_t step) const;

  const float shift_;
  std::vector<float> noisy_;
  std::vector<float> clean_;
};

}  // namespace uma::llm
