// The cached prefixes that requests reuse.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"
#include "llm/media/image_tokens.h"

namespace uma::engine {
namespace {

using PrefixFinderTest = StoreLaneTest;

TEST_F(PrefixFinderTest, ASessionComputesOnlyWhatIsNew) {
  make({});
  post(of_session("s", job(1, "hello")));
  run();
  std::vector<Token> chain = chain_after(1);
  chain.push_back('!');
  post(next_turn(2, chain));
  run();
  EXPECT_EQ(results_.at(2).generated, fake_continuation(options_, chain, 8)) << "equal to one pass over the chain";
  EXPECT_EQ(eos(2).usage.tier, Tier::hot);
  EXPECT_EQ(eos(2).usage.reused_tokens, 12) << "all but the last token of the reply, which was never computed";
  EXPECT_EQ(eos(2).usage.recomputed_tokens, 2);
}

TEST_F(PrefixFinderTest, ARewrittenChainReusesOnlyTheCommonBeginning) {
  make({});
  post(of_session("s", job(1, "abcdef")));
  run();
  post(of_session("s", job(2, "abcxyz")));
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected("abcxyz"));
  EXPECT_EQ(eos(2).usage.reused_tokens, 3);
}

TEST_F(PrefixFinderTest, AModelThatCannotBeCutGoesOnHotAndComputesARewrittenChainAgain) {
  for (const bool unified : {false, true}) {
    make({.unified = unified, .can_truncate = false});
    post(of_session("s", job(1, "abcdef")));
    run();
    std::vector<Token> chain = chain_after(1);
    chain.push_back('!');
    post(next_turn(2, chain));
    run();
    EXPECT_EQ(results_.at(2).generated, fake_continuation(options_, chain, 8));
    EXPECT_EQ(eos(2).usage.tier, Tier::hot);
    post(of_session("s", job(3, "abcxyz")));
    run();
    EXPECT_EQ(sinks_[3]->tokens, expected("abcxyz"));
    EXPECT_EQ(eos(3).usage.reused_tokens, 0);
  }
}

// Chains with the rows of two images behind 20 tokens of text, which differ in the last row.
TEST_F(PrefixFinderTest, APrefixThatEndsWithinAnImageWithAGridIsReusedUpToTheImage) {
  constexpr Token kRows = llm::kImageTokensBegin;
  const auto with_image = [&](std::uint64_t id, const std::vector<Token>& rows) {
    GenerationJob made = job(id, "a text of 20 letters");
    auto encoded = std::make_shared<image::EncodedImage>();
    encoded->row_width = 1;
    encoded->pieces_end = {static_cast<std::int32_t>(rows.size())};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      encoded->rows.push_back(testing::fake_row_value(rows[i]));
      encoded->grid.places.push_back({0, 0, static_cast<std::int32_t>(i), 0});
    }
    encoded->grid.advance = {1};
    made.images = {{.image = "i",
                    .begin = 20,
                    .count = static_cast<std::int32_t>(rows.size()),
                    .first_row = 0,
                    .encoded = std::move(encoded)}};
    made.tokens.insert(made.tokens.end(), rows.begin(), rows.end());
    made.tokens.push_back('?');
    return made;
  };
  const std::vector<Token> first{kRows, kRows + 1, kRows + 2};
  const std::vector<Token> second{kRows, kRows + 1, kRows + 7};
  for (const bool unified : {false, true}) {
    for (const bool is_stored : {false, true}) {
      const FakeOptions options{.unified = unified, .has_grids = true};
      is_stored ? make_with_store(options) : make(options);
      post(of_session("s", with_image(1, first)));
      run();
      if (is_stored) {
        lane_->cancel_all();  // Stores the session's tokens.
        make_with_store(options);
      }
      post(of_session("s", with_image(2, second)));
      run();
      const std::vector<Token> chain = chain_after(2);
      EXPECT_EQ(eos(2).usage.reused_tokens, 20);
      EXPECT_EQ(results_.at(2).generated,
                fake_continuation(options_, {chain.begin(), chain.begin() + 24}, static_cast<std::int32_t>(chain.size()) - 24));
      // The whole image is reused.
      post(of_session("s", with_image(3, second)));
      run();
      EXPECT_EQ(eos(3).usage.reused_tokens, 23);
    }
  }
}

TEST_F(PrefixFinderTest, AForkedSessionStartsFromItsParentsCells) {
  make({});
  post(of_session("p", job(1, "parent")));
  run();
  GenerationJob child = job(2, "parent");
  child.session = {"c"};
  child.forked_from = {"p"};
  post(std::move(child));
  run();
  EXPECT_EQ(eos(2).usage.tier, Tier::hot);
  EXPECT_EQ(eos(2).usage.reused_tokens, 5);
  EXPECT_EQ(sinks_[2]->tokens, expected("parent"));
}

TEST_F(PrefixFinderTest, AHistoryThatIsSentWholeGoesOnWhereItsBeginningIs) {
  make_with_store({});
  ask(1, kPrompt, "");
  const EosEvent& longer = ask(2, kPrompt + " that goes on", "");
  EXPECT_EQ(longer.usage.tier, Tier::hot);
  EXPECT_EQ(longer.usage.reuse_reason, "prefix");
  EXPECT_EQ(longer.usage.reused_tokens, static_cast<std::int32_t>(kPrompt.size()));
}

// No conversation loses its own part to another with the same long beginning; a new reply takes the old one's place.
TEST_F(PrefixFinderTest, WhatWasSentStaysAndWhatWasGeneratedGoes) {
  const std::string head(400, 'h');
  const std::vector<std::string> prompts{head + " the first one says hello", head + " and the second one has a question",
                                         head + " and the second one's sister has one, too"};
  for (const bool is_unified : {true, false}) {
    make_with_store({.cells = 4096, .sequences = 3, .unified = is_unified});
    store_.limit_memory({.at_rest = 0, .in_all = 1 << 20});  // Copies have memory; what leaves its slot has none.
    std::uint64_t id = 0;
    for (const std::string& prompt : prompts) ask(++id, prompt, "");
    for (int round = 0; round < 2; ++round) {
      for (const std::string& prompt : prompts) {
        EXPECT_EQ(ask(++id, prompt, "").usage.reused_tokens, static_cast<std::int32_t>(prompt.size()) - 1) << is_unified << id;
      }
    }
  }
}

TEST_F(PrefixFinderTest, WithoutMemoryForACopyTheSlotIsTaken) {
  make_with_store({.cells = 1024, .sequences = 2});
  store_.limit_memory({.at_rest = 0, .in_all = 0});
  const std::string most(200, 'm');
  ask(1, most + " and what the first one says", "");
  EXPECT_EQ(ask(2, most + " but the second one asks", "").usage.reused_tokens, 201);
}

TEST_F(PrefixFinderTest, TenantsShareOnlyWhatIsPublic) {
  make_with_store({.sequences = 2});
  ask(1, kPrompt, "s", "a");
  EXPECT_EQ(ask(2, kPrompt, "", "b").usage.reused_tokens, 0);
  ask(3, "another", "t", "b");  // Takes s's slot, whose state goes to memory.
  EXPECT_EQ(ask(4, kPrompt + "?", "", "c").usage.reused_tokens, 0);
  ask(5, "said to everybody, by a", "p", "a", false, true);
  EXPECT_GT(ask(6, "said to everybody, by a and b", "", "b").usage.reused_tokens, 16);
}

// Requests with a common prefix that arrive together.
class AlikeLaneTest : public LaneTest {
 protected:
  void SetUp() override { make({.cells = 4096}); }

  GenerationJob begins_alike(std::uint64_t id, const std::string& tenant = "a") {
    GenerationJob made = job(id, prompt(id));
    made.flow.tenant = tenant;
    return made;
  }
  [[nodiscard]] std::string prompt(std::uint64_t id) const { return kShared + std::to_string(id); }
  std::int32_t reused(std::uint64_t id) {
    EXPECT_EQ(sinks_[id]->tokens, expected(prompt(id)));
    return eos(id).usage.reused_tokens;
  }

  const std::string kShared = std::string(200, 'x');
};

TEST_F(AlikeLaneTest, OneComputesTheBeginningForAll) {
  for (const std::uint64_t id : {1, 2, 3, 4}) post(begins_alike(id));
  run();
  EXPECT_EQ(reused(1), 0);
  for (const std::uint64_t id : {2, 3, 4}) EXPECT_EQ(reused(id), 200) << id;
}

TEST_F(AlikeLaneTest, TenantsDoNotWaitForEachOther) {
  post(begins_alike(1, "a"));
  post(begins_alike(2, "b"));
  run();
  EXPECT_EQ(reused(2), 0);
}

TEST_F(AlikeLaneTest, WhatIsUrgentDoesNotWaitForTheBackground) {
  GenerationJob slow = begins_alike(1);
  slow.is_background = true;
  post(std::move(slow));
  step();
  post(begins_alike(2));
  run();
  EXPECT_LT(reused(2), 200) << "only what was there when it came";
}

TEST_F(AlikeLaneTest, WhoeverWaitedForOneThatLeftComputes) {
  for (const std::uint64_t id : {1, 2, 3}) post(begins_alike(id));
  step();
  lane_->post(CancelCommand{RequestId{1}});
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::cancelled);
  EXPECT_LT(reused(2), 200);
  EXPECT_EQ(reused(3), 200);
}

TEST_F(AlikeLaneTest, NobodyWaitsForAShortPartOfALongPrompt) {
  post(job(1, kShared + std::string(300, 'y')));
  post(begins_alike(2));
  step();
  step();
  EXPECT_GT(lane_->stats().sequences_active.value(), 1);
  run();
  EXPECT_EQ(reused(2), 0);
}

}  // namespace
}  // namespace uma::engine
