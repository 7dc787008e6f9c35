// Vectors of texts with images, compared with the library's own evaluation.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "llm/llama_model.h"
#include "llm/media/image_tokens.h"
#include "llm/media/llama_grid_test_support.h"

namespace uma::llm {
namespace {

float farthest(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// Without flash attention nothing differs; the vectors' numbers are around 1.
constexpr float kRoundedBy = 1e-4F;

class ImageEmbeddingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto model = load_llama_model(test_models() / "tiny-grid-embed.gguf", {});
    ASSERT_TRUE(model) << model.error().message;
    model_ = *model;
    auto projector = model_->load_projector(test_models() / "mmproj-tiny-grid.gguf", {});
    ASSERT_TRUE(projector) << projector.error().message;
    projector_ = std::move(*projector);
    context_ = model_->new_embedding({.threads = 1}).value();
  }

  // The vector of three tokens, the image, and `after`.
  std::vector<float> vector_of(const Picture& image, const std::vector<Token>& after, CallMonitor* monitor = nullptr) {
    const ImageLayout layout = projector_->layout(&image).value();
    const std::vector<float> rows = projector_->encode(&image, nullptr).value();
    std::vector<Token> text = before_;
    for (std::int32_t row = 0; row < layout.rows_count(); ++row) text.push_back(image_token("a", "p", row));
    text.insert(text.end(), after.begin(), after.end());
    const ImageRows piece{
        .tokens = std::span<const Token>(text).subspan(before_.size(), static_cast<std::size_t>(layout.rows_count())),
        .values = rows,
        .position = static_cast<std::int32_t>(before_.size()),
        .is_causal = layout.is_causal,
        .grid = {layout.grid.places, layout.grid.moves, layout.grid.advance.front()}};
    std::vector<float> out;
    is_done_ = context_->compute_with_images(text, std::span(&piece, 1), monitor, out).value();
    return out;
  }

  std::vector<float> by_library(const Picture& image, const std::vector<Token>& after) const {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_batch = 2048;
    params.embeddings = true;
    params.pooling_type = LLAMA_POOLING_TYPE_LAST;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    LibraryEvaluation library("tiny-grid-embed.gguf", "mmproj-tiny-grid.gguf", params);
    library.add_tokens(before_, true);
    library.add_image(image);
    if (!after.empty()) library.add_tokens(after, true);
    const float* values = llama_get_embeddings_seq(library.context(), 0);
    EXPECT_NE(values, nullptr);
    return {values, values + context_->shape().dimensions};
  }

  const std::vector<Token> before_{1, 400, 401};
  const Picture wide_ = gradient(280, 140);   // 10 x 5 rows.
  const Picture large_ = gradient(840, 560);  // 30 x 20 rows, more than the library computes at once.
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Projector> projector_;
  std::unique_ptr<EmbeddingContext> context_;
  bool is_done_ = false;
};

TEST_F(ImageEmbeddingTest, VectorsAreTheLibrarys) {
  ASSERT_TRUE(context_->shape().reads_images);
  for (const Picture& image : {wide_, large_}) {
    for (const std::vector<Token>& after : {std::vector<Token>{500, 501}, std::vector<Token>{}}) {
      const auto vector = vector_of(image, after);
      EXPECT_LT(farthest(vector, by_library(image, after)), kRoundedBy);
      EXPECT_LT(farthest(vector_of(image, after), vector), 1e-6F) << "a call leaves nothing behind";
    }
  }
  EXPECT_GT(farthest(vector_of(wide_, {500, 501}), vector_of(large_, {500, 501})), 0.1F);
  EXPECT_GT(farthest(vector_of(wide_, {500, 501}), vector_of(wide_, {500, 502})), 0.1F);
}

TEST_F(ImageEmbeddingTest, ATextWithoutImagesIsAsUsual) {
  const std::vector<Token> text{1, 400, 401, 500, 2};
  std::vector<float> usual;
  std::vector<float> out;
  const std::span<const Token> view = text;
  EXPECT_TRUE(context_->compute(std::span(&view, 1), nullptr, usual).value());
  EXPECT_TRUE(context_->compute_with_images(text, {}, nullptr, out).value());
  EXPECT_EQ(out, usual);
}

TEST_F(ImageEmbeddingTest, ACallCanBeEndedAtAnyTime) {
  class EndsAt final : public CallMonitor {
   public:
    bool wants_end() override { return ++asked == at; }
    std::int32_t asked = 0;
    std::int32_t at = 0;  // 0: never.
  };
  const auto wanted = vector_of(wide_, {500, 501});
  EndsAt monitor;
  (void)vector_of(wide_, {500, 501}, &monitor);
  ASSERT_GT(monitor.asked, 3);
  for (const std::int32_t at : {1, monitor.asked / 2, monitor.asked}) {
    EndsAt ends;
    ends.at = at;
    EXPECT_TRUE(vector_of(wide_, {500, 501}, &ends).empty()) << at;
    EXPECT_FALSE(is_done_);
    EXPECT_LT(farthest(vector_of(wide_, {500, 501}), wanted), 1e-6F) << at;
  }
}

TEST_F(ImageEmbeddingTest, OtherPoolingsReadTextsOnly) {
  const auto reads = [](const std::string& name, std::optional<Pooling> pooling) {
    const auto model = load_llama_model(test_models() / name, {.pooling = pooling}).value();
    return model->new_embedding({.threads = 1}).value()->shape().reads_images;
  };
  EXPECT_FALSE(reads("tiny-embed.gguf", std::nullopt));
  EXPECT_FALSE(reads("tiny-rerank.gguf", std::nullopt));
  EXPECT_FALSE(reads("tiny-grid.gguf", Pooling::mean));
  EXPECT_TRUE(reads("tiny-grid.gguf", Pooling::last));
  EXPECT_TRUE(reads("tiny-embed-last.gguf", std::nullopt));
}

TEST_F(ImageEmbeddingTest, APoolingThatTheFileLacksCanBeGiven) {
  const auto given = load_llama_model(test_models() / "tiny-grid.gguf", {.pooling = Pooling::last}).value();
  EXPECT_EQ(given->facts().capability, Capability::text_embedding);
  const auto context = given->new_embedding({.threads = 1}).value();
  const std::vector<Token> text{1, 400, 401, 500, 2};
  const std::span<const Token> view = text;
  std::vector<float> out;
  std::vector<float> stated;
  EXPECT_TRUE(context->compute(std::span(&view, 1), nullptr, out).value());
  EXPECT_TRUE(context_->compute(std::span(&view, 1), nullptr, stated).value());
  EXPECT_EQ(out, stated) << "the two files have the same weights";
}

}  // namespace
}  // namespace uma::llm
