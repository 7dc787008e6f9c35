#include "llm/picture/flow_drawing.h"

#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "llm/picture/picture_noise.h"

namespace uma::llm {

FlowDrawing::FlowDrawing(const DrawingOptions& options, float shift, const DrawingStart& start)
    : PictureDrawing(options, start.first_step),
      shift_(shift),
      noisy_(
          normal_noise(options.seed, static_cast<std::size_t>(options.width) * static_cast<std::size_t>(options.height) * 3)),
      clean_(noisy_.size()) {
  if (start.picture.empty()) return;
  UMA_CHECK(start.picture.size() == noisy_.size() && start.first_step < options.steps);
  const float noise = time();
  for (std::size_t i = 0; i < noisy_.size(); ++i) noisy_[i] = start.picture[i] + noise * (noisy_[i] - start.picture[i]);
}

double FlowDrawing::time_of(std::int32_t step) const {
  const double share = static_cast<double>(options().steps - step) / options().steps;
  const auto shift = static_cast<double>(shift_);
  return shift * share / (1 + (shift - 1) * share);
}

void FlowDrawing::advance(std::span<const float> predicted, std::span<const float> predicted_of_negative) {
  UMA_CHECK(!is_done() && predicted.size() == noisy_.size());
  UMA_CHECK(!needs_negative() || predicted_of_negative.size() == noisy_.size());
  const auto left = static_cast<float>(time_of(steps_done() + 1) / time_of(steps_done()));
  for (std::size_t i = 0; i < noisy_.size(); ++i) {
    const float without = needs_negative() ? predicted_of_negative[i] : 0;
    const float guided = needs_negative() ? without + options().guidance * (predicted[i] - without) : predicted[i];
    clean_[i] = std::fmax(-1.0F, std::fmin(guided, 1.0F));  // A number also if the guided one is none.
    noisy_[i] = clean_[i] + left * (noisy_[i] - clean_[i]);
  }
  count_step();
}

std::vector<std::uint8_t> FlowDrawing::levels() const {
  std::vector<std::uint8_t> levels;
  levels.reserve(clean_.size());
  for (const float value : clean_) levels.push_back(static_cast<std::uint8_t>(std::floor(127.5 * (value + 1.0) + 0.5)));
  return levels;
}

}  // namespace uma::llm
