// States that are written to disk while they stay in the context (StoreOptions::write_within), and what is left of them after a
// crash.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

class EarlyWriteTest : public LaneTest, public ::testing::WithParamInterface<bool> {
 protected:
  EarlyWriteTest() { start(); }

  // The daemon with the disk of the one before it, which was killed.
  void start() {
    auto disk = std::make_unique<FakeColdStore>();
    if (disk_ != nullptr) {
      disk->files = std::move(disk_->files);
      disk->pieces = std::move(disk_->pieces);
    }
    disk_ = disk.get();
    lane_.reset();
    store_ = std::make_unique<kv::StateStore>(
        kv::StoreOptions{.warm_bytes_max = 1 << 20, .cold_bytes_max = 1 << 20, .write_within = std::chrono::seconds(5)},
        std::move(disk), clock_);
    store_->open({SessionId{"s"}});
    LaneOptions options;
    options.store = store_.get();
    options.stored_tokens_min = 4;
    make({.cells = GetParam() ? 1024 : 4096, .sequences = 4, .unified = GetParam(), .adapters = 2}, std::move(options));
  }
  // Runs the lane and the disk for a time.
  void pass(Duration time) {
    const TimePoint end = clock_.now() + time;
    while (clock_.now() < end) {
      const StepOutcome outcome = lane_->step();
      lane_->check_invariants();
      const bool has_written = store_->step();
      store_->check_invariants();
      if (outcome.did_work || has_written) continue;
      clock_.advance(std::min(outcome.wake, end) - clock_.now());
    }
  }
  void ask(std::uint64_t id, const std::string& session, const std::vector<Token>& chain, std::int32_t tokens_max = 8,
           llm::AdapterSet adapters = {}) {
    GenerationJob asked = of_session(session, job(id, "", tokens_max));
    asked.tokens = chain;
    asked.adapters = std::move(adapters);
    post(std::move(asked));
  }
  // Runs the lane alone until the store has something to write: steps, and time between them.
  void step_lane(int steps, Duration pause = {}) {
    for (int i = 0; i < steps; ++i) {
      step();
      clock_.advance(pause);
    }
  }
  void work_on_disk() {
    while (store_->step()) store_->check_invariants();
  }
  // Less memory, so that a state is written in several parts.
  void limit_memory(std::uint64_t bytes) { store_->limit_memory({.at_rest = bytes, .in_all = bytes}); }
  // The prompt's tokens, and so many of a conversation.
  static std::vector<Token> chain_of(std::size_t tokens) { return fake_tokens(std::string(tokens, 'x') + "?"); }

  FakeColdStore* disk_ = nullptr;  // The store's own.
  std::unique_ptr<kv::StateStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, EarlyWriteTest, ::testing::Bool(),
                         [](const auto& layout) { return layout.param ? "Unified" : "Split"; });

TEST_P(EarlyWriteTest, ATurnThatEndedFiveSecondsAgoIsReadAfterACrash) {
  for (const std::string session : {"s", ""}) {
    ask(1, session, chain_of(700));
    pass(std::chrono::seconds(5));
    const std::vector<Token> chain = chain_after(1);
    EXPECT_EQ(lane_->holds({"s"}), session == "s") << "it stays in the context";
    start();
    ask(2, session, chain);
    pass(std::chrono::seconds(1));
    EXPECT_EQ(eos(2).usage.reused_tokens, static_cast<std::int32_t>(chain.size()) - 1) << session;
    EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 8)) << session;
    start();
  }
}

TEST_P(EarlyWriteTest, TurnsThatFollowOneAnotherAreWrittenTogether) {
  ask(1, "s", chain_of(300));
  pass(std::chrono::seconds(1));
  ask(2, "s", chain_after(1));
  pass(std::chrono::milliseconds(1000));
  EXPECT_TRUE(disk_->files.empty());
  pass(std::chrono::seconds(2));
  EXPECT_EQ(disk_->files.size(), 1u);
  EXPECT_TRUE(
      store_->find({.family = lane_->family(), .tenant = {}, .session = SessionId{"s"}, .forked_from = {}}, chain_after(2)));
}

TEST_P(EarlyWriteTest, OfAConversationThatGrowsTheNewPartIsWritten) {
  ask(1, "s", chain_of(600));
  pass(std::chrono::seconds(5));
  const std::uint64_t first = store_->stats().written_bytes_total.value();
  ask(2, "s", chain_after(1));
  pass(std::chrono::seconds(5));
  const std::uint64_t second = store_->stats().written_bytes_total.value() - first;
  EXPECT_EQ(disk_->files.size(), 1u);
  if (GetParam()) {
    EXPECT_LT(second, first / 2) << "a last piece, what is new, and the tokens";
  }
}

TEST_P(EarlyWriteTest, ASequenceThatRunsLeavesWhatItsFormerTurnHad) {
  ask(1, "s", chain_of(300));
  pass(std::chrono::milliseconds(100));
  const std::vector<Token> chain = chain_after(1);
  ask(2, "s", chain, 600);
  for (int i = 0; i < 20; ++i) step();
  EXPECT_TRUE(results_.find(2) == results_.end());
  clock_.advance(std::chrono::seconds(3));
  for (int i = 0; i < 40; ++i) {
    step();
    while (store_->step()) {
    }
  }
  ASSERT_TRUE(results_.find(2) == results_.end());
  EXPECT_EQ(disk_->files.size(), GetParam() ? 1u : 0u) << "a split context saves whole sequences only";
  pass(std::chrono::seconds(30));
  EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 600));
  EXPECT_EQ(disk_->files.size(), 1u);
}

TEST_P(EarlyWriteTest, AnEphemeralConversationIsNotWritten) {
  GenerationJob asked = of_session("s", job(1, std::string(300, 'x')));
  asked.is_ephemeral = true;
  post(std::move(asked));
  pass(std::chrono::seconds(10));
  EXPECT_TRUE(disk_->files.empty());
}

TEST_P(EarlyWriteTest, AShortConversationIsComputedFasterThanRead) {
  ask(1, "s", fake_tokens("hi"), 2);
  pass(std::chrono::seconds(10));
  EXPECT_TRUE(disk_->files.empty());
  EXPECT_EQ(lane_->step().wake, kNever);
}

// The lane hears of the end of a session before the disk has written or after it, or not at all.
TEST_P(EarlyWriteTest, TheEndOfASessionDisturbsNoOther) {
  for (const int order : {0, 1, 2}) {
    start();
    disk_->files.clear();
    disk_->pieces.clear();
    ask(1, "s", chain_of(300));
    step_lane(100);
    clock_.advance(std::chrono::seconds(3));
    step_lane(4);
    ask(2, "other", fake_tokens("another conversation"), 100);
    if (order == 0) lane_->post(ForgetCommand{SessionId{"s"}});
    store_->forget(SessionId{"s"});
    if (order == 0) step_lane(1);
    work_on_disk();
    if (order == 1) lane_->post(ForgetCommand{SessionId{"s"}});
    step_lane(3, std::chrono::milliseconds(30));
    EXPECT_TRUE(results_.find(2) == results_.end()) << order;
    if (order == 2) {
      lane_->cancel_all();
    } else {
      pass(std::chrono::seconds(1));
      EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, fake_tokens("another conversation"), 100));
      lane_->post(ForgetCommand{SessionId{"other"}});
      store_->forget(SessionId{"other"});
      pass(std::chrono::seconds(1));
      EXPECT_TRUE(disk_->files.empty()) << order;
      EXPECT_TRUE(disk_->pieces.empty()) << order;
    }
    results_.clear();
  }
}

TEST_P(EarlyWriteTest, KvOfOtherAdaptersIsNotPutBehindIt) {
  if (!GetParam()) GTEST_SKIP() << "a split context saves whole sequences only";
  limit_memory(128 << 10);
  const llm::AdapterSet first = llm::make_adapter_set(model_->facts().adapters, {{0, 1}});
  const llm::AdapterSet second = llm::make_adapter_set(model_->facts().adapters, {{1, 1}});
  ask(1, "s", chain_of(700), 8, first);
  step_lane(200);
  clock_.advance(std::chrono::seconds(3));
  step_lane(8);  // A part of it is on its way to disk.
  ask(2, "s", chain_after(1), 8, second);
  step_lane(200);
  ASSERT_TRUE(results_.find(2) != results_.end());
  work_on_disk();
  pass(std::chrono::seconds(30));
  // Whatever is found for the first adapters is theirs.
  const std::vector<Token> chain = chain_after(1);
  start();
  ask(3, "t", chain, 8, first);
  pass(std::chrono::seconds(1));
  EXPECT_EQ(sinks_[3]->tokens, fake_continuation(options_, chain, 8, nullptr, first));
}

TEST_P(EarlyWriteTest, WhatIsWrittenStaysWhileMemoryIsMissing) {
  if (!GetParam()) GTEST_SKIP() << "a split context saves whole sequences only";
  limit_memory(128 << 10);
  ask(1, "s", chain_of(700));
  step_lane(200);
  clock_.advance(std::chrono::seconds(3));
  step_lane(8);
  work_on_disk();
  const std::size_t pieces = disk_->pieces.size();
  EXPECT_GT(pieces, 0u);
  {
    const auto all = store_->pool().reserve(store_->pool().bytes_max() - store_->pool().bytes_reserved());
    ASSERT_TRUE(all);
    pass(std::chrono::minutes(5));
    EXPECT_EQ(disk_->pieces.size(), pieces);
    EXPECT_TRUE(disk_->files.empty());
  }
  pass(std::chrono::seconds(5));
  EXPECT_EQ(disk_->files.size(), 1u);
  EXPECT_LT(store_->stats().written_bytes_total.value(), 2 * (700 + 10) * (8 + sizeof(Token))) << "nothing is written twice";
}

TEST_P(EarlyWriteTest, AStateWithoutPiecesWaitsForStreams) {
  ask(1, "s", chain_of(300));
  pass(std::chrono::milliseconds(100));
  ask(2, "other", chain_of(50), 600);
  const TimePoint due = clock_.now() + std::chrono::seconds(4);
  while (clock_.now() < due && results_.find(2) == results_.end()) {
    step();
    work_on_disk();
    clock_.advance(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(results_.find(2) == results_.end());
  EXPECT_EQ(disk_->files.size(), GetParam() ? 1u : 0u);
  pass(std::chrono::seconds(20));
  EXPECT_EQ(disk_->files.size(), 2u);
}

TEST_P(EarlyWriteTest, ADiskThatFailsIsAskedLessAndLessOften) {
  int asked = 0;
  disk_->fails = [&] { return ++asked > 0; };
  ask(1, "s", chain_of(300));
  pass(std::chrono::hours(6));
  EXPECT_GE(asked, 6);
  EXPECT_LE(asked, 16);
  disk_->fails = nullptr;
  pass(std::chrono::hours(2));
  EXPECT_EQ(disk_->files.size(), 1u);
}

TEST_P(EarlyWriteTest, AnIdleLaneRests) {
  ask(1, "s", chain_of(300));
  pass(std::chrono::seconds(10));
  EXPECT_EQ(lane_->step().wake, kNever);
}

}  // namespace
}  // namespace uma::engine
