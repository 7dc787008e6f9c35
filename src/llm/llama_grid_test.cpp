// Images whose rows have positions of several dimensions, compared with the library's own evaluation.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mtmd-helper.h>
#include <mtmd.h>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <llama.h>

#include "llm/image_tokens.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

constexpr std::int32_t kBefore = 3;  // Tokens before the image.

// A BMP file of this size with a gradient.
Bytes bmp_of(int width, int height) {
  constexpr int kHead = 54;
  const int line_bytes = (width * 3 + 3) / 4 * 4;
  Bytes file;
  const auto put = [&](int value, int bytes) {
    for (int i = 0; i < bytes; ++i) file.push_back(static_cast<std::byte>(value >> (8 * i)));
  };
  put('B' | 'M' << 8, 2);
  for (const int value : {kHead + line_bytes * height, 0, kHead, 40, width, height}) put(value, 4);
  put(1, 2);   // Planes.
  put(24, 2);  // Bits per pixel.
  for (const int value : {0, line_bytes * height, 0, 0, 0, 0}) put(value, 4);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (const int colour : {3 * x, 5 * y, x * y}) put(colour, 1);
    }
    put(0, line_bytes - 3 * width);
  }
  return file;
}

class GridTest : public ::testing::TestWithParam<KvLayout> {
 protected:
  void SetUp() override {
    auto model = load_llama_model((folder_ / "tiny-grid.gguf").string(), {});
    ASSERT_TRUE(model) << model.error().message;
    model_ = *model;
    auto projector = model_->load_projector((folder_ / "mmproj-tiny-grid.gguf").string(), {});
    ASSERT_TRUE(projector) << projector.error().message;
    projector_ = std::move(*projector);
    layout_ = *projector_->layout(image_);
    rows_ = *projector_->encode(image_, nullptr);
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
  std::vector<float> by_library() const {
    const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
        llama_model_load_from_file((folder_ / "tiny-grid.gguf").c_str(), llama_model_default_params()), llama_model_free);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 1024;
    params.n_threads = params.n_threads_batch = 1;
    const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(model.get(), params), llama_free);
    mtmd_context_params how = mtmd_context_params_default();
    how.warmup = false;
    how.n_threads = 1;
    const std::unique_ptr<mtmd_context, decltype(&mtmd_free)> mtmd(
        mtmd_init_from_file((folder_ / "mmproj-tiny-grid.gguf").c_str(), model.get(), how), mtmd_free);
    const std::unique_ptr<mtmd_bitmap, decltype(&mtmd_bitmap_free)> bitmap(
        mtmd_helper_bitmap_init_from_buf(mtmd.get(), reinterpret_cast<const unsigned char*>(image_.data()), image_.size(),
                                         false, mtmd_helper_init_opt_default())
            .bitmap,
        mtmd_bitmap_free);
    const std::unique_ptr<mtmd_input_chunks, decltype(&mtmd_input_chunks_free)> chunks(mtmd_input_chunks_init(),
                                                                                       mtmd_input_chunks_free);
    const mtmd_input_part part{.text = nullptr, .bitmap = bitmap.get()};
    const mtmd_input_part* const parts[] = {&part};
    EXPECT_EQ(mtmd_tokenize_from_parts(mtmd.get(), chunks.get(), parts, 1, false), 0);
    std::vector<llama_token> before{1, 400, 401};
    EXPECT_EQ(llama_decode(context.get(), llama_batch_get_one(before.data(), kBefore)), 0);
    llama_pos past = kBefore;
    for (std::size_t i = 0; i < mtmd_input_chunks_size(chunks.get()); ++i) {
      const mtmd_input_chunk* chunk = mtmd_input_chunks_get(chunks.get(), i);
      if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) continue;  // The marks are not in this test.
      EXPECT_EQ(mtmd_helper_eval_chunk_single(mtmd.get(), context.get(), chunk, past, 0, 512, false, &past), 0);
    }
    llama_batch batch = llama_batch_init(2, 0, 1);
    batch.n_tokens = 2;
    for (std::int32_t i = 0; i < 2; ++i) {
      batch.token[i] = 500 + i;
      batch.pos[i] = past + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = static_cast<std::int8_t>(i == 1);
    }
    EXPECT_EQ(llama_decode(context.get(), batch), 0);
    llama_batch_free(batch);
    const float* logits = llama_get_logits_ith(context.get(), 1);
    return {logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(model.get()))};
  }

  static float distance(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    float largest = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
  }

  const Bytes image_ = bmp_of(280, 140);
  const std::filesystem::path folder_ = std::filesystem::path(std::getenv("UMA_TEST_MODEL")).parent_path();
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Projector> projector_;
  ImageLayout layout_;
  std::vector<float> rows_;
  std::unique_ptr<Context> context_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, GridTest, ::testing::Values(KvLayout::split, KvLayout::unified),
                         [](const auto& layout) { return layout.param == KvLayout::split ? "split" : "unified"; });

// Differences of rounding, by another shape of the calls; other tokens make more than 1.
constexpr float kRounding = 0.05F;

TEST_P(GridTest, AnImageHasLinesAndColumns) {
  EXPECT_TRUE(projector_->facts().has_grids);
  EXPECT_TRUE(projector_->layout(image_)->is_causal);
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

TEST_P(GridTest, SharedCellsKeepTheirImages) {
  if (!context_->shape().is_unified) GTEST_SKIP() << "only unified contexts share cells";
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
  const auto layout = (*small)->layout(image_);
  ASSERT_TRUE(layout);
  EXPECT_LE(layout->rows_count(), 16);
  EXPECT_NE((*small)->facts().identity, projector_->facts().identity);
}

}  // namespace
}  // namespace uma::llm
