// The pieces of a saved sequence.
#include "engine/lane/move/state_transfer.h"

#include <vector>

#include <gtest/gtest.h>

#include "llm/media/image_tokens.h"
#include "testing/fake_model.h"

namespace uma::engine {
namespace {

using testing::FakeContext;

class StateTransferTest : public ::testing::Test {
 protected:
  void add_text(std::int32_t count) {
    std::vector<llm::BatchRow> rows;
    for (std::int32_t i = 0; i < count; ++i, tokens_.push_back('x')) {
      rows.push_back({.token = 'x', .position = static_cast<std::int32_t>(tokens_.size()), .sequence = 0});
    }
    ASSERT_TRUE(context_.decode(rows, nullptr));
  }
  void add_image(std::int32_t count) {
    std::vector<Token> tokens;
    std::vector<float> values;
    std::vector<llm::GridPlace> places;
    for (std::int32_t i = 0; i < count; ++i) {
      tokens.push_back(llm::kImageTokensBegin + i);
      values.push_back(testing::fake_row_value(tokens.back()));
      places.push_back({0, 0, i, 0});
    }
    ASSERT_TRUE(context_.decode_image({.tokens = tokens,
                                       .values = values,
                                       .position = static_cast<std::int32_t>(tokens_.size()),
                                       .sequence = 0,
                                       .grid = {.places = places, .moves = {}, .advance = 1}},
                                      nullptr));
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  }
  [[nodiscard]] static std::vector<std::int32_t> ends_of(const kv::Snapshot& snapshot) {
    std::vector<std::int32_t> ends;
    for (const kv::SnapshotPiece& piece : snapshot.pieces) ends.push_back(piece.end);
    return ends;
  }

  kv::BytePool pool_{1 << 20};
  std::vector<Token> tokens_;
  FakeContext context_{{.cells = 128, .sequences = 2, .unified = true, .has_grids = true}};  // Pieces of 16 tokens.
};

TEST_F(StateTransferTest, APieceEndsBeforeAnImageThatDoesNotFitIntoIt) {
  add_text(12);
  add_image(10);
  add_text(20);
  const auto saved = save_sequence(context_, 0, tokens_, {}, pool_, {});
  ASSERT_TRUE(saved);
  EXPECT_EQ(ends_of(*saved), (std::vector<std::int32_t>{12, 28, 42}));
}

TEST_F(StateTransferTest, AnImageThatIsLargerThanAPieceIsAPiece) {
  add_text(12);
  add_image(30);
  add_text(4);
  const auto saved = save_sequence(context_, 0, tokens_, {}, pool_, {});
  ASSERT_TRUE(saved);
  EXPECT_EQ(ends_of(*saved), (std::vector<std::int32_t>{12, 42, 46}));
}

TEST_F(StateTransferTest, ASaveGoesOnBehindEarlierPieces) {
  add_text(20);
  auto begun = save_sequence(context_, 0, tokens_, {}, pool_, {});
  ASSERT_TRUE(begun);
  add_text(20);
  const std::int64_t before = context_.cells_saved;
  auto saved = SequenceSave(context_, tokens_, {}, std::move(*begun)).finish(context_, 0, pool_);
  ASSERT_TRUE(saved);
  EXPECT_EQ(context_.cells_saved - before, 20);
  EXPECT_EQ(ends_of(*saved), (std::vector<std::int32_t>{16, 20, 36, 40}));
  ASSERT_TRUE(restore_sequence(context_, 1, {}, *saved));
  EXPECT_EQ(context_.cached(1, 100), tokens_);
}

TEST_F(StateTransferTest, ASaveOfASequenceThatHasLostItsEndHasTheTokensBeforeIt) {
  add_text(40);
  SequenceSave save(context_, tokens_, {}, ByteBudget::Share());
  ASSERT_TRUE(save.save_piece(context_, 0, pool_));
  EXPECT_EQ(save.tokens_saved(), 16u);
  ASSERT_TRUE(context_.truncate(0, 21));
  save.shorten(21);
  auto saved = save.finish(context_, 0, pool_);
  ASSERT_TRUE(saved);
  EXPECT_EQ(ends_of(*saved), (std::vector<std::int32_t>{16, 21}));
  tokens_.resize(21);
  EXPECT_EQ(saved->tokens, tokens_);
  ASSERT_TRUE(restore_sequence(context_, 1, {}, *saved));
  EXPECT_EQ(context_.cached(1, 100), tokens_);
}

}  // namespace
}  // namespace uma::engine
