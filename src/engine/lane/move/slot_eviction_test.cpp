// Evicted slots: where their states go, and how their sessions resume.
#include <chrono>
#include <functional>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

using SlotEvictionTest = StoreLaneTest;

TEST_F(SlotEvictionTest, AnIdleSessionGivesItsSlotAndIsRecomputedLater) {
  make({.sequences = 1});
  post(of_session("s", job(1, "abc")));
  run();
  EXPECT_TRUE(lane_->holds({"s"}));
  post(job(2, "somebody else"));
  run();
  EXPECT_FALSE(lane_->holds({"s"}));
  post(of_session("s", job(3, "abc")));
  run();
  EXPECT_EQ(sinks_[3]->tokens, expected("abc"));
  EXPECT_EQ(eos(3).usage.tier, Tier::none);
}

TEST_F(SlotEvictionTest, ASessionThatLostItsSlotGoesOnFromMemory) {
  make_with_store({.sequences = 2});
  ask(1, kPrompt, "s");
  clock_.advance(std::chrono::minutes(5));
  ask(2, "first other", "t");
  ask(3, "second other", "u");
  const EosEvent& again = ask(4, kPrompt, "s");
  EXPECT_EQ(again.usage.tier, Tier::warm);
  EXPECT_EQ(again.usage.reuse_reason, "warm");
  EXPECT_EQ(again.usage.reused_tokens, static_cast<std::int32_t>(kPrompt.size()) - 1);
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::none) << "it lives in the context now";
}

TEST_F(SlotEvictionTest, ASubAgentThatHasAnsweredGoesBeforeItsParent) {
  make({.sequences = 2});
  const auto ask_as = [&](std::uint64_t id, std::string_view prompt, const Agent& agent) {
    GenerationJob asked = of_session(agent.id, job(id, prompt));
    asked.agent = agent;
    asked.reply.stop = {std::string(1, static_cast<char>(expected(prompt).front()))};
    post(std::move(asked));
    run();
    EXPECT_EQ(eos(id).reason, FinishReason::stop);
  };
  ask_as(1, "the main agent", {.id = "main", .run = "main"});
  clock_.advance(std::chrono::minutes(2));
  ask_as(2, "a sub-agent", {.id = "sub", .parent = "main", .run = "main"});
  clock_.advance(std::chrono::seconds(10));
  ask_as(3, "somebody else", {.id = "else", .run = "else"});
  EXPECT_TRUE(lane_->holds({"main"})) << "although it was used before";
  EXPECT_FALSE(lane_->holds({"sub"}));
}

TEST_F(SlotEvictionTest, AFullContextKeepsWhatTheNextPromptBeginsWith) {
  make_with_store({.cells = 160, .sequences = 4, .unified = true});
  const std::string head = "the system prompt that all of them share";
  const auto shared = static_cast<std::int32_t>(head.size());
  const std::string first = head + std::string(60, 'x');
  ask(1, first, "s");
  EXPECT_EQ(ask(2, head + std::string(20, 'y'), "t").usage.reused_tokens, shared) << "beside the first";
  for (std::uint64_t id = 3; id < 6; ++id) {
    const Usage usage = ask(id, head + std::string(100, static_cast<char>('a' + id)), id == 4 ? "" : "u").usage;
    EXPECT_EQ(usage.reused_tokens, shared) << id << ": nothing else fits beside it";
  }
  const Usage again = ask(6, first, "s").usage;
  EXPECT_EQ(again.tier, Tier::warm);
  EXPECT_EQ(again.reused_tokens, static_cast<std::int32_t>(first.size()) - 1);
}

// --- Beside a stream

// One slot has the history of a session, the other one a stream; saving the history at once takes 50 ms.
class BesideAStreamTest : public SlotEvictionTest {
 protected:
  void begin(const std::string& session) {
    make_with_store({.cells = 4096, .sequences = 2, .unified = true, .state_cost = std::chrono::microseconds(50)});
    ask(1, history_, session);
    post(job(2, "a stream", 300));
    for (int i = 0; i < 1000 && sinks_[2]->tokens.empty(); ++i) step();
  }

  // The stream's longest pause until something is done, which has to be before the stream ends.
  Duration longest_pause(const std::function<bool()>& is_done) {
    Duration longest{};
    std::size_t tokens = sinks_[2]->tokens.size();
    for (TimePoint last = clock_.now(); !is_done() && !results_.contains(2);) {
      step();
      if (std::exchange(tokens, sinks_[2]->tokens.size()) == sinks_[2]->tokens.size()) continue;
      longest = std::max(longest, clock_.now() - last);
      last = clock_.now();
    }
    EXPECT_FALSE(results_.contains(2));
    return longest;
  }

  void expect_history_in_memory(const std::string& session) {
    run();
    const Usage again = ask(9, history_, session).usage;
    EXPECT_EQ(again.reused_tokens, static_cast<std::int32_t>(history_.size()) - 1);
    EXPECT_EQ(again.tier, Tier::warm);
  }

  static constexpr Duration kDivided = std::chrono::milliseconds(25);
  const std::string history_ = std::string(1000, 'h');
};

TEST_F(BesideAStreamTest, AStateIsSavedPieceByPieceBeforeItsSlotIsTaken) {
  begin("");
  post(job(3, "another prompt"));
  EXPECT_LT(longest_pause([&] { return results_.contains(3); }), kDivided);
  expect_history_in_memory("");
}

TEST_F(BesideAStreamTest, ASessionWhoseSlotIsTakenOverIsSavedPieceByPiece) {
  begin("s");
  GenerationJob next = of_session("t", job(3, history_.substr(0, 900) + " and then something else"));
  next.flow.tenant = "a";
  post(std::move(next));
  EXPECT_LT(longest_pause([&] { return results_.contains(3); }), kDivided);
  EXPECT_EQ(eos(3).usage.reused_tokens, 900) << "they stay where they are";
  expect_history_in_memory("s");
}

TEST_F(BesideAStreamTest, AStateThatTheStoreWillNotKeepIsSavedPieceByPiece) {
  begin("s");
  store_.limit_memory({.at_rest = 1000, .in_all = 1 << 20});
  post(job(3, "another prompt"));
  EXPECT_LT(longest_pause([&] { return results_.contains(3); }), kDivided);
}

TEST_F(BesideAStreamTest, CopiesAreMadeOneAfterTheOtherPieceByPiece) {
  begin("s");
  std::vector<std::string> copied;
  for (const std::string session : {"s", "unknown", "s"}) {
    lane_->post(CopyCommand{SessionId{session}, kv::GiveWay::at_once, [&copied, session] { copied.push_back(session); }});
  }
  step();
  post(job(3, "another prompt, which does not end a copy"));
  EXPECT_LT(longest_pause([&] { return copied.size() == 3; }), kDivided);
  EXPECT_EQ(copied, (std::vector<std::string>{"s", "s", "unknown"})) << "the second one is the first one";
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::warm);
  EXPECT_LT(longest_pause([&] { return results_.contains(3); }), kDivided);
}

// The cells are full before the stream ends.
class FullContextBesideAStreamTest : public SlotEvictionTest {
 protected:
  static constexpr std::int64_t kPiece = 128;

  // Steps until request `id` has ended; returns the most cells that a tick has saved.
  std::int64_t most_saved_until(std::uint64_t id) {
    std::int64_t most = 0;
    for (int i = 0; i < 1000 && !results_.contains(id); ++i) {
      const std::int64_t before = context_->cells_saved;
      step();
      most = std::max(most, context_->cells_saved - before);
    }
    EXPECT_TRUE(results_.contains(id));
    return most;
  }
  // The number of tokens that the next turn of the session behind `chain` reuses.
  std::int32_t reused_by_next_turn(std::uint64_t id, const std::string& session, std::vector<Token> chain) {
    chain.push_back('?');
    GenerationJob next = of_session(session, job(id, ""));
    next.tokens = std::move(chain);
    post(std::move(next));
    run();
    return eos(id).usage.reused_tokens;
  }

  const std::string history_ = std::string(1000, 'h');
  const std::string prompt_ = std::string(1000, 'p');
};

TEST_F(FullContextBesideAStreamTest, AnIdleConversationIsSavedWholeBeforeItsCellsAreNeeded) {
  make_with_store({.cells = 2100, .sequences = 3, .unified = true, .state_cost = std::chrono::microseconds(50)});
  post(of_session("s", job(1, history_)));
  run();
  post(job(2, prompt_, 200));
  EXPECT_EQ(most_saved_until(2), kPiece);
  EXPECT_EQ(sinks_[2]->tokens, expected(prompt_, 200));
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::warm);
  EXPECT_EQ(reused_by_next_turn(3, "s", chain_after(1)), 1007) << "but for the last one, they were all in the context";
}

TEST_F(FullContextBesideAStreamTest, AConversationThatIsIdleTooLateLosesOnlyItsLastTokens) {
  std::int32_t least = 1039;
  for (std::int32_t cells = 2063; cells < 2075; ++cells) {
    SCOPED_TRACE(cells);
    results_.clear();
    make_with_store({.cells = cells, .sequences = 3, .unified = true, .state_cost = std::chrono::microseconds(50)});
    post(of_session("s", job(1, history_, 40)));
    for (int i = 0; i < 1000 && sinks_[1]->tokens.empty(); ++i) step();
    post(job(2, prompt_, 200));
    EXPECT_LE(most_saved_until(1), kPiece);
    EXPECT_LE(most_saved_until(2), kPiece);
    EXPECT_EQ(sinks_[2]->tokens, expected(prompt_, 200));
    const std::int32_t reused = reused_by_next_turn(3, "s", chain_after(1));
    EXPECT_GE(reused, 1000);
    least = std::min(least, reused);
    store_.forget(SessionId{"s"});
  }
  EXPECT_LT(least, 1039) << "the stream needed cells at once";
}

TEST_F(FullContextBesideAStreamTest, AConversationWhoseCellsItsForkUsesIsNotLostInVain) {
  make_with_store({.cells = 1200, .sequences = 3, .unified = true, .state_cost = std::chrono::microseconds(50)});
  post(of_session("s", job(1, history_)));
  run();
  GenerationJob fork = of_session("fork", job(2, ""));
  fork.forked_from = SessionId{"s"};
  fork.tokens = chain_after(1);
  fork.tokens_max = 150;
  post(std::move(fork));
  post(job(3, std::string(20, 'q'), 100));
  EXPECT_LE(most_saved_until(2), kPiece);
  EXPECT_GT(lane_->stats().preemptions_total.value(), 0u) << "the cells were full";
  EXPECT_TRUE(lane_->holds(SessionId{"s"})) << "without it no cells would have been free";
  run();
  EXPECT_EQ(results_.at(2).generated, fake_continuation(options_, chains_[2], 150));
  EXPECT_EQ(sinks_[3]->tokens, expected(std::string(20, 'q'), 100));
  EXPECT_GE(reused_by_next_turn(4, "s", chain_after(1)), 1007);
}

TEST_F(FullContextBesideAStreamTest, WhatCannotBeSavedIsDroppedAndNobodyWaits) {
  make_with_store({.cells = 2100, .sequences = 3, .unified = true, .state_cost = std::chrono::microseconds(50)});
  post(of_session("s", job(1, history_)));
  run();
  context_->fail_state = true;
  post(job(2, prompt_, 200));
  EXPECT_EQ(most_saved_until(2), 0);
  EXPECT_EQ(sinks_[2]->tokens, expected(prompt_, 200));
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 0u);
  EXPECT_FALSE(lane_->holds(SessionId{"s"}));
}

TEST_F(SlotEvictionTest, AStateThatCannotBeSavedMakesNobodyWait) {
  make_with_store({.cells = 4096, .sequences = 2, .unified = true, .state_cost = std::chrono::microseconds(50)});
  ask(1, std::string(1000, 'h'), "");
  post(job(2, "a stream", 300));
  while (sinks_[2]->tokens.empty()) step();
  context_->fail_state = true;
  post(job(3, "another prompt"));
  const TimePoint began = clock_.now();
  while (!results_.contains(3)) step();
  EXPECT_LT(clock_.now() - began, std::chrono::milliseconds(200));
  EXPECT_FALSE(results_.contains(2));
  EXPECT_EQ(sinks_[3]->tokens, expected("another prompt"));
}

TEST_F(SlotEvictionTest, AtItsEndItWaitsForTheDiskWhereMemoryHasNoRoom) {
  int waits = 0;
  LaneOptions options;
  options.store = &store_;
  options.stored_tokens_min = 4;
  options.wait_for_disk = [&](const std::function<bool()>& is_done) {
    ++waits;
    EXPECT_FALSE(is_done());
    work_on_disk();
    EXPECT_TRUE(is_done());
  };
  make({.sequences = 2}, std::move(options));
  ask(1, kPrompt, "s");
  ask(2, kPrompt, "t");
  store_.limit_memory({.at_rest = 0, .in_all = state_memory()});
  lane_->close();
  lane_->cancel_all();
  EXPECT_EQ(waits, 1) << "the first one finds room";
  work_on_disk();
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::cold);
  EXPECT_EQ(store_.states_of(SessionId{"t"}).tier, Tier::cold);
}

TEST_F(SlotEvictionTest, ARequestWaitsForItsSlotsStateToFindMemory) {
  make_with_store({.sequences = 1});
  ask(1, kPrompt, "s");
  store_.limit_memory({.at_rest = 0, .in_all = state_memory()});
  auto others = store_.pool().reserve(state_memory());
  ASSERT_TRUE(others);
  post(of_session("t", job(2, "another")));
  for (int i = 0; i < 20; ++i) step();
  EXPECT_TRUE(sinks_[2]->tokens.empty()) << "it waits";
  others.reset();
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected("another"));
  work_on_disk();
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::cold);
}

TEST_F(SlotEvictionTest, WithMemoryForOneStateASlotIsEmptiedBeforeTheNextStateIsRead) {
  make_with_store({.sequences = 1});
  ask(1, kPrompt, "s");
  ask(2, "quite another beginning of a text", "t");
  store_.limit_memory({.at_rest = 0, .in_all = state_memory() * 3 / 2});
  work_on_disk();
  ASSERT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::cold);
  GenerationJob again = job(3, kPrompt);
  again.session = SessionId{"s"};
  const TimePoint began = clock_.now();
  post(std::move(again));
  for (int i = 0; i < 100 && !results_.contains(3); ++i) {
    step();
    work_on_disk();
  }
  ASSERT_TRUE(results_.contains(3));
  EXPECT_LT(clock_.now() - began, std::chrono::seconds(1));
  EXPECT_EQ(eos(3).usage.tier, Tier::cold);
  EXPECT_EQ(sinks_[3]->tokens, expected(kPrompt));
  EXPECT_EQ(store_.states_of(SessionId{"t"}).tier, Tier::cold);
  EXPECT_EQ(store_.stats().dropped_total.value(), 0u);
}

TEST_F(SlotEvictionTest, AStateThatFindsNoMemoryForLongIsGivenUp) {
  make_with_store({.sequences = 1});
  ask(1, kPrompt, "s");
  store_.limit_memory({.at_rest = 0, .in_all = state_memory()});
  const auto others = store_.pool().reserve(state_memory());
  ASSERT_TRUE(others);
  const TimePoint began = clock_.now();
  ask(2, "another", "t");
  EXPECT_GE(clock_.now() - began, std::chrono::seconds(2));
  EXPECT_LE(clock_.now() - began, std::chrono::seconds(3));
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::none);
  EXPECT_EQ(ask(3, kPrompt, "s").usage.reused_tokens, 0) << "it is computed again";
}

TEST_F(SlotEvictionTest, AnEphemeralSessionTakesNoRoomOutsideItsSlot) {
  make_with_store({.sequences = 2});
  ask(1, kPrompt, "s", "a", true);
  EXPECT_EQ(ask(2, kPrompt, "s", "a", true).usage.tier, Tier::hot);
  EXPECT_EQ(ask(3, kPrompt, "").usage.reused_tokens, 0) << "nobody begins with it";
  clock_.advance(std::chrono::minutes(5));
  ask(4, "first other", "t");
  ask(5, "second other", "u");
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::none);
  EXPECT_EQ(ask(6, kPrompt, "s", "a", true).usage.reuse_reason, "prefix") << "what the one-shot request computed";
}

TEST_F(SlotEvictionTest, ShortPromptsWithACommonBeginningTakeEachOthersSlotNotALongOnes) {
  make_with_store({.sequences = 2});
  store_.limit_memory({.at_rest = 0, .in_all = 0});  // A state that leaves its slot is lost.
  const std::string title = "Say in three words: ";
  const std::string history(100, 'h');
  ask(1, history, "");
  ask(2, title + "what is the weather today?", "");
  ask(3, title + "who wrote this letter, and when?", "");
  EXPECT_GE(ask(4, history + "and now?", "").usage.reused_tokens, 100);
}

// A slot whose beginning another slot has, too, is worth only its own part.
TEST_F(SlotEvictionTest, WhatAnotherSlotHasTooGoesFirst) {
  make_with_store({.cells = 4096, .sequences = 3, .unified = true});
  store_.limit_memory({.at_rest = 0, .in_all = 0});
  const std::string head(400, 'h');
  const std::string alone(100, 'c');
  ask(1, alone, "");
  ask(2, head + " the first one says hello", "");
  ask(3, head + " and the second one has a question", "");
  ask(4, "something else", "");
  EXPECT_EQ(ask(5, alone, "").usage.reused_tokens, 99);
  EXPECT_GE(ask(6, head + " and now?", "").usage.reused_tokens, 400);
}

TEST_F(SlotEvictionTest, WhatMemoryHasAlreadyIsNotSavedAgain) {
  make_with_store({.sequences = 1});
  ask(1, kPrompt, "");
  ask(2, "something else", "");
  ask(3, kPrompt, "");
  const std::uint64_t saved = lane_->stats().saved_bytes_total.value();
  EXPECT_GT(saved, 0u);
  ask(4, "something else", "");
  EXPECT_EQ(lane_->stats().saved_bytes_total.value(), saved);
  EXPECT_EQ(ask(5, kPrompt, "").usage.reused_tokens, static_cast<std::int32_t>(kPrompt.size()) - 1);
}

// --- Copies for other daemons

TEST_F(SlotEvictionTest, ACopyOfAnIdleConversationIsStoredAndTheConversationStays) {
  make_with_store({.cells = 256, .sequences = 2});
  ask(1, kPrompt, "s");
  int called_count = 0;
  lane_->post(CopyCommand{SessionId{"s"}, kv::GiveWay::by_disk, [&] { ++called_count; }});
  run();
  EXPECT_EQ(called_count, 1);
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::warm);
  EXPECT_TRUE(lane_->holds(SessionId{"s"}));
  EXPECT_EQ(ask(2, kPrompt, "s").usage.tier, Tier::hot);
  EXPECT_EQ(lane_->stats().idle_stored_total.value(), 0u);
}

TEST_F(SlotEvictionTest, ACopyThatIsAskedForTwiceIsMadeOnce) {
  make_with_store({.cells = 256, .sequences = 2});
  ask(1, kPrompt, "s");
  int called_count = 0;
  for (int i = 0; i < 2; ++i) {
    lane_->post(CopyCommand{SessionId{"s"}, kv::GiveWay::by_disk, [&] {
                              EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::warm);
                              ++called_count;
                            }});
  }
  run();
  EXPECT_EQ(called_count, 2);
}

TEST_F(SlotEvictionTest, ACopyOfAConversationInUseIsGivenUp) {
  make_with_store({.cells = 256, .sequences = 2});
  ask(1, kPrompt, "s");
  post(of_session("s", job(2, kPrompt, 50)));
  for (int i = 0; i < 3; ++i) step();
  int called_count = 0;
  lane_->post(CopyCommand{SessionId{"s"}, kv::GiveWay::by_disk, [&] { ++called_count; }});
  run();
  lane_->post(CopyCommand{SessionId{"unknown"}, kv::GiveWay::by_disk, [&] { ++called_count; }});
  run();
  EXPECT_EQ(called_count, 2);
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::none);
}

TEST_F(SlotEvictionTest, ACopyWithoutMemoryIsGivenUpAndNobodyIsEvicted) {
  make_with_store({.cells = 256, .sequences = 1});
  ask(1, kPrompt, "first");
  store_.limit_memory({.at_rest = state_memory(), .in_all = state_memory()});
  ask(2, "another conversation, which evicts the first", "second");
  const auto before = store_.states_of(SessionId{"first"});
  ASSERT_EQ(before.tier, Tier::warm);
  const kv::SnapshotPtr held = store_.hold(store_
                                               .find({.family = store_.join(context_->state_identity(), true),
                                                      .tenant = TenantId{"a"},
                                                      .session = SessionId{"first"},
                                                      .forked_from = {}},
                                                     fake_tokens(kPrompt))
                                               ->id);
  int called_count = 0;
  lane_->post(CopyCommand{SessionId{"second"}, kv::GiveWay::by_disk, [&] { ++called_count; }});
  run();
  EXPECT_EQ(called_count, 1);
  EXPECT_EQ(store_.states_of(SessionId{"first"}).tier, Tier::warm);
  EXPECT_EQ(store_.states_of(SessionId{"second"}).tier, Tier::none);
}

}  // namespace
}  // namespace uma::engine
