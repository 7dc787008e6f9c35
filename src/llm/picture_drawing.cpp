#include "llm/picture_drawing.h"

#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "llm/picture_noise.h"

namespace uma::llm {

PictureDrawing::PictureDrawing(const DrawingOptions& options)
    : options_(options),
      noisy_(normal_noise(options.seed, static_cast<std::size_t>(options.size) * static_cast<std::size_t>(options.size) * 3)),
      clean_(noisy_.size()) {}

double PictureDrawing::time_of(std::int32_t step) const {
  const double share = static_cast<double>(options_.steps - step) / options_.steps;
  const auto shift = static_cast<double>(options_.shift);
  return shift * share / (1 + (shift - 1) * share);
}

void PictureDrawing::advance(std::span<const float> clean, std::span<const float> clean_of_negative) {
  UMA_CHECK(!is_done() && clean.size() == noisy_.size());
  UMA_CHECK(!needs_negative() || clean_of_negative.size() == noisy_.size());
  const auto left = static_cast<float>(time_of(steps_done_ + 1) / time_of(steps_done_));
  for (std::size_t i = 0; i < noisy_.size(); ++i) {
    const float without = needs_negative() ? clean_of_negative[i] : 0;
    const float guided = needs_negative() ? without + options_.guidance * (clean[i] - without) : clean[i];
    clean_[i] = std::fmax(-1.0F, std::fmin(guided, 1.0F));  // A number also if the guided one is none.
    noisy_[i] = clean_[i] + left * (noisy_[i] - clean_[i]);
  }
  ++steps_done_;
}

std::vector<std::uint8_t> PictureDrawing::levels() const {
  std::vector<std::uint8_t> levels;
  levels.reserve(clean_.size());
  for (const float value : clean_) levels.push_back(static_cast<std::uint8_t>(std::floor(127.5 * (value + 1.0) + 0.5)));
  return levels;
}

}  // namespace uma::llm
