#include "llm/picture/diffusion_drawing.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/picture/picture_noise.h"

namespace uma::llm {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;

DrawingOptions options_of(PictureSampler sampler, std::int32_t steps, std::optional<NoiseSchedule> schedule = {}) {
  return {.width = 64, .height = 128, .steps = steps, .guidance = 1, .seed = 7, .sampler = sampler, .schedule = schedule};
}
const NoiseLevels& levels() {
  static const NoiseLevels levels;
  return levels;
}

// The well-known bounds of Stable Diffusion's training.
TEST(NoiseLevelsTest, AreThoseOfTheTraining) {
  EXPECT_NEAR(levels().of_time(999), 14.6146, 1e-4);
  EXPECT_NEAR(levels().of_time(0), 0.0292, 1e-4);
  for (const double time : {0.0, 0.5, 17.25, 500.0, 998.9, 999.0})
    EXPECT_NEAR(levels().time_of(levels().of_time(time)), time, 1e-9);
  EXPECT_EQ(levels().time_of(1000), 999);
  EXPECT_EQ(levels().time_of(0.001), 0);
}

TEST(NoiseLevelsTest, SchedulesHaveTheirKnownTimes) {
  const auto times_of = [](const std::vector<double>& schedule) {
    std::vector<double> times;
    for (std::size_t i = 0; i + 1 < schedule.size(); ++i) times.push_back(levels().time_of(schedule[i]));
    EXPECT_EQ(schedule.back(), 0);
    return times;
  };
  const auto near = [](double time) { return DoubleNear(time, 1e-6); };
  EXPECT_THAT(times_of(levels().schedule(NoiseSchedule::discrete, 4)), ElementsAre(near(999), near(666), near(333), near(0)));
  EXPECT_THAT(times_of(levels().schedule(NoiseSchedule::trailing, 4)),
              ElementsAre(near(999), near(749.25), near(499.5), near(249.75)));
  EXPECT_THAT(times_of(levels().schedule_of_lcm(4)), ElementsAre(near(999), near(759), near(499), near(259)));
  EXPECT_THAT(times_of(levels().schedule(NoiseSchedule::discrete, 1)), ElementsAre(near(999)));
  // Karras: the seventh roots are evenly spaced.
  const auto karras = levels().schedule(NoiseSchedule::karras, 5);
  for (std::size_t i = 1; i + 2 < karras.size(); ++i)
    EXPECT_NEAR(2 * std::pow(karras[i], 1 / 7.0), std::pow(karras[i - 1], 1 / 7.0) + std::pow(karras[i + 1], 1 / 7.0), 1e-9);
}

// Draws with a network that always predicts the noise that leaves `clean`, and returns the latent picture.
std::vector<float> draw(const DrawingOptions& options, float clean, Prediction prediction = Prediction::noise) {
  DiffusionDrawing drawing(options, prediction, {});
  while (!drawing.wants_decoding()) {
    EXPECT_FALSE(drawing.is_done());
    const double level = levels().of_time(static_cast<double>(drawing.time()));
    const double spread = std::sqrt(level * level + 1);
    std::vector<float> predicted;
    for (const float scaled : drawing.noisy()) {
      const double x = static_cast<double>(scaled) * spread;
      const double noise = (x - static_cast<double>(clean)) / level;
      // v of Salimans and Ho: with a the picture's share and s the noise's, v = a * noise - s * picture.
      const double velocity = (noise - level * static_cast<double>(clean)) / spread;
      predicted.push_back(static_cast<float>(prediction == Prediction::noise ? noise : velocity));
    }
    drawing.advance(predicted, {});
  }
  return {drawing.latent().begin(), drawing.latent().end()};
}

TEST(DiffusionDrawingTest, EverySamplerArrivesAtWhatIsPredicted) {
  for (const PictureSampler sampler : all_samplers()) {
    for (const std::int32_t steps : {1, 2, 7}) {
      for (const Prediction prediction : {Prediction::noise, Prediction::velocity}) {
        EXPECT_THAT(draw(options_of(sampler, steps), 0.75F, prediction), Each(FloatNear(0.75F, 1e-3F)))
            << sampler_name(sampler) << " " << steps;
      }
    }
  }
}

TEST(DiffusionDrawingTest, BeginsWithTheNoiseOfTheFirstLevel) {
  const DiffusionDrawing drawing(options_of(PictureSampler::euler, 4), Prediction::noise, {});
  const std::vector<float> noise = normal_noise(7, 4 * 8 * 16);
  ASSERT_EQ(drawing.noisy().size(), noise.size());
  const double level = levels().of_time(999);
  for (std::size_t i = 0; i < noise.size(); i += 50)
    EXPECT_NEAR(drawing.noisy()[i], static_cast<double>(noise[i]) * level / std::sqrt(level * level + 1), 1e-5);
  EXPECT_EQ(drawing.time(), 999);
}

// With a prediction of nothing (D = 0) Euler multiplies by the ratio of the levels, and the second order changes nothing.
TEST(DiffusionDrawingTest, StepsAreThoseOfTheirFormulas) {
  for (const PictureSampler sampler : {PictureSampler::euler, PictureSampler::dpmpp_2m}) {
    DiffusionDrawing drawing(options_of(sampler, 3, NoiseSchedule::discrete), Prediction::noise, {});
    const auto schedule = levels().schedule(NoiseSchedule::discrete, 3);
    const double x = static_cast<double>(drawing.latent()[0]);
    for (std::size_t step = 0; step < 2; ++step) {
      const double spread = std::sqrt(schedule[step] * schedule[step] + 1);
      std::vector<float> predicted;
      for (const float scaled : drawing.noisy())
        predicted.push_back(static_cast<float>(static_cast<double>(scaled) * spread / schedule[step]));
      drawing.advance(predicted, {});
      EXPECT_NEAR(drawing.latent()[0], x * schedule[step + 1] / schedule[0], 1e-3);
    }
  }
}

// DPM-Solver++(2M) solves exactly what changes evenly in the logarithm of the level.
TEST(DiffusionDrawingTest, TheSecondOrderLooksAhead) {
  const auto error_of = [](PictureSampler sampler) {
    DiffusionDrawing drawing(options_of(sampler, 12, NoiseSchedule::karras), Prediction::noise, {});
    const auto schedule = levels().schedule(NoiseSchedule::karras, 12);
    // D = log(level), whose solution of dx/dlevel = (x - D) / level is level * c + log(level) + 1.
    const double c = (static_cast<double>(drawing.latent()[0]) - std::log(schedule[0]) - 1) / schedule[0];
    for (std::size_t step = 0; step < 11; ++step) {
      std::vector<float> predicted;
      for (const float x : drawing.latent())
        predicted.push_back(static_cast<float>((static_cast<double>(x) - std::log(schedule[step])) / schedule[step]));
      drawing.advance(predicted, {});
    }
    return std::abs(static_cast<double>(drawing.latent()[0]) - (schedule[11] * c + std::log(schedule[11]) + 1));
  };
  EXPECT_LT(error_of(PictureSampler::dpmpp_2m), error_of(PictureSampler::euler) / 5);
}

TEST(DiffusionDrawingTest, AncestralSamplersAddTheSeedsNextNoises) {
  EXPECT_NE(normal_noise(7, 4, 1), normal_noise(7, 4, 0));
  const auto after_one = [](PictureSampler sampler, std::uint64_t seed) {
    DrawingOptions options = options_of(sampler, 2);
    options.seed = seed;
    DiffusionDrawing drawing(options, Prediction::noise, {});
    drawing.advance(std::vector<float>(drawing.noisy().size()), {});
    return std::vector<float>(drawing.latent().begin(), drawing.latent().end());
  };
  for (const PictureSampler sampler : {PictureSampler::euler_ancestral, PictureSampler::lcm}) {
    EXPECT_EQ(after_one(sampler, 7), after_one(sampler, 7));
    EXPECT_NE(after_one(sampler, 7), after_one(sampler, 8));
  }
}

TEST(DiffusionDrawingTest, IsGuidedAwayFromTheNegativeCaption) {
  DrawingOptions options = options_of(PictureSampler::euler, 1);
  options.guidance = 3;
  DiffusionDrawing drawing(options, Prediction::noise, {});
  ASSERT_TRUE(drawing.needs_negative());
  const double x = static_cast<double>(drawing.latent()[0]);
  const std::size_t count = drawing.noisy().size();
  drawing.advance(std::vector<float>(count, 0.5F), std::vector<float>(count, 0.25F));
  EXPECT_NEAR(drawing.latent()[0], x - levels().of_time(999) * (0.25 + 3 * 0.25), 1e-4);
}

TEST(DiffusionDrawingTest, ShowsItsPictureBeforeItIsDecoded) {
  DiffusionDrawing drawing(options_of(PictureSampler::euler, 1), Prediction::noise, {});
  std::vector<float> noise;
  for (const float x : drawing.latent()) noise.push_back(static_cast<float>(static_cast<double>(x) / levels().of_time(999)));
  drawing.advance(noise, {});
  EXPECT_THAT(drawing.levels(), ::testing::AllOf(::testing::SizeIs(64 * 128 * 3), Each(::testing::AnyOf(127, 128))))
      << "an empty latent picture is gray";
  ASSERT_TRUE(drawing.wants_decoding());
  drawing.finish(std::vector<std::uint8_t>(64 * 128 * 3, 9));
  EXPECT_TRUE(drawing.is_done());
  EXPECT_FALSE(drawing.wants_decoding());
  EXPECT_THAT(drawing.levels(), Each(9));
}

TEST(DiffusionDrawingTest, BeginsWithAPictureUnderTheNoiseOfALaterStep) {
  const std::vector<float> latent(4 * 8 * 16, 0.5F);
  const DiffusionDrawing drawing(options_of(PictureSampler::euler, 4), Prediction::noise, {.picture = latent, .first_step = 3});
  EXPECT_EQ(drawing.steps_done(), 3);
  EXPECT_EQ(drawing.time(), 0);
  const double level = levels().of_time(0);
  EXPECT_NEAR(drawing.latent()[0], 0.5 + level * static_cast<double>(normal_noise(7, 1)[0]), 1e-5);
}

}  // namespace
}  // namespace uma::llm
