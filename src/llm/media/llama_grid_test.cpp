// Images whose rows have positions of several dimensions, compared with the library's own evaluation.
#include <algorithm>
#include <cmath>
#include <filesystem>
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

constexpr std::int32_t kBefore = 3;  // Tokens before the image.

class GridTest : public ::testing::TestWithParam<KvLayout> {
 protected:
  void SetUp() override {
    auto model = load_llama_model((folder_ / "tiny-grid.gguf").string(), {});
    ASSERT_TRUE(model) << model.error().message;
    model_ = *model;
    auto projector = model_->load_projector((folder_ / "mmproj-tiny-grid.gguf").string(), {});
    ASSERT_TRUE(projector) << projector.error().message;
    projector_ = std::move(*projector);
    layout_ = *projector_->layout(&image_);
    rows_ = *projector_->encode(&image_, nullptr);
    context_ = new_context();
  }

  [[nodiscard]] std::unique_ptr<Context> new_context(std::int32_t ubatch_rows = 512) const {
    return *model_->new_context({.cells = 4096, .sequences = 4, .layout = GetParam(), .ubatch_rows = ubatch_rows});
  }
  // Computes three tokens, the image, and two tokens. Returns the logits of the last.
  std::vector<float> compute(Context& context, std::int32_t sequence) {
    decode_text(context, sequence, {1, 400, 401});
    EXPECT_EQ(*decode_image(context, sequence, nullptr), DecodeStatus::done);
    return decode_text(context, sequence, {500, 501});
  }
  std::vector<float> decode_text(Context& context, std::int32_t sequence, const std::vector<Token>& tokens) {
    std::vector<BatchRow> rows;
    std::int32_t position = context.sequence_length(sequence);
    for (const Token token : tokens) rows.push_back({.token = token, .position = position++, .sequence = sequence});
    rows.back().wants_logits = true;
    EXPECT_EQ(context.decode(rows, nullptr), DecodeStatus::done);
    const auto logits = context.logits(static_cast<std::int32_t>(rows.size()) - 1);
    return {logits.begin(), logits.end()};
  }
  Expected<DecodeStatus> decode_image(Context& context, std::int32_t sequence, CallMonitor* monitor) {
    const ImageGrid& grid = layout_.grid;
    std::vector<Token> tokens;
    for (std::int32_t row = 0; row < rows_count(); ++row) tokens.push_back(image_token("a", "p", row));
    return context.decode_image({.tokens = tokens,
                                 .values = rows_,
                                 .position = context.sequence_length(sequence),
                                 .sequence = sequence,
                                 .grid = {.places = grid.places, .moves = grid.moves, .advance = grid.advance.front()}},
                                monitor);
  }
  [[nodiscard]] std::int32_t rows_count() const { return layout_.rows_count(); }
  [[nodiscard]] std::int32_t length() const { return kBefore + rows_count() + 2; }

  // The logits of the same tokens by mtmd's own evaluation.
  [[nodiscard]] std::vector<float> by_library() const {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 1024;
    LibraryEvaluation library("tiny-grid.gguf", "mmproj-tiny-grid.gguf", params);
    library.add_tokens(std::vector<Token>{1, 400, 401}, false);
    library.add_image(image_);
    library.add_tokens(std::vector<Token>{500, 501}, false);
    const float* logits = llama_get_logits_ith(library.context(), 1);
    return {logits, logits + library.vocabulary()};
  }

  static float distance(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    float largest = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
  }

  const Picture image_ = gradient(280, 140);
  const std::filesystem::path folder_ = test_models();
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Projector> projector_;
  ImageLayout layout_;
  std::vector<float> rows_;
  std::unique_ptr<Context> context_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, GridTest, ::testing::Values(KvLayout::split, KvLayout::unified),
                         [](const auto& layout) { return layout.param == KvLayout::split ? "split" : "unified"; });

class UnifiedGridTest : public GridTest {};  // Only unified contexts share cells.
INSTANTIATE_TEST_SUITE_P(Layouts, UnifiedGridTest, ::testing::Values(KvLayout::unified));

// Differences of rounding, by another shape of the calls; other tokens make more than 1.
constexpr float kRounding = 0.05F;

TEST_P(GridTest, AnImageHasLinesAndColumns) {
  EXPECT_TRUE(projector_->facts().has_grids);
  EXPECT_TRUE(projector_->layout(&image_)->is_causal);
  EXPECT_TRUE(context_->shape().has_grids);
  EXPECT_FALSE(context_->shape().can_shift);
  EXPECT_EQ(rows_count(), 50);
  ASSERT_EQ(layout_.grid.places.size(), 50u);
  EXPECT_EQ(layout_.grid.advance, (std::vector<std::int32_t>{10}));
  EXPECT_EQ(layout_.grid.places[0], (GridPlace{0, 0, 0, 0}));
  EXPECT_EQ(layout_.grid.places[49][0], 0);
  EXPECT_EQ(layout_.grid.places[49][1], 4);
  EXPECT_EQ(layout_.grid.places[49][2], 9);
}

TEST_P(GridTest, LogitsAreTheLibrarys) {
  const std::vector<float> logits = compute(*context_, 1);
  EXPECT_EQ(context_->sequence_length(1), length());
  EXPECT_LT(distance(logits, by_library()), kRounding);
}

TEST_P(GridTest, LogitsDependOnTheGrid) {
  const std::vector<float> logits = compute(*context_, 0);
  ImageGrid& grid = layout_.grid;
  grid.advance.front() = rows_count();  // The tokens behind the image are further away.
  EXPECT_GT(distance(compute(*context_, 1), logits), 4 * kRounding);
  grid.advance.front() = 10;
  for (GridPlace& place : grid.places) std::swap(place[1], place[2]);
  EXPECT_GT(distance(compute(*context_, 2), logits), 4 * kRounding);
}

TEST_P(GridTest, TheLibraryMayDivideTheRowsOfACall) {
  const auto small = new_context(16);
  EXPECT_LT(distance(compute(*small, 0), compute(*context_, 0)), kRounding);
  EXPECT_EQ(small->sequence_length(0), length());
}

TEST_P(GridTest, ASequenceIsCutBeforeOrBehindAnImage) {
  const std::vector<float> wanted = compute(*context_, 0);
  const std::int32_t end = kBefore + rows_count();
  for (const std::int32_t inside : {kBefore + 1, end - 1}) {
    EXPECT_FALSE(context_->can_truncate(0, inside));
    EXPECT_FALSE(context_->truncate(0, inside));
    EXPECT_EQ(context_->sequence_length(0), length());
  }
  EXPECT_TRUE(context_->truncate(0, end));
  EXPECT_EQ(context_->sequence_length(0), end);
  EXPECT_LT(distance(decode_text(*context_, 0, {500, 501}), wanted), kRounding);
  EXPECT_TRUE(context_->truncate(0, kBefore));
  EXPECT_EQ(context_->sequence_length(0), kBefore);
  EXPECT_EQ(*decode_image(*context_, 0, nullptr), DecodeStatus::done);
  EXPECT_LT(distance(decode_text(*context_, 0, {500, 501}), wanted), kRounding);
}

TEST_P(GridTest, AnImageAfterAnotherOneIsBehindIt) {
  (void)compute(*context_, 0);
  EXPECT_EQ(*decode_image(*context_, 0, nullptr), DecodeStatus::done);
  EXPECT_EQ(context_->sequence_length(0), length() + rows_count());
  EXPECT_FALSE(context_->can_truncate(0, length() + 1));
  (void)decode_text(*context_, 0, {7});
  EXPECT_EQ(context_->sequence_length(0), length() + rows_count() + 1);
  EXPECT_TRUE(context_->truncate(0, length()));
  EXPECT_EQ(context_->sequence_length(0), length());
}

TEST_P(GridTest, AnImageWhoseCallEndsEarlyIsNotThere) {
  class Ends final : public CallMonitor {
   public:
    bool wants_end() override { return ++asked == ends_at; }
    std::int32_t asked = 0;
    std::int32_t ends_at = 0;  // 0: never.
  };
  const auto context = new_context(16);
  const std::vector<float> wanted = compute(*context, 0);
  EXPECT_TRUE(context->truncate(0, kBefore));
  Ends monitor;
  EXPECT_EQ(*decode_image(*context, 0, &monitor), DecodeStatus::done);
  EXPECT_TRUE(context->truncate(0, kBefore));
  monitor.ends_at = monitor.asked * 3 / 4;  // The library divides the rows into four parts.
  monitor.asked = 0;
  EXPECT_EQ(*decode_image(*context, 0, &monitor), DecodeStatus::interrupted);
  EXPECT_EQ(context->sequence_length(0), kBefore);
  EXPECT_EQ(*decode_image(*context, 0, nullptr), DecodeStatus::done);
  EXPECT_LT(distance(decode_text(*context, 0, {500, 501}), wanted), kRounding);
}

TEST_P(GridTest, StatesCarryTheirImages) {
  (void)compute(*context_, 0);
  const std::vector<float> next = decode_text(*context_, 0, {600});
  EXPECT_TRUE(context_->truncate(0, length()));
  const auto other = new_context();
  std::vector<std::int32_t> ends{length()};
  if (context_->shape().knows_pieces()) ends = {2, kBefore + rows_count(), length()};
  std::int32_t begin = 0;
  for (const std::int32_t end : ends) {
    Bytes state;
    ASSERT_TRUE(context_->save_state(0, begin, end, state));
    EXPECT_TRUE(model_->check_state(state));
    ASSERT_TRUE(other->load_state(2, begin, end, other->fit_state(state))) << end;
    EXPECT_EQ(other->sequence_length(2), end);
    begin = end;
  }
  EXPECT_FALSE(other->can_truncate(2, kBefore + 1));
  EXPECT_LT(distance(decode_text(*other, 2, {600}), next), kRounding);
}

TEST_P(GridTest, StatesThatEndWithAnImageGoOnBehindIt) {
  const std::vector<float> wanted = compute(*context_, 0);
  EXPECT_TRUE(context_->truncate(0, kBefore + rows_count()));
  Bytes state;
  ASSERT_TRUE(context_->save_state(0, 0, kBefore + rows_count(), state));
  ASSERT_TRUE(context_->load_state(3, 0, kBefore + rows_count(), context_->fit_state(state)));
  EXPECT_LT(distance(decode_text(*context_, 3, {500, 501}), wanted), kRounding);
}

TEST_P(GridTest, StatesWithAnotherTableAreRefused) {
  (void)compute(*context_, 0);
  Bytes state;
  ASSERT_TRUE(context_->save_state(0, 0, length(), state));
  const auto other = new_context();
  const auto loads = [&](Bytes bytes) { return other->load_state(1, 0, length(), other->fit_state(bytes)).has_value(); };
  const std::size_t table = state.size() - 16;
  for (const std::size_t word : {table, table + 4, table + 8, table + 12}) {
    for (const int change : {1, -1, 100, 0x40}) {
      Bytes changed = state;
      changed[word] = static_cast<std::byte>(static_cast<int>(changed[word]) + change);
      EXPECT_FALSE(loads(changed)) << word << " " << change;
      EXPECT_EQ(other->sequence_length(1), 0);
    }
  }
  EXPECT_FALSE(loads(Bytes(state.begin(), state.end() - 16)));
  EXPECT_TRUE(loads(state));
}

TEST_P(UnifiedGridTest, SharedCellsKeepTheirImages) {
  const std::vector<float> wanted = compute(*context_, 0);
  context_->share(0, 1, kBefore + rows_count());
  EXPECT_EQ(context_->sequence_length(1), kBefore + rows_count());
  EXPECT_LT(distance(decode_text(*context_, 1, {500, 501}), wanted), kRounding);
  context_->share(0, 2, kBefore);
  EXPECT_EQ(context_->sequence_length(2), kBefore);
  EXPECT_LT(distance(compute(*context_, 3), wanted), kRounding);
}

TEST_P(GridTest, ImagesAreScaledDownToALimit) {
  const auto small = model_->load_projector((folder_ / "mmproj-tiny-grid.gguf").string(), {.image_tokens_max = 16});
  ASSERT_TRUE(small) << small.error().message;
  const auto layout = (*small)->layout(&image_);
  ASSERT_TRUE(layout);
  EXPECT_LE(layout->rows_count(), 16);
  EXPECT_NE((*small)->facts().identity, projector_->facts().identity);
}

}  // namespace
}  // namespace uma::llm
