// Requests with different LoRA adapters in one lane: the text of each is that of its own adapters, whatever runs beside it and
// whatever is cached.
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

constexpr std::string_view kLong = "a long beginning that several requests have in common, with its end: ";

class Adapters : public StoreLaneTest {
 protected:
  static FakeOptions with_adapters(FakeOptions options) {
    options.adapters = 2;
    return options;
  }
  [[nodiscard]] llm::AdapterSet set(std::vector<llm::AdapterUse> uses) const {
    return llm::make_adapter_set(model_->facts().adapters, std::move(uses));
  }
  GenerationJob with(llm::AdapterSet adapters, GenerationJob made) {
    made.adapters = std::move(adapters);
    return made;
  }
  [[nodiscard]] std::vector<Token> text_with(const llm::AdapterSet& adapters, std::string_view prompt,
                                             std::int32_t tokens_max = 8) {
    return fake_continuation(options_, fake_tokens(prompt), tokens_max, nullptr, adapters);
  }
};

TEST_F(Adapters, EveryRequestGetsTheTextOfItsOwnSet) {
  for (const bool unified : {false, true}) {
    make(with_adapters({.cells = 800, .sequences = 5, .unified = unified}));
    const std::vector<llm::AdapterSet> sets{{}, set({{0, 1}}), set({{1, 1}}), set({{0, 1}, {1, 1}}), set({{0, 0.5F}})};
    for (std::size_t i = 0; i < sets.size(); ++i) post(with(sets[i], job(i, kLong, 20)));
    run();
    std::set<std::vector<Token>> texts;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      EXPECT_EQ(sinks_[i]->tokens, text_with(sets[i], kLong, 20)) << unified << i;
      texts.insert(sinks_[i]->tokens);
    }
    EXPECT_EQ(texts.size(), sets.size());
  }
}

TEST_F(Adapters, AScaleOfZeroIsTheModelItself) {
  make(with_adapters({}));
  EXPECT_EQ(set({{0, 0}, {1, 0}}), llm::AdapterSet());
}

TEST_F(Adapters, EveryStreamGetsATokenInEveryTick) {
  make(with_adapters({.cells = 400, .sequences = 3}));
  post(job(0, "one", 40));
  post(with(set({{0, 1}}), job(1, "two", 40)));
  post(with(set({{1, 1}}), job(2, "three", 40)));
  while (sinks_[0]->tokens.empty() || sinks_[1]->tokens.empty() || sinks_[2]->tokens.empty()) step();
  const auto count = [&](std::uint64_t id) { return sinks_[id]->tokens.size(); };
  const std::vector<std::size_t> before{count(0), count(1), count(2)};
  for (int tick = 0; tick < 10; ++tick) step();
  for (std::uint64_t id = 0; id < 3; ++id) EXPECT_EQ(count(id), before[id] + 10) << id;
  run();
}

TEST_F(Adapters, ASlotIsReusedOnlyWithItsOwnSet) {
  for (const bool unified : {false, true}) {
    make_with_store(with_adapters({.cells = 800, .sequences = 4, .unified = unified}));
    const llm::AdapterSet first = set({{0, 1}});
    post(with(first, job(1, kLong)));
    run();
    post(with(set({{1, 1}}), job(2, kLong)));
    run();
    post(job(3, kLong));
    run();
    EXPECT_EQ(eos(2).usage.reused_tokens, 0);
    EXPECT_EQ(eos(3).usage.reused_tokens, 0);
    EXPECT_EQ(sinks_[3]->tokens, text_with({}, kLong));
    post(with(first, job(4, kLong)));
    run();
    EXPECT_GT(eos(4).usage.reused_tokens, 0);
    EXPECT_EQ(sinks_[4]->tokens, text_with(first, kLong));
  }
}

TEST_F(Adapters, ASessionThatChangesItsAdapterIsComputedAgain) {
  make_with_store(with_adapters({.cells = 800, .sequences = 4}));
  std::vector<Token> chain = run_turn(kLong);
  chain.push_back('.');
  post(with(set({{0, 1}}), next_turn(2, chain)));
  run();
  EXPECT_EQ(eos(2).usage.reused_tokens, 0);
  EXPECT_EQ(eos(2).usage.reuse_reason, "diverged");
  EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 8, nullptr, set({{0, 1}})));
  chain = chain_after(2);
  chain.push_back('.');
  post(with(set({{0, 1}}), next_turn(3, chain)));
  run();
  EXPECT_GT(eos(3).usage.reused_tokens, 0);
  EXPECT_EQ(sinks_[3]->tokens, fake_continuation(options_, chain, 8, nullptr, set({{0, 1}})));
}

TEST_F(Adapters, AStoredStateIsReusedOnlyWithItsOwnSet) {
  make_with_store(with_adapters({.cells = 400, .sequences = 1}));
  const llm::AdapterSet first = set({{0, 1}});
  post(with(first, of_session("s", job(1, kLong))));
  run();
  post(of_session("other", job(2, "Something else that takes the only slot of the lane")));
  run();
  std::vector<Token> chain = chain_after(1);
  chain.push_back('.');
  GenerationJob again = next_turn(3, chain);
  again.adapters = first;
  post(std::move(again));
  run();
  EXPECT_GT(eos(3).usage.reused_tokens, 0);
  EXPECT_EQ(sinks_[3]->tokens, fake_continuation(options_, chain, 8, nullptr, first));
  post(of_session("other", job(4, "Something else that takes the only slot of the lane")));
  run();
  post(next_turn(5, chain_after(3)));
  run();
  EXPECT_EQ(eos(5).usage.reused_tokens, 0) << "without the adapter";
}

TEST_F(Adapters, TheFamiliesOfSetsAreLimited) {
  make_with_store(with_adapters({}));
  StateMemory states(&store_, "model|settings", true);
  EXPECT_NE(states.family_of({}), 0U);
  for (std::size_t i = 0; i < StateMemory::kSetsMax; ++i)
    EXPECT_NE(states.family_of(set({{0, 1 + static_cast<float>(i)}})), 0U);
  EXPECT_EQ(states.family_of(set({{1, 1}})), 0U);
  EXPECT_EQ(states.family_of(set({{0, 1}})), states.family_of(set({{0, 1}})));
  EXPECT_NE(states.family_of(set({{0, 1}})), states.base_family());
}

}  // namespace
}  // namespace uma::engine
