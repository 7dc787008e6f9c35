#include "llm/picture/picture_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "llm/picture/flow_drawing.h"
#include "llm/picture/picture_noise.h"
#include "llm/picture/picture_test_support.h"
#include "llm/picture/picture_words.h"

namespace uma::llm {
namespace {

using ::testing::HasSubstr;

class PictureModelTest : public ::testing::Test {
 protected:
  PictureModelTest() : path_(std::filesystem::temp_directory_path() / std::format("uma-picture-{}.gguf", ::getpid())) {
    init_log(LogLevel::error);
    reference_.write(path_);
  }
  ~PictureModelTest() override { std::filesystem::remove(path_); }

  std::shared_ptr<const PictureModel> load() {
    auto model = load_picture_model({.path = path_.string()}, {.names = std::vector<std::string>()});
    EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
    return model.value_or(nullptr);
  }
  static void expect_near(std::span<const float> found, std::span<const double> expected) {
    ASSERT_EQ(found.size(), expected.size());
    double worst = 0;
    for (std::size_t i = 0; i < found.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected[i]));
    EXPECT_LT(worst, 1e-3);
  }

  const ReferencePictures reference_{1};
  const std::filesystem::path path_;
};

TEST_F(PictureModelTest, ComputesWhatItsMathematicsSay) {
  const auto model = load();
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->facts().sizes.native, reference_.shape.image_size);
  EXPECT_EQ(model->facts().sizes.places_of(16, 16), reference_.shape.patches());
  EXPECT_EQ(model->facts().defaults.steps, 4);
  auto context = model->new_context({.rows_max = 3, .threads = 2});
  ASSERT_TRUE(context.has_value()) << context.error().message;
  const auto red_circle = model->read_caption("Red, circle!");
  const auto nothing = model->read_caption("");
  ASSERT_TRUE(red_circle && nothing);
  std::array<Caption, 2> captions;
  ASSERT_TRUE(*(*context)->read_caption(*red_circle, nullptr, captions[0]));
  ASSERT_TRUE(*(*context)->read_caption(*nothing, nullptr, captions[1]));
  const std::array expected{reference_.read_caption(red_circle->ids), reference_.read_caption(nothing->ids)};
  for (std::size_t i = 0; i < 2; ++i) {
    expect_near(captions[i].text, expected[i].text.numbers);
    expect_near(captions[i].pooled, expected[i].pooled);
  }
  // Twice, with other numbers of rows between: inputs are given anew to each call.
  const std::vector<float> first = normal_noise(1, static_cast<std::size_t>(reference_.shape.numbers()));
  const std::vector<float> second = normal_noise(2, first.size());
  const std::vector<DenoiseRow> rows = {
      {first, 1, 16, 16, captions.data()}, {second, 0.25F, 16, 16, &captions[1]}, {first, 0.5F, 16, 16, &captions[1]}};
  for (const std::size_t count : {3U, 1U, 3U, 2U, 2U}) {
    std::vector<float> clean;
    const auto done = (*context)->denoise(std::span(rows).first(count), nullptr, clean);
    ASSERT_TRUE(done && *done);
    ASSERT_EQ(clean.size(), count * first.size());
    for (std::size_t row = 0; row < count; ++row) {
      const auto& caption = expected[rows[row].caption == captions.data() ? 0 : 1];
      const std::vector<float> noisy(rows[row].noisy.begin(), rows[row].noisy.end());
      expect_near(std::span(clean).subspan(row * first.size(), first.size()),
                  reference_.denoise(noisy, static_cast<double>(rows[row].time), caption));
    }
  }
}

// What remains beside the mathematics of the same weights is the rounding of what they are multiplied with, of which the
// library keeps 8 bits.
TEST_F(PictureModelTest, QuantisedWeightsGiveNearlyTheSame) {
  ReferencePictures quantised(2, 64);  // Wide enough for the CPU's own layouts.
  quantised.quantise();
  quantised.write(path_);
  const auto model = load();
  ASSERT_NE(model, nullptr);
  const auto context = model->new_context({.rows_max = 2, .threads = 2});
  ASSERT_TRUE(context.has_value());
  const auto words = model->read_caption("red circle");
  Caption caption;
  ASSERT_TRUE(*(*context)->read_caption(*words, nullptr, caption));
  const std::vector<float> noise = normal_noise(3, static_cast<std::size_t>(quantised.shape.numbers()));
  const std::vector<DenoiseRow> rows = {{noise, 1, 16, 16, &caption}, {noise, 0.5F, 16, 16, &caption}};
  std::vector<float> clean;
  ASSERT_TRUE(*(*context)->denoise(rows, nullptr, clean));
  for (std::size_t row = 0; row < 2; ++row) {
    const Numbers expected = quantised.denoise(noise, static_cast<double>(rows[row].time), quantised.read_caption(words->ids));
    double error = 0;
    double size = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(static_cast<double>(clean[row * expected.size() + i]) - expected[i], 2);
      size += std::pow(expected[i], 2);
    }
    EXPECT_LT(std::sqrt(error / size), 0.02) << "the error's root mean square, as a share of the numbers'";
  }
}

// Draws `count` pictures together and returns the one with the seed 7.
std::vector<std::uint8_t> draw(PictureContext& context, const PictureModel& model, std::uint64_t first_seed,
                               std::size_t count) {
  Caption caption;
  Caption negative;
  EXPECT_TRUE(*context.read_caption(*model.read_caption("red square"), nullptr, caption));
  EXPECT_TRUE(*context.read_caption(*model.read_caption(""), nullptr, negative));
  std::vector<std::unique_ptr<PictureDrawing>> drawings;
  for (std::size_t i = 0; i < count; ++i) {
    drawings.push_back(
        context.new_drawing({.width = 16, .height = 16, .steps = 4, .guidance = 2.5F, .seed = first_seed + i}, {}));
  }
  const std::size_t numbers = drawings.front()->noisy().size();
  while (!drawings.front()->is_done()) {
    std::vector<DenoiseRow> rows;
    for (const auto& drawing : drawings) {
      rows.push_back({drawing->noisy(), drawing->time(), 16, 16, &caption});
      rows.push_back({drawing->noisy(), drawing->time(), 16, 16, &negative});
    }
    std::vector<float> clean;
    EXPECT_TRUE(*context.denoise(rows, nullptr, clean));
    for (std::size_t i = 0; i < count; ++i) {
      drawings[i]->advance(std::span(clean).subspan(2 * i * numbers, numbers),
                           std::span(clean).subspan((2 * i + 1) * numbers, numbers));
    }
  }
  return drawings[7 - first_seed]->levels();
}

TEST_F(PictureModelTest, DrawsTheSamePictureAgainAndBesideOthers) {
  const auto model = load();
  ASSERT_NE(model, nullptr);
  auto context = model->new_context({.rows_max = 6, .threads = 2});
  ASSERT_TRUE(context.has_value());
  const std::vector<std::uint8_t> alone = draw(**context, *model, 7, 1);
  EXPECT_EQ(draw(**context, *model, 7, 1), alone);
  const std::vector<std::uint8_t> beside = draw(**context, *model, 6, 3);
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(beside[i], alone[i], 1);
}

class EndsAtOnce final : public CallMonitor {
 public:
  bool wants_end() override { return true; }
};

TEST_F(PictureModelTest, ACallIsEndedEarlyAndTheNextOneIsWhole) {
  const auto model = load();
  ASSERT_NE(model, nullptr);
  auto context = model->new_context({.rows_max = 2, .threads = 2});
  ASSERT_TRUE(context.has_value());
  Caption caption;
  EndsAtOnce end;
  const auto words = model->read_caption("red");
  EXPECT_FALSE(*(*context)->read_caption(*words, &end, caption));
  ASSERT_TRUE(*(*context)->read_caption(*words, nullptr, caption));
  const std::vector<float> noise = normal_noise(3, static_cast<std::size_t>(reference_.shape.numbers()));
  const DenoiseRow row{noise, 1, 16, 16, &caption};
  std::vector<float> clean;
  EXPECT_FALSE(*(*context)->denoise({&row, 1}, &end, clean));
  EXPECT_TRUE(*(*context)->denoise({&row, 1}, nullptr, clean));
  expect_near(clean, reference_.denoise(noise, 1, reference_.read_caption(words->ids)));
}

TEST_F(PictureModelTest, ItsMemoryIsKnownBefore) {
  for (const std::int32_t rows : {2, 16}) {
    const PictureContextOptions options{.rows_max = rows};
    const auto need = measure_picture_model({.path = path_.string()}, {.names = std::vector<std::string>()}, options);
    ASSERT_TRUE(need.has_value()) << need.error().message;
    const auto model = load();
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(need->weights.all, model->facts().bytes.all);
    const auto context = model->new_context(options);
    ASSERT_TRUE(context.has_value());
    EXPECT_GT(need->context.all, 0u);
    EXPECT_EQ(need->context.all, (*context)->memory().all);
    EXPECT_TRUE(need->context.on_devices.is_empty());
  }
}

Expected<PictureFile> read(const testing::GgufBytes& file) {
  auto header = read_gguf_header(file.file_bytes(), file.reader(), GgufKind::picture);
  return header ? picture_file_of(*std::move(header)) : std::unexpected(header.error());
}

TEST(PictureFileTest, NamesWhatIsWrong) {
  const ReferencePictures small(1);
  ASSERT_TRUE(read(small.head()).has_value());
  const auto expect_refused = [](const testing::GgufBytes& file, std::string_view part) {
    const auto found = read(file);
    ASSERT_FALSE(found.has_value()) << part;
    EXPECT_EQ(found.error().code, ErrorCode::model_load);
    EXPECT_THAT(found.error().message, HasSubstr(part));
  };
  expect_refused(small.keys(), "tensor blk.0.attn_bias is missing");
  expect_refused(small.head().tensor("blk.9.attn_k_norm", {16}), "no place for a tensor blk.9.attn_k_norm");
  expect_refused(small.keys().tensor("text_embd", {32, 7}), "tensor text_embd is not 32 × 6");
  expect_refused(small.keys().tensor("text_embd", {32, 6}, 1, 2), "tensor text_embd has the type 1, not f32");
  expect_refused(small.keys().u32("uma-picture.width", 64), "appears twice");
  expect_refused(testing::GgufBytes::small_model(), "the architecture is llama");

  const auto with = [](auto change) {
    ReferencePictures changed(1);
    change(changed);
    return changed.keys();
  };
  expect_refused(with([](auto& file) { file.shape.width = 0; }), "uma-picture.width is 0");
  expect_refused(with([](auto& file) { file.shape.layers = -1; }), "uma-picture.layers is 4294967295");
  expect_refused(with([](auto& file) { file.shape.patch = 5; }), "16 pixels are not up to 4096 whole patches of 5");
  expect_refused(with([](auto& file) { file.shape.heads = 5; }), "not a multiple of 5 heads");
  expect_refused(with([](auto& file) { file.words = {"<pad>"}; }), "words is missing or too short");
  expect_refused(with([](auto& file) { file.words.push_back(std::string(65, 'x')); }), "a word of 65 bytes");
}

TEST(PictureWordsTest, EncodesAndNamesWhatItDoesNotKnow) {
  const PictureWords words({"<pad>", "<begin>", "red", "circle", "circles", "square"}, 4);
  EXPECT_THAT(*words.encode("red CIRCLE"), ::testing::ElementsAre(1, 2, 3, 0));
  EXPECT_THAT(*words.encode(" \t"), ::testing::ElementsAre(1, 0, 0, 0));
  const auto unknown = words.encode("red cirlce");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_THAT(unknown.error().message, HasSubstr("\"cirlce\"; the nearest that it knows are circle, circles, red"));
  EXPECT_THAT(words.encode("<begin>").error().message, HasSubstr("\"begin\""));
  EXPECT_THAT(words.encode(std::string(31, 'a') + "\xC3\xA9").error().message, HasSubstr(std::string(31, 'a') + "\""));
  EXPECT_THAT(words.encode("red red red red").error().message, HasSubstr("4 words, and the model reads 3"));
}

// The test values of the generator's authors.
TEST(PictureNoiseTest, IsTheKnownGenerator) {
  using Four = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  const std::vector<float> noise = normal_noise(42, 20'000);
  const double mean = std::accumulate(noise.begin(), noise.end(), 0.0) / 20'000;
  const double variance = std::inner_product(noise.begin(), noise.end(), noise.begin(), 0.0) / 20'000;
  EXPECT_NEAR(mean, 0, 0.03);
  EXPECT_NEAR(variance, 1, 0.05);
  EXPECT_NE(noise, normal_noise(std::uint64_t{1} << 32 | 42, 20'000));
}

TEST(FlowDrawingTest, GoesStraightToWhatIsPredicted) {
  FlowDrawing drawing({.width = 2, .height = 2, .steps = 4, .guidance = 1, .seed = 1}, 1, {});
  const std::vector<float> picture = {-1, 1, 0, 0.5F, -0.5F, 0.25F, 2, -3, 0, 0, 0, 0};
  EXPECT_FALSE(drawing.needs_negative());
  EXPECT_EQ(drawing.time(), 1);
  const float noise = drawing.noisy()[2];
  drawing.advance(picture, {});
  EXPECT_FLOAT_EQ(drawing.noisy()[2], 0.75F * noise);
  EXPECT_EQ(drawing.time(), 0.75F);
  for (int i = 0; i < 3; ++i) drawing.advance(picture, {});
  EXPECT_TRUE(drawing.is_done());
  EXPECT_THAT(drawing.levels(), ::testing::ElementsAre(0, 255, 128, 191, 64, 159, 255, 0, 128, 128, 128, 128)) << "clamped";
}

TEST(FlowDrawingTest, ShiftedTimesAreNearerToTheNoise) {
  FlowDrawing drawing({.width = 1, .height = 1, .steps = 4, .seed = 1}, 3, {});
  const std::vector<float> picture(3, 0);
  std::vector<float> times;
  const float noise = drawing.noisy()[0];
  for (; !drawing.is_done(); drawing.advance(picture, {})) {
    times.push_back(drawing.time());
    EXPECT_FLOAT_EQ(drawing.noisy()[0], noise * drawing.time());
  }
  EXPECT_THAT(times, ::testing::ElementsAre(1, ::testing::FloatEq(0.9F), 0.75F, 0.5F));
}

TEST(FlowDrawingTest, BeginsWithAPictureUnderTheNoiseOfALaterStep) {
  const std::vector<float> picture(3, 0.5F);
  const FlowDrawing drawing({.width = 1, .height = 1, .steps = 4, .seed = 1}, 1, {.picture = picture, .first_step = 3});
  EXPECT_EQ(drawing.steps_done(), 3);
  EXPECT_EQ(drawing.time(), 0.25F);
  EXPECT_FLOAT_EQ(drawing.noisy()[0], 0.75F * 0.5F + 0.25F * normal_noise(1, 1)[0]);
}

TEST(FlowDrawingTest, IsGuidedAwayFromTheNegativeCaption) {
  FlowDrawing drawing({.width = 1, .height = 1, .steps = 1, .guidance = 3, .seed = 1}, 1, {});
  ASSERT_TRUE(drawing.needs_negative());
  drawing.advance(std::vector<float>{0.25F, 0, -0.5F}, std::vector<float>{0, 0.5F, 0});
  EXPECT_THAT(drawing.levels(), ::testing::ElementsAre(223, 0, 0));
}

}  // namespace
}  // namespace uma::llm
