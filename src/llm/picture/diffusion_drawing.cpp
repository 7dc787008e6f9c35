#include "llm/picture/diffusion_drawing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "llm/picture/picture_noise.h"

namespace uma::llm {
namespace {

std::size_t places_of(const DrawingOptions& options) {
  return static_cast<std::size_t>(options.width / kLatentScale) * static_cast<std::size_t>(options.height / kLatentScale);
}

std::vector<double> schedule_of(const NoiseLevels& levels, const DrawingOptions& options) {
  if (options.schedule) return levels.schedule(*options.schedule, options.steps);
  if (options.sampler == PictureSampler::lcm) return levels.schedule_of_lcm(options.steps);
  const bool is_multistep = options.sampler == PictureSampler::dpmpp_2m;
  return levels.schedule(is_multistep ? NoiseSchedule::karras : NoiseSchedule::discrete, options.steps);
}

}  // namespace

NoiseLevels::NoiseLevels() {
  // The noise that is added from one time to the next: squares of evenly spaced roots, as all versions were trained.
  const double first = std::sqrt(0.00085);
  const double last = std::sqrt(0.012);
  double kept = 1;  // The share of the picture.
  for (std::int32_t time = 0; time < kTimes; ++time) {
    const double root = first + (last - first) * time / (kTimes - 1);
    kept *= 1 - root * root;
    logs_.push_back(std::log((1 - kept) / kept) / 2);
  }
}

double NoiseLevels::of_time(double time) const {
  const double at = std::clamp(time, 0.0, static_cast<double>(kTimes - 1));
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, logs_.size() - 1);
  return std::exp(std::lerp(logs_[below], logs_[above], at - static_cast<double>(below)));
}

double NoiseLevels::time_of(double level) const {
  const double log = std::log(level);
  const auto above = std::ranges::lower_bound(logs_, log);
  if (above == logs_.begin()) return 0;
  if (above == logs_.end()) return kTimes - 1;
  const double low = *std::prev(above);
  return static_cast<double>(above - logs_.begin()) - 1 + (log - low) / (*above - low);
}

std::vector<double> NoiseLevels::schedule(NoiseSchedule schedule, std::int32_t steps) const {
  constexpr double kRho = 7;
  const double most = std::pow(of_time(kTimes - 1), 1 / kRho);
  const double least = std::pow(of_time(0), 1 / kRho);
  std::vector<double> levels;
  for (std::int32_t step = 0; step < steps; ++step) {
    const double share = steps == 1 ? 0 : static_cast<double>(step) / (steps - 1);
    switch (schedule) {
      case NoiseSchedule::discrete:
        levels.push_back(of_time((kTimes - 1) * (1 - share)));
        break;
      case NoiseSchedule::karras:
        levels.push_back(std::pow(most + share * (least - most), kRho));
        break;
      case NoiseSchedule::trailing:
        levels.push_back(of_time((kTimes - 1) * (1 - static_cast<double>(step) / steps)));
        break;
    }
  }
  levels.push_back(0);
  return levels;
}

std::vector<double> NoiseLevels::schedule_of_lcm(std::int32_t steps) const {
  constexpr std::int32_t kDistilled = 50;
  std::vector<double> levels;
  for (std::int32_t step = 0; step < steps; ++step) {
    const std::int32_t index = std::max(1, kDistilled - kDistilled * step / steps);
    const std::int32_t time = index * (kTimes / kDistilled) - 1;
    levels.push_back(of_time(time));
  }
  levels.push_back(0);
  return levels;
}

DiffusionDrawing::DiffusionDrawing(const DrawingOptions& options, Prediction prediction, const DrawingStart& start)
    : PictureDrawing(options, start.first_step),
      prediction_(prediction),
      schedule_(schedule_of(noise_levels_, options)),
      x_(start.picture.begin(), start.picture.end()) {
  if (x_.empty()) x_.resize(kLatentChannels * places_of(options));
  UMA_CHECK(x_.size() == kLatentChannels * places_of(options) && start.first_step < options.steps);
  add_noise(schedule_[static_cast<std::size_t>(start.first_step)]);
  scale_input();
}

float DiffusionDrawing::time() const {
  return static_cast<float>(noise_levels_.time_of(schedule_[static_cast<std::size_t>(steps_done())]));
}

// The network wants numbers of the same spread at every level.
void DiffusionDrawing::scale_input() {
  const double level = schedule_[static_cast<std::size_t>(steps_done())];
  const double factor = 1 / std::sqrt(level * level + 1);
  scaled_.resize(x_.size());
  for (std::size_t i = 0; i < x_.size(); ++i) scaled_[i] = static_cast<float>(x_[i] * factor);
}

void DiffusionDrawing::add_noise(double level) {
  const std::vector<float> noise = normal_noise(options().seed, x_.size(), noises_++);
  for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>(x_[i] + level * static_cast<double>(noise[i]));
}

void DiffusionDrawing::advance(std::span<const float> predicted, std::span<const float> predicted_of_negative) {
  UMA_CHECK(steps_done() < options().steps && predicted.size() == x_.size());
  UMA_CHECK(!needs_negative() || predicted_of_negative.size() == x_.size());
  const double level = schedule_[static_cast<std::size_t>(steps_done())];
  clean_old_ = std::exchange(clean_, std::vector<float>(x_.size()));
  const double spread = std::sqrt(level * level + 1);
  for (std::size_t i = 0; i < x_.size(); ++i) {
    const double without = needs_negative() ? static_cast<double>(predicted_of_negative[i]) : 0;
    const auto with = static_cast<double>(predicted[i]);
    const double guided = needs_negative() ? without + static_cast<double>(options().guidance) * (with - without) : with;
    const auto x = static_cast<double>(x_[i]);
    const double clean =
        prediction_ == Prediction::noise ? x - level * guided : x / (spread * spread) - level / spread * guided;
    clean_[i] = static_cast<float>(clean);
  }
  step_to(schedule_[static_cast<std::size_t>(steps_done()) + 1]);
  count_step();
  if (steps_done() < options().steps) scale_input();
}

// From the current level to the next one.
void DiffusionDrawing::step_to(double next) {
  const double level = schedule_[static_cast<std::size_t>(steps_done())];
  // x becomes kept * x + (1 - kept) * clean, with the noise of what is left.
  const auto mix = [&](double kept, const std::vector<float>& clean) {
    for (std::size_t i = 0; i < x_.size(); ++i)
      x_[i] = static_cast<float>(kept * static_cast<double>(x_[i]) + (1 - kept) * static_cast<double>(clean[i]));
  };
  switch (options().sampler) {
    case PictureSampler::euler:
      return mix(next / level, clean_);
    case PictureSampler::euler_ancestral: {
      const double added = std::min(next, std::sqrt(next * next * (level * level - next * next) / (level * level)));
      mix(std::sqrt(next * next - added * added) / level, clean_);
      if (next > 0) add_noise(added);
      return;
    }
    case PictureSampler::dpmpp_2m: {
      if (clean_old_.empty() || next == 0) return mix(next / level, clean_);
      const double before = schedule_[static_cast<std::size_t>(steps_done()) - 1];
      const double ratio = std::log(before / level) / std::log(level / next);  // Last step's length divided by this one's.
      std::vector<float> ahead(x_.size());
      for (std::size_t i = 0; i < x_.size(); ++i) {
        const auto clean = static_cast<double>(clean_[i]);
        ahead[i] = static_cast<float>(clean + (clean - static_cast<double>(clean_old_[i])) / (2 * ratio));
      }
      return mix(next / level, ahead);
    }
    case PictureSampler::lcm:
      x_ = clean_;
      if (next > 0) add_noise(next);
      return;
  }
}

std::vector<std::uint8_t> DiffusionDrawing::levels() const {
  if (!levels_.empty()) return levels_;
  // Red, green and blue of each channel, as fitted to Stable Diffusion 1.4 (K. Turner, "Decoding latents to RGB without
  // upscaling", discuss.huggingface.co, 2022).
  static constexpr std::array<std::array<double, 3>, kLatentChannels> kColours = {
      {{0.298, 0.207, 0.208}, {0.187, 0.286, 0.173}, {-0.158, 0.189, 0.264}, {-0.184, -0.271, -0.473}}};
  const std::size_t places = places_of(options());
  const auto width = static_cast<std::size_t>(options().width);
  std::vector<std::uint8_t> levels(places * kLatentScale * kLatentScale * 3);
  for (std::size_t pixel = 0; pixel < places * kLatentScale * kLatentScale; ++pixel) {
    const std::size_t place = pixel / width / kLatentScale * (width / kLatentScale) + pixel % width / kLatentScale;
    for (std::size_t colour = 0; colour < 3; ++colour) {
      double value = 0;
      for (std::size_t channel = 0; channel < kLatentChannels; ++channel)
        value += kColours[channel][colour] * static_cast<double>(clean_[channel * places + place]);
      levels[pixel * 3 + colour] = static_cast<std::uint8_t>(std::clamp(value * 127.5 + 128, 0.0, 255.0));
    }
  }
  return levels;
}

}  // namespace uma::llm
