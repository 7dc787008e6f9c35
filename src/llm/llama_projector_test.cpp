#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "llm/image_tokens.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

// A trained vision projector and the model that it fits; absent where only the repository is.
class ProjectorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder_ / "mmproj-tinygemma3.gguf")) GTEST_SKIP() << folder_ << " is absent";
    auto model = load_llama_model((folder_ / "babyllama105-ext-f32.gguf").string(), {});
    ASSERT_TRUE(model) << model.error().message;
    model_ = *model;
    auto projector = model_->load_projector((folder_ / "mmproj-tinygemma3.gguf").string(), 1);
    ASSERT_TRUE(projector) << projector.error().message;
    projector_ = std::move(*projector);
  }
  [[nodiscard]] Bytes read(const char* name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }

  const std::filesystem::path folder_ = std::getenv("UMA_E2E_MODELS") != nullptr
                                            ? std::filesystem::path(std::getenv("UMA_E2E_MODELS"))
                                            : std::filesystem::path(UMA_SHIPPED_MODEL).parent_path() / "../../shared/models";
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
  const Bytes image = read("grad32.png");
  const auto layout = projector_->layout(image);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->rows_count(), 256);
  EXPECT_EQ(std::ranges::count(layout->tokens, kNoToken), 256);
  EXPECT_NE(layout->tokens.front(), kNoToken);
  EXPECT_FALSE(projector_->facts().is_causal);
  const auto rows = projector_->encode(image);
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_EQ(rows->size(), 256u * static_cast<std::size_t>(projector_->facts().row_width));
  EXPECT_EQ(*rows, *projector_->encode(image));
  EXPECT_NE(*rows, *projector_->encode(read("red32.png")));
}

TEST_F(ProjectorTest, RefusesWhatIsNoImage) {
  const std::string text = "this is text";
  const auto bytes = std::as_bytes(std::span(text));
  ASSERT_FALSE(projector_->layout(bytes));
  EXPECT_EQ(projector_->layout(bytes).error().code, ErrorCode::proto_field);
  EXPECT_FALSE(projector_->encode(bytes));
}

TEST_F(ProjectorTest, IsRefusedWhereItIsNone) {
  const auto none = model_->load_projector((folder_ / "babyllama105-ext-f32.gguf").string(), 1);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::model_load);
  EXPECT_FALSE(model_->load_projector((folder_ / "absent.gguf").string(), 1));
}

// The rows of an image that sees ahead go in as one, and what follows depends on them.
TEST_F(ProjectorTest, RowsAreComputedInAContext) {
  const auto said = [&](const char* name) {
    auto context = model_->new_context({.cells = 1024, .sequences = 2, .layout = KvLayout::split});
    EXPECT_TRUE(context);
    const auto rows = *projector_->encode(read(name));
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
  const std::vector<float> grad = said("grad32.png");
  EXPECT_FALSE(grad.empty());
  EXPECT_EQ(grad, said("grad32.png"));
  EXPECT_NE(grad, said("red32.png"));
}

}  // namespace
}  // namespace uma::llm
