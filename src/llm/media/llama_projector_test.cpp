#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "llm/llama_model.h"
#include "llm/media/image_tokens.h"

namespace uma::llm {
namespace {

// 32 by 32 pixels; `pixel` returns red, green and blue.
Picture picture(const std::function<std::array<int, 3>(int x, int y)>& pixel) {
  constexpr int kSide = 32;
  Picture made{.width = kSide, .height = kSide, .levels = {}};
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      for (const int colour : pixel(x, y)) made.levels.push_back(static_cast<std::uint8_t>(colour));
    }
  }
  return made;
}

// Uses the projector and the matching model of the build.
class ProjectorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto model = load_llama_model((folder_ / "tiny-register.gguf").string(), {});
    ASSERT_TRUE(model) << model.error().message;
    model_ = *model;
    auto projector = model_->load_projector((folder_ / "mmproj-tiny-register.gguf").string(), {});
    ASSERT_TRUE(projector) << projector.error().message;
    projector_ = std::move(*projector);
  }

  const Picture gradient_ = picture([](int x, int y) { return std::array{8 * x, 8 * y, 255 - 4 * (x + y)}; });
  const Picture red_ = picture([](int, int) { return std::array{230, 30, 40}; });
  const std::filesystem::path folder_ = std::filesystem::path(std::getenv("UMA_TEST_MODEL")).parent_path();
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Projector> projector_;
};

TEST(ImageTokens, AreNoVocabularysAndDifferByImageProjectorAndRow) {
  const Token token = image_token("a", "p", 0);
  EXPECT_TRUE(is_image_token(token));
  EXPECT_FALSE(is_image_token(300'000));
  EXPECT_EQ(token, image_token("a", "p", 0));
  EXPECT_NE(token, image_token("b", "p", 0));
  EXPECT_NE(token, image_token("a", "q", 0));
  EXPECT_NE(token, image_token("a", "p", 1));
}

TEST_F(ProjectorTest, LaysOutAndEncodesAnImage) {
  const auto layout = projector_->layout(&gradient_);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->rows_count(), 256);
  EXPECT_EQ(std::ranges::count(layout->tokens, kNoToken), 256);
  EXPECT_NE(layout->tokens.front(), kNoToken);
  EXPECT_FALSE(layout->is_causal);
  const auto rows = projector_->encode(&gradient_, nullptr);
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_EQ(rows->size(), 256u * static_cast<std::size_t>(projector_->facts().row_width));
  EXPECT_EQ(*rows, *projector_->encode(&gradient_, nullptr));
  EXPECT_NE(*rows, *projector_->encode(&red_, nullptr));
}

TEST_F(ProjectorTest, AnEncodingCanBeEndedEarly) {
  // Ends at the given question.
  class EndAt final : public CallMonitor {
   public:
    explicit EndAt(int question) : left_(question) {}
    bool wants_end() override { return left_-- <= 0; }

   private:
    int left_;
  };
  const auto rows = projector_->encode(&gradient_, nullptr);
  for (const int question : {0, 1, 2}) {
    EndAt monitor(question);
    const auto ended = projector_->encode(&gradient_, &monitor);
    ASSERT_FALSE(ended) << question;
    EXPECT_EQ(ended.error().code, ErrorCode::limit_wait);
  }
  EndAt never(1'000'000);
  EXPECT_EQ(*rows, *projector_->encode(&gradient_, &never)) << "looking changes nothing";
  EXPECT_EQ(*rows, *projector_->encode(&gradient_, nullptr));
}

class SoundProjectorTest : public ::testing::Test {
 protected:
  void load(const std::string& model) {
    const std::filesystem::path folder = std::filesystem::path(std::getenv("UMA_TEST_MODEL")).parent_path();
    model_ = load_llama_model((folder / model).string(), {}).value();
    auto projector = model_->load_projector((folder / "mmproj-tiny-sound.gguf").string(), {});
    ASSERT_TRUE(projector) << projector.error().message;
    projector_ = std::move(*projector);
  }
  // A rising tone; another `step` gives another clip.
  static Clip tone(std::size_t samples, std::size_t step = 400) {
    Clip clip{.sample_rate = 16'000, .samples = {}};
    for (std::size_t i = 0; i < samples; ++i) clip.samples.push_back(static_cast<float>((i + 1) * step & 0x3FFF) / 32'768);
    return clip;
  }

  const Clip low_ = tone(16'000, 400);
  const Clip high_ = tone(16'000, 3000);
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Projector> projector_;
};

TEST_F(SoundProjectorTest, LaysOutAndEncodesAClip) {
  load("tiny.gguf");
  EXPECT_TRUE(projector_->facts().reads_audio);
  EXPECT_FALSE(projector_->facts().reads_images);
  EXPECT_EQ(projector_->facts().sample_rate, 16'000);
  const auto layout = projector_->layout(&low_);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->pieces, (std::vector<std::int32_t>{30}));
  EXPECT_TRUE(layout->is_causal);
  EXPECT_TRUE(layout->grid.places.empty());
  const auto rows = projector_->encode(&low_, nullptr);
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_EQ(rows->size(), 30u * static_cast<std::size_t>(projector_->facts().row_width));
  EXPECT_EQ(*rows, *projector_->encode(&low_, nullptr));
  EXPECT_NE(*rows, *projector_->encode(&high_, nullptr));
}

TEST_F(SoundProjectorTest, AClipIsALineOfAGrid) {
  load("tiny-grid.gguf");
  const Clip longer = tone(31 * 16'000);
  const auto layout = projector_->layout(&longer);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->grid.advance, (std::vector<std::int32_t>{30, 30}));
  EXPECT_EQ(layout->grid.moves, (GridPlace{1, 1, 1, 0}));
  ASSERT_EQ(layout->grid.places.size(), 60u);
  EXPECT_EQ(layout->grid.places[7], (GridPlace{7, 7, 7, 0}));
  EXPECT_EQ(layout->grid.places[37], (GridPlace{7, 7, 7, 0}));
}

TEST_F(SoundProjectorTest, TheShortestClipIsContinuedWithSilence) {
  load("tiny.gguf");
  const Clip one = tone(1, 400);
  Clip half_second = tone(1, 400);
  half_second.samples.resize(8'000);
  EXPECT_EQ(*projector_->encode(&one, nullptr), *projector_->encode(&half_second, nullptr));
  const Clip half_minute_and_one = tone(30 * 16'000 + 1);
  EXPECT_TRUE(projector_->layout(&half_minute_and_one));
}

TEST_F(SoundProjectorTest, RefusesWhatItCannotRead) {
  load("tiny.gguf");
  const Picture image = picture([](int, int) { return std::array{230, 30, 40}; });
  ASSERT_FALSE(projector_->layout(&image));
  EXPECT_EQ(projector_->layout(&image).error().code, ErrorCode::model_capability);
}

TEST_F(ProjectorTest, RefusesAClip) {
  const Clip clip{.sample_rate = 16'000, .samples = std::vector<float>(8'000)};
  EXPECT_FALSE(projector_->layout(&clip));
}

TEST_F(ProjectorTest, IsRefusedWhereItIsNone) {
  const auto none = model_->load_projector((folder_ / "tiny-register.gguf").string(), {});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::model_load);
  EXPECT_FALSE(model_->load_projector((folder_ / "absent.gguf").string(), {}));
}

// The rows of an image without causal attention go into one call, and later tokens depend on them.
TEST_F(ProjectorTest, RowsAreComputedInAContext) {
  const auto logits_for = [&](const Picture& image, const char* name) {
    auto context = model_->new_context({.cells = 1024, .sequences = 2, .layout = KvLayout::split});
    EXPECT_TRUE(context);
    const auto rows = *projector_->encode(&image, nullptr);
    std::vector<Token> tokens;
    for (std::int32_t i = 0; i < 256; ++i) tokens.push_back(image_token(name, "p", i));
    const BatchRow first{.token = 1, .position = 0, .sequence = 1, .wants_logits = false};
    EXPECT_EQ((*context)->decode(std::span(&first, 1), nullptr), DecodeStatus::done);
    const auto done =
        (*context)->decode_image({.tokens = tokens, .values = rows, .position = 1, .sequence = 1, .is_causal = false}, nullptr);
    EXPECT_FALSE(done && *done != DecodeStatus::done);
    EXPECT_EQ((*context)->sequence_length(1), 257);
    const BatchRow next{.token = 5, .position = 257, .sequence = 1, .wants_logits = true};
    EXPECT_EQ((*context)->decode(std::span(&next, 1), nullptr), DecodeStatus::done);
    const auto logits = (*context)->logits(0);
    return std::vector<float>(logits.begin(), logits.end());
  };
  const std::vector<float> grad = logits_for(gradient_, "gradient");
  EXPECT_FALSE(grad.empty());
  EXPECT_EQ(grad, logits_for(gradient_, "gradient"));
  EXPECT_NE(grad, logits_for(red_, "red"));
}

}  // namespace
}  // namespace uma::llm
