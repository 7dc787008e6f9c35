#include "image/image_runs.h"

#include <gtest/gtest.h>

#include "llm/media/image_tokens.h"

namespace uma::image {
namespace {

// The tokens of `count` rows of the image, from row `first` on.
std::vector<Token> rows(const std::string& image, std::int32_t first, std::int32_t count) {
  std::vector<Token> tokens;
  for (std::int32_t row = first; row < first + count; ++row) tokens.push_back(llm::image_token(image, "p", row));
  return tokens;
}

std::vector<Token> joined(std::initializer_list<std::vector<Token>> parts) {
  std::vector<Token> chain;
  for (const auto& part : parts) chain.insert(chain.end(), part.begin(), part.end());
  return chain;
}

ImageRun run_of(std::vector<std::int32_t> pieces_end, bool is_causal) {
  const auto count = pieces_end.back();
  std::vector<float> values;
  for (std::int32_t row = 0; row < count; ++row) values.push_back(static_cast<float>(row));
  auto encoded = std::make_shared<EncodedImage>(
      EncodedImage{.rows = std::move(values), .row_width = 1, .pieces_end = std::move(pieces_end), .is_causal = is_causal});
  return {.image = "a", .begin = 10, .count = count, .first_row = 0, .encoded = std::move(encoded)};
}

TEST(ImageRuns, ACutIsMovedToTheBeginOfTheRunThatItSplits) {
  const std::vector<std::string> images{"a", "b"};
  const auto runs = find_image_runs(joined({{1, 2}, rows("a", 0, 3), rows("b", 0, 3), {7}}), images, "p");
  ASSERT_TRUE(runs);
  const std::int32_t expected[] = {0, 1, 2, 2, 2, 5, 5, 5, 8, 9};
  for (std::int32_t i = 0; i < 10; ++i) EXPECT_EQ(before_run(*runs, i), expected[i]) << i;
}

TEST(ImageRuns, AreFoundWhereTheirTokensAre) {
  const std::vector<std::string> images{"b", "a"};
  const auto chain = joined({{1, 2}, rows("a", 0, 3), {7}, rows("a", 3, 2), {8}, rows("b", 0, 2), rows("a", 0, 5)});
  const auto runs = find_image_runs(chain, images, "p");
  ASSERT_TRUE(runs) << runs.error().message;
  ASSERT_EQ(runs->size(), 4u);
  const auto is = [&](std::size_t i, const char* image, std::int32_t begin, std::int32_t count, std::int32_t first_row) {
    const ImageRun& run = (*runs)[i];
    EXPECT_EQ(run.image, image) << i;
    EXPECT_EQ(run.begin, begin) << i;
    EXPECT_EQ(run.count, count) << i;
    EXPECT_EQ(run.first_row, first_row) << i;
  };
  is(0, "a", 2, 3, 0);
  is(1, "a", 6, 2, 3);
  is(2, "b", 9, 2, 0);
  is(3, "a", 11, 5, 0);
}

TEST(ImageRuns, OfTheSameImageTwiceInARowAreTwo) {
  const std::vector<std::string> images{"a"};
  const auto runs = find_image_runs(joined({rows("a", 0, 2), rows("a", 0, 2)}), images, "p");
  ASSERT_TRUE(runs);
  ASSERT_EQ(runs->size(), 2u);
  EXPECT_EQ((*runs)[1].begin, 2);
  EXPECT_EQ((*runs)[1].first_row, 0);
}

TEST(ImageRuns, OfAnotherProjectorOrAnUnknownImageAreAnError) {
  const std::vector<std::string> images{"a"};
  EXPECT_FALSE(find_image_runs(rows("a", 0, 2), images, "q"));
  EXPECT_FALSE(find_image_runs(rows("b", 0, 2), images, "p"));
  EXPECT_FALSE(find_image_runs(rows("a", 1, 2), images, "p"));
  EXPECT_TRUE(find_image_runs(std::vector<Token>{1, 2, 3}, {}, "p")->empty());
}

TEST(ImageRuns, FindTheRunAtAPosition) {
  const std::vector<ImageRun> runs{{.image = "a", .begin = 3, .count = 2, .first_row = 0, .encoded = nullptr},
                                   {.image = "b", .begin = 8, .count = 1, .first_row = 0, .encoded = nullptr}};
  EXPECT_EQ(run_at(runs, 2), nullptr);
  EXPECT_EQ(run_at(runs, 3), &runs[0]);
  EXPECT_EQ(run_at(runs, 4), &runs[0]);
  EXPECT_EQ(run_at(runs, 5), nullptr);
  EXPECT_EQ(run_at(runs, 8), &runs[1]);
  EXPECT_EQ(run_at(runs, 9), nullptr);
  EXPECT_EQ(text_end(runs, 0, 20), 3);
  EXPECT_EQ(text_end(runs, 3, 20), 3);
  EXPECT_EQ(text_end(runs, 4, 20), 4);
  EXPECT_EQ(text_end(runs, 5, 20), 8);
  EXPECT_EQ(text_end(runs, 9, 20), 20);
}

// Two pieces: a grid of two lines and two columns, and one of a line.
ImageRun run_with_grid() {
  ImageRun run = run_of({4, 6}, true);
  EncodedImage encoded = *run.encoded;
  encoded.grid = {.places = {{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 1, 0, 0}, {0, 1, 1, 0}, {0, 0, 0, 0}, {0, 0, 1, 0}},
                  .moves = {1, 1, 1, 0},
                  .advance = {2, 2}};
  run.encoded = std::make_shared<EncodedImage>(std::move(encoded));
  return run;
}

TEST(ImageRuns, RowsWithAGridAreComputedByPiece) {
  const ImageRun run = run_with_grid();
  EXPECT_EQ(call_begin(run, 12), 10);
  EXPECT_EQ(call_end(run, 10, 100), 14);
  EXPECT_EQ(call_end(run, 14, 100), 16);
  const llm::GridView second = grid_of(run, 14, 16);
  EXPECT_EQ(second.places.size(), 2u);
  EXPECT_EQ(second.places[1][2], 1);
  EXPECT_EQ(second.advance, 2);
  EXPECT_EQ(second.moves, (llm::GridPlace{1, 1, 1, 0}));
  EXPECT_TRUE(grid_of(run_of({4, 6}, true), 14, 16).places.empty());
}

TEST(ImageRuns, ACallForAGridIsAsLongAsTheContextsCalls) {
  llm::ContextShape shape;
  shape.batch_rows_max = 100;
  shape.image_rows_max = 10;
  EXPECT_EQ(call_rows_max(*run_with_grid().encoded, shape), 100);
  EXPECT_EQ(call_rows_max(*run_of({4, 6}, true).encoded, shape), 10);
  EXPECT_EQ(call_rows_max(*run_of({4, 6}, false).encoded, shape), 10);
}

TEST(ImageRuns, AGridThatIsTooLargeOrIncompleteIsRefused) {
  ImageRun run = run_with_grid();
  EXPECT_TRUE(check_encoded(run, *run.encoded, 4));
  const auto large = check_encoded(run, *run.encoded, 3);
  ASSERT_FALSE(large);
  EXPECT_NE(large.error().message.find("vision.image_tokens_max"), std::string::npos) << large.error().message;
  run.count = 5;
  EXPECT_FALSE(check_encoded(run, *run.encoded, 4));
  run.count = 2;
  run.first_row = 4;
  EXPECT_TRUE(check_encoded(run, *run.encoded, 4));
}

TEST(ImageRuns, RowsThatAreNotCausalAreComputedByPiece) {
  const ImageRun run = run_of({3, 5}, false);
  EXPECT_EQ(call_begin(run, 10), 10);
  EXPECT_EQ(call_begin(run, 12), 10);
  EXPECT_EQ(call_begin(run, 13), 13);
  EXPECT_EQ(call_begin(run, 14), 13);
  EXPECT_EQ(call_end(run, 10, 100), 13);
  EXPECT_EQ(call_end(run, 13, 100), 15);
  EXPECT_EQ(rows_of(run, 13, 15)[0], 3);
  EXPECT_TRUE(check_encoded(run, *run.encoded, 3));
  const auto larger = check_encoded(run, *run.encoded, 2);
  ASSERT_FALSE(larger);
  EXPECT_EQ(larger.error().code, ErrorCode::limit_prompt);
}

TEST(ImageRuns, CausalRowsFillACall) {
  const ImageRun run = run_of({5}, true);
  EXPECT_EQ(call_begin(run, 12), 12);
  EXPECT_EQ(call_end(run, 12, 2), 14);
  EXPECT_EQ(call_end(run, 14, 2), 15);
  EXPECT_TRUE(check_encoded(run, *run.encoded, 2));
}

TEST(ImageRuns, AnImageWithFewerRowsIsRefused) {
  ImageRun run = run_of({5}, true);
  run.count = 6;
  EXPECT_FALSE(check_encoded(run, *run.encoded, 10));
}

}  // namespace
}  // namespace uma::image
