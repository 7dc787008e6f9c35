// Draft tokens, from the text itself and from a draft model: they change the number of calls, but not the text.
#include <chrono>
#include <cmath>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

// A lane with a draft model.
class SpeculationTest : public LaneTest {
 protected:
  void draft_with(FakeOptions options) {
    options.clock = &clock_;
    lane_->draft_with(std::make_unique<ModelDrafter>(std::make_unique<FakeContext>(options), model_->vocab(), clock_));
  }
};

// Options for a lane whose draft tokens are right except every `wrong_every`-th of each draft (0: all are right).
LaneOptions drafting(const FakeOptions& options, std::int32_t wrong_every) {
  LaneOptions made;
  made.test_drafter = [options, wrong_every](std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft) {
    draft = fake_continuation(options, std::vector<Token>(chain.begin(), chain.end()), count);
    for (std::size_t i = 0; wrong_every > 0 && i < draft.size(); ++i) {
      if ((i + 1) % static_cast<std::size_t>(wrong_every) == 0) draft[i] ^= 1;
    }
  };
  return made;
}

// Three streams of a split context are computed as four, because that is faster, and nothing of the fourth row is left.
TEST_F(SpeculationTest, ARowInAnEmptySlotMakesACallFaster) {
  LaneOptions options;
  options.warms_up = true;
  options.speculates = false;
  make({.cells = 800, .sequences = 8, .uneven_cost = std::chrono::milliseconds(1)}, std::move(options));
  run();
  std::map<std::size_t, int> calls_by_rows;
  context_->fault = [&](std::span<const llm::BatchRow> rows) {
    ++calls_by_rows[rows.size()];
    return FakeFault::none;
  };
  for (std::uint64_t id = 1; id <= 3; ++id) post(job(id, "stream " + std::to_string(id), 20));
  run();
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(sinks_[id]->tokens, expected("stream " + std::to_string(id), 20));
  EXPECT_GE(calls_by_rows[4], 18);
  EXPECT_EQ(calls_by_rows[3], 0);
  for (std::int32_t slot = 3; slot < 8; ++slot) EXPECT_EQ(context_->sequence_length(slot), 0);
}

TEST_F(SpeculationTest, PaddingInAnIdleSlotLeavesItsTokens) {
  LaneOptions options;
  options.warms_up = true;
  options.speculates = false;
  make({.cells = 1600, .sequences = 8, .uneven_cost = std::chrono::milliseconds(1)}, std::move(options));
  run();
  for (std::uint64_t id = 2; id <= 4; ++id) post(job(id, "stream " + std::to_string(id), 40));
  post(of_session("s", job(1, "an idle conversation", 4)));
  while (!results_.contains(1)) step();
  const std::vector<Token> chain = chain_after(1);
  const std::int32_t length = context_->sequence_length(3);
  EXPECT_GT(length, 20);
  int padded = 0;
  context_->fault = [&](std::span<const llm::BatchRow> rows) {
    padded += rows.size() == 4 && rows.back().sequence == 3 && rows.back().position == length ? 1 : 0;
    return FakeFault::none;
  };
  run();
  EXPECT_GT(padded, 20);
  EXPECT_EQ(context_->sequence_length(3), length);
  for (std::uint64_t id = 2; id <= 4; ++id) EXPECT_EQ(sinks_[id]->tokens, expected("stream " + std::to_string(id), 40));
  context_->fault = nullptr;
  post(next_turn(5, chain, 4));
  run();
  EXPECT_EQ(results_.at(5).generated, fake_continuation(options_, chain, 4));
  EXPECT_GT(eos(5).usage.reused_tokens, 20);
}

TEST_F(SpeculationTest, ARowInAnEmptySlotIsGoneAfterAFailedCall) {
  LaneOptions options;
  options.warms_up = true;
  make({.cells = 800, .sequences = 8, .uneven_cost = std::chrono::milliseconds(1)}, std::move(options));
  run();
  int calls = 0;
  context_->fault = [&](std::span<const llm::BatchRow> rows) {
    if (rows.size() != 4) return FakeFault::none;
    ++calls;
    return calls == 3 ? FakeFault::decode_error : calls == 6 ? FakeFault::interrupted_half : FakeFault::none;
  };
  for (std::uint64_t id = 1; id <= 3; ++id) post(job(id, "stream " + std::to_string(id), 20));
  run();
  EXPECT_GE(calls, 6);
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(sinks_[id]->tokens, expected("stream " + std::to_string(id), 20));
  for (std::int32_t slot = 3; slot < 8; ++slot) EXPECT_EQ(context_->sequence_length(slot), 0);
}

TEST_F(SpeculationTest, GuessesDoNotChangeWhatIsSaid) {
  const FakeOptions options{.cells = 400, .sequences = 2, .end_every = 60};
  const auto said = [&](LaneOptions lane_options) {
    make(options, std::move(lane_options));
    GenerationJob drawn = job(2, "drawn", 40);
    drawn.sampling.temperature = 1;
    drawn.seed = 5;
    post(job(1, "greedy", 40));
    post(std::move(drawn));
    run();
    return std::pair(sinks_[1]->tokens, sinks_[2]->tokens);
  };
  LaneOptions plain;
  plain.speculates = false;
  const auto without = said(plain);
  EXPECT_EQ(without.first, expected("greedy", 40));
  EXPECT_EQ(lane_->stats().drafted_tokens_total.value(), 0u);
  for (const std::int32_t wrong_every : {0, 1, 2, 3}) {
    EXPECT_EQ(said(drafting(options, wrong_every)), without) << "the same random numbers for the same tokens";
    EXPECT_GT(lane_->stats().drafted_tokens_total.value(), 0u);
  }
}

TEST_F(SpeculationTest, RightGuessesSaveCalls) {
  const FakeOptions options{.cells = 400};
  make(options, drafting(options, 0));
  post(job(1, "hello", 60));
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("hello", 60));
  EXPECT_LT(lane_->stats().batch_calls_total.value(), 30u) << "a prompt, and 59 tokens a few at a time";
  EXPECT_GT(lane_->stats().drafted_accepted_total.value(), 30u);
}

TEST_F(SpeculationTest, ASessionWhoseGuessesWereWrongGoesOnFromWhatWasSaid) {
  const FakeOptions options{.cells = 400};
  make(options, drafting(options, 2));
  post(of_session("s", job(1, "hello", 21)));
  run();
  std::vector<Token> chain = chain_after(1);
  const std::size_t said = chain.size();
  chain.push_back('!');
  post(next_turn(2, chain));
  run();
  EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options, chain, 8));
  EXPECT_GE(eos(2).usage.reused_tokens, static_cast<std::int32_t>(said) - 1) << "nothing right was dropped with the wrong";
}

// Options for a draft model that costs a tenth of the model and differs from it at one in `differs_every` places.
FakeOptions draft_options(FakeOptions options, std::uint32_t differs_every) {
  options.differs_every = differs_every;
  options.decode_cost = std::chrono::microseconds(100);
  options.row_cost = std::chrono::microseconds(10);
  return options;
}

TEST_F(SpeculationTest, ADraftModelDoesNotChangeGreedyText) {
  const FakeOptions options{.cells = 800, .sequences = 4, .end_every = 60};
  for (const std::uint32_t differs_every : {0u, 2u, 1u}) {
    make(options);
    draft_with(draft_options(options, differs_every));
    const std::vector<std::string> prompts{"one", "another", "a third which is somewhat longer than they are"};
    for (std::size_t i = 0; i < prompts.size(); ++i) post(job(i + 1, prompts[i], 60));
    run();
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(sinks_[i + 1]->tokens, expected(prompts[i], 60));
    EXPECT_GT(lane_->stats().drafted_tokens_total.value(), 0u);
  }
}

TEST_F(SpeculationTest, ARightDraftModelSavesCallsAndAWrongOneIsSwitchedOff) {
  const FakeOptions options{.cells = 2000};
  const auto drafted = [&](std::uint32_t differs_every) {
    make(options);
    draft_with(draft_options(options, differs_every));
    post(job(1, "hello", 300));
    run();
    EXPECT_EQ(sinks_[1]->tokens, expected("hello", 300));
    const LaneStats& stats = lane_->stats();
    return std::tuple(stats.drafted_tokens_total.value(), stats.drafted_accepted_total.value(),
                      stats.batch_calls_total.value());
  };
  const auto [right_drafted, right_accepted, right_calls] = drafted(0);
  EXPECT_GT(right_accepted, right_drafted * 95 / 100)
      << "the text itself, by which other draft tokens come, is not always right";
  EXPECT_LT(right_calls, 100u);
  const auto [wrong_drafted, wrong_accepted, wrong_calls] = drafted(1);
  EXPECT_LT(wrong_accepted, wrong_drafted / 4);
  EXPECT_LT(wrong_drafted, 100u) << "of 300 tokens";
  const auto [half_drafted, half_accepted, half_calls] = drafted(3);
  EXPECT_GT(half_accepted, 30u);
  EXPECT_LT(half_accepted, half_drafted);
  EXPECT_LT(half_calls, wrong_calls);
}

TEST_F(SpeculationTest, ASessionGoesOnAfterADraftModelsWrongGuesses) {
  const FakeOptions options{.cells = 800};
  make(options);
  draft_with(draft_options(options, 3));
  std::vector<Token> chain = fake_tokens("hello");
  for (std::uint64_t turn = 1; turn <= 4; ++turn) {
    post(next_turn(turn, chain, 20));
    run();
    EXPECT_EQ(sinks_[turn]->tokens, fake_continuation(options, chain, 20));
    chain.insert(chain.end(), results_.at(turn).generated.begin(), results_.at(turn).generated.end());
    chain.push_back('!');
  }
}

// Adds the probability of every text of `length` tokens by the model itself to `chances`.
void add_texts(const FakeOptions& options, const SamplingParams& params, const std::vector<Token>& chain,
               std::vector<Token> text, std::size_t length, double chance, std::map<std::vector<Token>, double>& chances) {
  if (text.size() == length) {
    chances[text] = chance;
    return;
  }
  FakeOptions plain = options;
  plain.clock = nullptr;
  FakeContext context(plain);
  std::vector<llm::BatchRow> rows;
  llm::Sampler sampler(params, 0, {});
  for (std::size_t i = 0; i < chain.size(); ++i) {
    rows.push_back({chain[i], static_cast<std::int32_t>(i), 0, i + 1 == chain.size()});
    sampler.accept(chain[i]);
  }
  ASSERT_TRUE(context.decode(rows, nullptr));
  llm::Distribution next;
  sampler.distribution(context.logits(static_cast<std::int32_t>(rows.size()) - 1), next);
  for (const llm::TokenChance& entry : next) {
    std::vector<Token> longer = chain;
    longer.push_back(entry.token);
    text.push_back(entry.token);
    add_texts(options, params, longer, text, length, chance * entry.chance, chances);
    text.pop_back();
  }
}

TEST_F(SpeculationTest, WithADraftModelEveryTextIsAsLikelyAsWithout) {
  const FakeOptions options{.cells = 400, .batch_rows_max = 128};
  SamplingParams params;
  params.temperature = 3;
  params.top_k = 3;
  params.repeat_penalty = 1.2;
  constexpr std::size_t kLength = 4;
  std::map<std::vector<Token>, double> chances;
  add_texts(options, params, fake_tokens("tell"), {}, kLength, 1, chances);
  make(options);
  draft_with(draft_options(options, 2));
  std::map<std::vector<Token>, int> counts;
  constexpr std::uint64_t kTexts = 20'000;
  for (std::uint64_t id = 1; id <= kTexts; ++id) {
    GenerationJob next = job(id, "tell", kLength);
    next.sampling = params;
    next.seed = id;
    post(std::move(next));
    run();
    ++counts[sinks_[id]->tokens];
    sinks_.erase(id);
    results_.erase(id);
  }
  double chi_square = 0;
  for (const auto& [text, chance] : chances) {
    chi_square += std::pow(counts[text] - chance * kTexts, 2) / (chance * kTexts);
  }
  EXPECT_EQ(counts.size(), chances.size()) << "no text that cannot come";
  EXPECT_EQ(chances.size(), 81u);
  EXPECT_LT(chi_square, 140) << "80 degrees of freedom: a right rule exceeds it once in 25,000";
  const LaneStats& stats = lane_->stats();
  EXPECT_GT(stats.drafted_accepted_total.value(), kTexts / 4) << "much was drafted and accepted,";
  EXPECT_GT(stats.drafted_tokens_total.value() - stats.drafted_accepted_total.value(), kTexts / 4) << "and much refused";
}

}  // namespace
}  // namespace uma::engine
