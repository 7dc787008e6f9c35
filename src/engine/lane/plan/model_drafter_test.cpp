#include "engine/lane/plan/model_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/fake_model.h"

namespace uma::engine {
namespace {

using testing::fake_continuation;
using testing::fake_tokens;
using testing::FakeContext;
using testing::FakeFault;
using testing::FakeOptions;
using testing::FakeVocab;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::SimClock;

// A sequence as in the lane.
struct Chain {
  Chain(std::size_t slot_index, std::string_view text) : slot(slot_index), tokens(fake_tokens(text)) {}
  std::size_t slot;
  std::vector<Token> tokens;
  llm::Sampler sampler{{}, 1, {}};
  sched::DraftControl control{sched::kDraftModelPrior};
  std::vector<Token> draft;
  std::vector<llm::Distribution> distributions;
  std::int32_t tokens_max = 12;

  ModelDrafter::Candidate candidate() {
    return {.slot = slot,
            .chain = tokens,
            .tokens_max = tokens_max,
            .sampler = &sampler,
            .seed = 1,
            .control = &control,
            .draft = &draft,
            .distributions = &distributions};
  }
};

class ModelDrafterTest : public ::testing::Test {
 protected:
  void make(FakeOptions options) {
    options.clock = &clock_;
    options_ = options;
    auto context = std::make_unique<FakeContext>(options);
    context_ = context.get();
    drafter_ = std::make_unique<ModelDrafter>(std::move(context), vocab_, clock_);
  }
  void draft(std::initializer_list<Chain*> chains, std::int32_t rows_max = 64) {
    std::vector<ModelDrafter::Candidate> candidates;
    for (Chain* chain : chains) candidates.push_back(chain->candidate());
    drafter_->draft(candidates, costs_, rows_max, 1);
    drafter_->check_invariants();
  }
  std::vector<Token> expected(const Chain& chain, std::size_t count) {
    return fake_continuation(options_, chain.tokens, static_cast<std::int32_t>(count));
  }

  SimClock clock_;
  FakeVocab vocab_;
  FakeOptions options_;
  FakeContext* context_ = nullptr;
  std::unique_ptr<ModelDrafter> drafter_;
  ModelDrafter::Costs costs_{.call_ms = 40, .token_ms = 40, .row_ms = 2};
};

TEST(DraftContext, RotatesAsTheModelsContextDoes) {
  const llm::RopeOptions rope{.scaling = llm::RopeScaling::yarn, .scale = 4};
  const llm::ContextOptions drafts =
      draft_context_options({.has_spare = true, .kv_types = llm::KvTypes::both(llm::KvType::q8_0), .rope = rope});
  EXPECT_EQ(drafts.rope, rope);
  EXPECT_FALSE(drafts.has_spare || drafts.kv_types.is_quantized());
}

TEST_F(ModelDrafterTest, DraftsWhatItsModelSaysForEachSequence) {
  make({.cells = 400});
  Chain a(0, "hello");
  Chain b(2, "there");
  draft({&a, &b});
  ASSERT_EQ(a.draft.size(), 2u) << "a careful first try";
  EXPECT_EQ(a.draft, expected(a, 2));
  EXPECT_EQ(b.draft, expected(b, 2));
  EXPECT_THAT(a.distributions, IsEmpty()) << "a greedy draft token is certain";
}

TEST_F(ModelDrafterTest, ComputesOnlyWhatIsNew) {
  make({.cells = 400});
  Chain a(0, "hello");
  draft({&a});
  a.tokens.insert(a.tokens.end(), a.draft.begin(), a.draft.end());
  a.tokens.push_back('x');
  std::size_t rows = 0;
  context_->fault = [&](std::span<const llm::BatchRow> call) {
    rows += call.size();
    return FakeFault::none;
  };
  a.tokens_max = 1;
  draft({&a});
  EXPECT_EQ(rows, 2u) << "the last draft token, which was not computed here, and what came after it";
  EXPECT_EQ(a.draft, expected(a, 1));
}

TEST_F(ModelDrafterTest, ForgetsGuessesThatWereWrong) {
  make({.cells = 400});
  Chain a(0, "hello");
  for (int i = 0; i < 5; ++i) {
    draft({&a});
    a.tokens.push_back('x');
  }
  draft({&a});
  EXPECT_EQ(a.draft, expected(a, a.draft.size()));
  EXPECT_FALSE(a.draft.empty());
}

TEST_F(ModelDrafterTest, ASlotThatChangedHandsIsReadAnew) {
  make({.cells = 400});
  Chain a(0, "hello there");
  draft({&a});
  Chain b(0, "hello, you");
  draft({&b});
  EXPECT_EQ(b.draft, expected(b, b.draft.size()));
  EXPECT_FALSE(b.draft.empty());
}

TEST_F(ModelDrafterTest, ALongPromptIsReadInPartsAndGetsNoGuessUntilThen) {
  make({.cells = 4000, .batch_rows_max = 512});
  Chain a(0, std::string(600, 'p'));
  Chain b(1, "short");
  std::size_t rows_most = 0;
  context_->fault = [&](std::span<const llm::BatchRow> call) {
    rows_most = std::max(rows_most, call.size());
    return FakeFault::none;
  };
  int ticks = 0;
  for (; a.draft.empty() && ticks < 100; ++ticks) {
    draft({&a, &b});
    EXPECT_FALSE(b.draft.empty()) << "the other one need not wait";
  }
  EXPECT_EQ(a.draft, expected(a, a.draft.size()));
  EXPECT_GT(ticks, 5);
  EXPECT_LT(ticks, 50);
  EXPECT_LE(rows_most, 96u) << "10 ms at 0.1 ms a row";
}

TEST_F(ModelDrafterTest, DraftsNothingWhereItsOwnCallsCostMoreThanTheyBring) {
  make({.cells = 400, .decode_cost = std::chrono::milliseconds(50)});
  Chain a(0, "hello");
  draft({&a});
  EXPECT_FALSE(a.draft.empty()) << "the price is not known yet";
  draft({&a});
  EXPECT_THAT(a.draft, IsEmpty()) << "50 ms for a token that takes 40";
}

TEST_F(ModelDrafterTest, APriceThatWasMeasuredWrongIsMeasuredAgain) {
  make({.cells = 4000});
  Chain a(0, "hello");
  costs_.row_ms = 1000;
  draft({&a});
  int tried = 0;
  const auto ticks = [&](int count) {
    tried = 0;
    for (int i = 0; i < count; ++i) {
      a.tokens.push_back('x');
      draft({&a});
      tried += a.draft.empty() ? 0 : 1;
    }
  };
  ticks(200);
  EXPECT_GE(tried, 2);
  EXPECT_LE(tried, 5) << "rarely";
  costs_.row_ms = 2;
  ticks(10);
  EXPECT_GE(tried, 9) << "one may go by in catching up";
}

TEST_F(ModelDrafterTest, SequencesThatShareACallDraftWhereOneAloneWouldNot) {
  make({.cells = 800, .decode_cost = std::chrono::milliseconds(60)});
  Chain a(0, "hello");
  Chain b(1, "there");
  Chain c(2, "how");
  Chain d(3, "are");
  draft({&a, &b, &c, &d});
  draft({&a, &b, &c, &d});
  EXPECT_FALSE(a.draft.empty()) << "15 ms each";
  draft({&a});
  EXPECT_THAT(a.draft, IsEmpty());
}

TEST_F(ModelDrafterTest, AWrongDraftModelIsLeftAloneAndTriedAgainLater) {
  make({.cells = 400, .decode_cost = std::chrono::milliseconds(10)});
  Chain a(0, "hello");
  int tried = 0;
  const auto ticks = [&](int count) {
    tried = 0;
    for (int i = 0; i < count; ++i) {
      draft({&a});
      if (a.draft.empty()) continue;
      ++tried;
      a.control.observe(static_cast<std::int32_t>(a.draft.size()), 0);
    }
  };
  ticks(20);
  EXPECT_LT(tried, 12);
  ticks(100);
  EXPECT_LE(tried, 3);
  ticks(2000);
  EXPECT_GE(tried, 1);
  EXPECT_LE(tried, 60);
}

TEST_F(ModelDrafterTest, AChainBeyondItsContextGetsNoGuess) {
  make({.cells = 40, .sequences = 4});
  Chain a(0, "0123456789");
  draft({&a});
  EXPECT_LE(a.draft.size(), 1u) << "one more needs no cell";
  a.tokens.push_back('x');
  draft({&a});
  EXPECT_THAT(a.draft, IsEmpty());
}

TEST_F(ModelDrafterTest, InAUnifiedContextOthersMakeRoom) {
  make({.cells = 40, .sequences = 4, .unified = true});
  Chain a(0, "0123456789abcde");
  Chain b(1, "edcba9876543210");
  Chain c(2, "hello");
  draft({&a});
  draft({&b});
  draft({&c});
  draft({&a});
  EXPECT_EQ(a.draft, expected(a, a.draft.size()));
  EXPECT_FALSE(a.draft.empty());
}

TEST_F(ModelDrafterTest, IsTurnedOffWhereTheContextFailsOrCannotForget) {
  make({.cells = 400});
  Chain a(0, "hello");
  context_->fault = [](std::span<const llm::BatchRow>) { return FakeFault::decode_error; };
  draft({&a});
  EXPECT_TRUE(drafter_->is_off());
  EXPECT_THAT(a.draft, IsEmpty());

  make({.cells = 400, .can_truncate = false});
  draft({&a});
  EXPECT_FALSE(drafter_->is_off());
  a.tokens.push_back('x');
  draft({&a});
  EXPECT_TRUE(drafter_->is_off());
  EXPECT_THAT(a.draft, IsEmpty());
}

TEST_F(ModelDrafterTest, WhereLittleRoomIsLeftThereAreFewGuesses) {
  make({.cells = 400});
  Chain a(0, "hello");
  Chain b(1, "there");
  draft({&a, &b}, 3);
  EXPECT_EQ(a.draft.size(), 2u);
  EXPECT_EQ(b.draft.size(), 1u);
}

// A vocabulary with one different token.
class OtherVocab final : public llm::Vocab {
 public:
  explicit OtherVocab(std::int32_t size) : size_(size) {}
  [[nodiscard]] std::int32_t size() const override { return size_; }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view text, bool parse_special) const override {
    return plain_.tokenize(text, parse_special);
  }
  [[nodiscard]] std::string_view piece(Token token) const override { return token == 'q' ? "Q" : plain_.piece(token); }
  [[nodiscard]] std::span<const llm::OrderedPiece> ordered_pieces() const override { return plain_.ordered_pieces(); }
  [[nodiscard]] bool is_end_of_generation(Token token) const override { return plain_.is_end_of_generation(token); }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return plain_.end_of_generation(); }
  [[nodiscard]] std::optional<Token> bos() const override { return plain_.bos(); }
  [[nodiscard]] bool adds_space_prefix() const override { return false; }

 private:
  FakeVocab plain_;
  std::int32_t size_;
};

TEST(CheckSameVocabulary, SaysWhatDiffers) {
  const FakeVocab vocab;
  EXPECT_TRUE(check_same_vocabulary(vocab, FakeVocab()));
  const auto smaller = check_same_vocabulary(vocab, OtherVocab(200));
  ASSERT_FALSE(smaller);
  EXPECT_THAT(smaller.error().message, HasSubstr("has 200 tokens, the model's 260"));
  const auto other = check_same_vocabulary(vocab, OtherVocab(260));
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("token 113 is \"q\" for the model and \"Q\""));
}

}  // namespace
}  // namespace uma::engine
