// Copies of what several prompts begin with.
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"
#include "kv/shared/shared_prefix.h"

namespace uma::engine {
namespace {

class PrefixCopyTest : public StoreLaneTest, public ::testing::WithParamInterface<bool> {
 protected:
  static FakeOptions options(std::int32_t sequences = 4) {
    return {.cells = 1024, .sequences = sequences, .unified = GetParam()};
  }
  // Posts a copy of `head_`. `copies_` counts those that have ended.
  void copy(const std::string& tenant = "a", bool is_public = false) {
    const std::vector<Token> tokens = fake_tokens(head_);
    lane_->post(CopyPrefixCommand{
        .owner = kv::prefix_owner(TenantId{tenant}, is_public, tokens), .tokens = tokens, .adapters = {}, .then = [this] {
          ++copies_;
        }});
  }
  // The tokens of the stored state that a chain of the tenant finds, and their number; nullopt: none.
  std::optional<std::vector<Token>> found(const std::string& tenant = "a") {
    const auto match = store_.find({.family = lane_->family(), .tenant = TenantId{tenant}, .session = {}, .forked_from = {}},
                                   fake_tokens(head_ + "?"));
    return match ? std::optional(store_.hold(match->id)->tokens) : std::nullopt;
  }

  const std::string head_ = "a system prompt that all of them begin with";
  int copies_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Layouts, PrefixCopyTest, ::testing::Bool(),
                         [](const auto& layout) { return layout.param ? "Unified" : "Split"; });

TEST_P(PrefixCopyTest, HasTheSharedTokensAloneAndTheConversationStays) {
  make_with_store(options());
  ask(1, head_ + " and more", "s");
  copy();
  run();
  EXPECT_EQ(copies_, 1);
  EXPECT_EQ(found(), fake_tokens(head_));
  EXPECT_FALSE(found("b"));
  EXPECT_EQ(ask(2, head_ + " and more", "s").usage.tier, Tier::hot);
}

TEST_P(PrefixCopyTest, AConversationGoesOnFromItAsIfItHadComputedIt) {
  make_with_store(options());
  ask(1, head_ + " and more", "s");
  copy();
  run();
  make_with_store(options());  // A lane without slots.
  const EosEvent& eos = ask(2, head_ + "; something else", "");
  EXPECT_EQ(eos.usage.tier, Tier::warm);
  EXPECT_EQ(eos.usage.reuse_reason, "prefix");
  EXPECT_EQ(eos.usage.reused_tokens, static_cast<std::int32_t>(head_.size()));
}

TEST_P(PrefixCopyTest, AlsoOfAConversationInUse) {
  make_with_store(options());
  GenerationJob long_reply = of_session("s", job(1, head_ + " and more", 40));
  long_reply.flow.tenant = "a";
  post(std::move(long_reply));
  for (int i = 0; i < 100 && sinks_[1]->tokens.empty(); ++i) step();
  copy();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(copies_, 1);
  EXPECT_FALSE(sinks_[1]->terminal) << "it goes on";
  EXPECT_EQ(found(), fake_tokens(head_));
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected(head_ + " and more", 40));
}

TEST_P(PrefixCopyTest, OnlyOfWhatAllWhoFindItMayUse) {
  make_with_store(options());
  ask(1, head_ + " and more", "s", "b");
  ask(2, head_ + " secretly", "ephemeral", "a", true);
  copy("a");
  copy("b", true);
  run();
  EXPECT_EQ(copies_, 2);
  EXPECT_FALSE(found("a"));
  ask(3, head_ + " aloud", "public", "b", false, true);
  copy("b", true);
  run();
  EXPECT_EQ(found("a"), fake_tokens(head_)) << "it is public";
}

TEST_P(PrefixCopyTest, WithoutTheTokensOrMemoryItEndsAtOnce) {
  make_with_store(options());
  copy();
  run();
  EXPECT_EQ(copies_, 1);
  ask(1, head_ + " and more", "s");
  store_.limit_memory({.at_rest = 100, .in_all = 100});
  copy();
  run();
  EXPECT_EQ(copies_, 2);
  EXPECT_FALSE(found());
}

TEST_P(PrefixCopyTest, AFaultOfTheContextEndsIt) {
  make_with_store(options());
  ask(1, head_ + " and more", "s");
  context_->fail_state = true;
  copy();
  run();
  context_->fail_state = false;
  EXPECT_EQ(copies_, 1);
  EXPECT_FALSE(found());
  EXPECT_EQ(ask(2, head_ + " and more", "s").usage.tier, Tier::hot);
}

TEST_P(PrefixCopyTest, ALaneThatEndsAnswers) {
  make_with_store(options());
  ask(1, head_ + " and more", "s");
  copy();
  lane_->close();
  lane_->cancel_all();
  lane_.reset();
  EXPECT_EQ(copies_, 1);
}

TEST_F(StoreLaneTest, AContextThatCannotBeCutHasNoPrefixAlone) {
  make_with_store({.cells = 1024, .sequences = 4, .unified = true, .can_truncate = false});
  ask(1, kPrompt + " and more", "s", "a");
  int ended_count = 0;
  const std::vector<Token> tokens = fake_tokens(kPrompt);
  const kv::StateOwner owner = kv::prefix_owner(TenantId{"a"}, false, tokens);
  lane_->post(CopyPrefixCommand{.owner = owner, .tokens = tokens, .adapters = {}, .then = [&] { ++ended_count; }});
  run();
  EXPECT_EQ(ended_count, 1);
  EXPECT_EQ(store_.states_of(owner.session).tier, Tier::none);
}

TEST_P(PrefixCopyTest, AlsoWhenIdleConversationsHaveAllSlots) {
  make_with_store(options(2));
  ask(1, head_ + " and more", "s");
  ask(2, "another conversation, which is idle", "t");
  copy();
  run();
  EXPECT_EQ(copies_, 1);
  EXPECT_EQ(found(), fake_tokens(head_));
  EXPECT_EQ(ask(3, head_ + " and more", "s").usage.tier, Tier::hot);
  EXPECT_GT(ask(4, "another conversation, which is idle", "t").usage.reused_tokens, 30) << "from the context, or from memory";
}

TEST_P(PrefixCopyTest, BesideAStreamNoIdleConversationGivesItsSlotForIt) {
  make_with_store(options(3));
  ask(1, head_ + " and more", "s");
  ask(2, "another conversation, which is idle", "t");
  post(job(3, "a stream", 60));
  for (int i = 0; i < 100 && sinks_[3]->tokens.empty(); ++i) step();
  copy();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(copies_, 1);
  EXPECT_FALSE(sinks_[3]->terminal) << "it goes on";
  EXPECT_EQ(found().has_value(), GetParam()) << "a split context needs a slot for it";
  EXPECT_TRUE(lane_->holds(SessionId{"t"}));
  run();
}

TEST_F(StoreLaneTest, InASplitContextAPrefixNeedsAnotherSlotAndAShortConversation) {
  const std::vector<Token> tokens = fake_tokens(kPrompt);
  const kv::StateOwner owner = kv::prefix_owner(TenantId{"a"}, false, tokens);
  int ended_count = 0;
  const auto copy = [&] {
    lane_->post(CopyPrefixCommand{.owner = owner, .tokens = tokens, .adapters = {}, .then = [&] { ++ended_count; }});
    run();
  };
  make_with_store({.cells = 1024, .sequences = 1});
  ask(1, kPrompt + " and more", "s");
  copy();
  EXPECT_EQ(store_.states_of(owner.session).tier, Tier::none);
  make_with_store({.cells = 1024, .sequences = 2});
  ask(2, kPrompt + std::string(kPrompt.size(), 'x'), "s");
  copy();
  EXPECT_EQ(store_.states_of(owner.session).tier, Tier::none);
  EXPECT_EQ(ended_count, 2);
}

}  // namespace
}  // namespace uma::engine
