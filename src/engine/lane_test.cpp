#include "engine/lane.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <new>
#include <stdexcept>

#include <gtest/gtest.h>

#include "engine/state_transfer.h"
#include "llm/logprobs.h"
#include "testing/fake_cold_store.h"
#include "testing/fake_model.h"

namespace uma::engine {
namespace {

using testing::fake_continuation;
using testing::fake_tokens;
using testing::FakeColdStore;
using testing::FakeContext;
using testing::FakeFault;
using testing::FakeModel;
using testing::FakeOptions;
using testing::SimClock;

class RecordingSink final : public EventSink {
 public:
  bool deliver(const Event& event) override {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      if (accepts_tokens == 0) return false;
      if (throws_after-- == 0) throw std::runtime_error("its connection is broken");
      --accepts_tokens;
      tokens.push_back(token->token);
      text += token->text;
      logprobs.insert(logprobs.end(), token->logprobs.begin(), token->logprobs.end());
    } else if (std::holds_alternative<ProgressEvent>(event)) {
      if (throws_at_progress) throw std::runtime_error("its connection is broken");
      ++progress_events;
    } else if (const auto* shift = std::get_if<ContextShiftEvent>(&event)) {
      if (!accepts_shifts) return false;
      shifts.push_back({tokens.size(), *shift});
    }
    return true;
  }
  struct Shift {
    std::size_t after = 0;  // tokens
    ContextShiftEvent told;
  };

  std::vector<Token> tokens;
  std::string text;
  std::vector<TokenLogprobs> logprobs;
  std::vector<Shift> shifts;
  bool accepts_shifts = true;
  int progress_events = 0;
  int accepts_tokens = 1'000'000;
  int throws_after = -1;  // tokens; negative: never
  bool throws_at_progress = false;
};

// A lane on a FakeModel, driven by hand.
class LaneTest : public ::testing::Test {
 protected:
  void make(FakeOptions options, LaneOptions lane_options = {}) {
    options.clock = &clock_;
    options_ = options;
    model_ = std::make_unique<FakeModel>(options);
    auto context = std::make_unique<FakeContext>(options);
    context_ = context.get();
    lane_ = std::make_unique<Lane>(std::move(lane_options), std::move(context), nullptr, model_->vocab(), clock_,
                                   [this](GenerationResult result) { results_[result.id.value] = std::move(result); });
  }

  void draft_with(FakeOptions options) {
    options.clock = &clock_;
    lane_->draft_with(std::make_unique<ModelDrafter>(std::make_unique<FakeContext>(options), model_->vocab(), clock_));
  }

  GenerationJob task(std::uint64_t id, std::string_view prompt, std::int32_t tokens_max = 8) {
    GenerationJob made;
    made.id = RequestId{id};
    made.tokens = fake_tokens(prompt);
    made.tokens_max = tokens_max;
    made.received = clock_.now();
    sinks_[id] = std::make_shared<RecordingSink>();
    made.sink = sinks_[id];
    return made;
  }

  void post(GenerationJob made) {
    lane_->stats().queue_depth.add(1);
    lane_->post(StartCommand{std::move(made)});
  }

  // One step, and where it has nothing to do the time until it has.
  void step() {
    const StepOutcome outcome = lane_->step();
    lane_->check_invariants();
    if (!outcome.did_work && outcome.wake != kNever) clock_.advance(outcome.wake - clock_.now());
  }

  // Steps until nothing is left to do.
  void run() {
    for (int i = 0; i < 10'000; ++i) {
      const StepOutcome outcome = lane_->step();
      lane_->check_invariants();
      if (!outcome.did_work && lane_->is_idle()) return;
      if (!outcome.did_work) clock_.advance(outcome.wake - clock_.now());
    }
    FAIL() << "the lane never came to rest";
  }

  std::vector<Token> expected(std::string_view prompt, std::int32_t tokens_max = 8) {
    return fake_continuation(options_, fake_tokens(prompt), tokens_max);
  }

  // 36 tokens: 4 that stay and turns that begin at 12, 24 and 32.
  static constexpr std::string_view kTurns = "SYS:first...second......third...four";
  GenerationJob turns_task(std::uint64_t id, std::string_view prompt = kTurns, std::int32_t tokens_max = 100) {
    GenerationJob made = task(id, prompt, tokens_max);
    made.session = {"s"};
    made.flow.tenant = "a";
    made.droppable = {.keep = 4, .turns_begin = {12, 24, 32}};
    return made;
  }

  // What the model says where the client was told what was dropped.
  std::vector<Token> expected_with_shifts(std::uint64_t id, std::vector<Token> chain, std::size_t keep = 4) {
    std::vector<Token> made;
    std::size_t at = 0;
    for (const RecordingSink::Shift& shift : sinks_[id]->shifts) {
      const auto part = fake_continuation(options_, chain, static_cast<std::int32_t>(shift.after - at));
      chain.insert(chain.end(), part.begin(), part.end());
      made.insert(made.end(), part.begin(), part.end());
      at = shift.after;
      const auto begin = chain.begin() + static_cast<std::ptrdiff_t>(keep);
      chain.erase(begin, begin + shift.told.dropped_tokens);
    }
    const auto rest = fake_continuation(options_, chain, static_cast<std::int32_t>(sinks_[id]->tokens.size() - at));
    made.insert(made.end(), rest.begin(), rest.end());
    return made;
  }

  // The first turn of session "s". Returns its tokens.
  std::vector<Token> run_turn(std::string_view prompt, std::int32_t tokens_max) {
    GenerationJob first = task(1, prompt, tokens_max);
    first.session = {"s"};
    post(std::move(first));
    run();
    std::vector<Token> chain = fake_tokens(prompt);
    chain.insert(chain.end(), results_.at(1).generated.begin(), results_.at(1).generated.end());
    return chain;
  }
  GenerationJob next_turn(std::uint64_t id, const std::vector<Token>& chain) {
    GenerationJob next = task(id, "", 8);
    next.session = {"s"};
    next.tokens = chain;
    return next;
  }
  static LaneOptions verifying(std::int32_t every) {
    LaneOptions options;
    options.verify_every = every;
    return options;
  }

  const EosEvent& eos(std::uint64_t id) { return std::get<EosEvent>(results_.at(id).terminal); }

  SimClock clock_;
  FakeOptions options_;
  std::unique_ptr<FakeModel> model_;
  FakeContext* context_ = nullptr;
  std::unique_ptr<Lane> lane_;
  std::map<std::uint64_t, GenerationResult> results_;
  std::map<std::uint64_t, std::shared_ptr<RecordingSink>> sinks_;
};

// --- What throws

TEST_F(LaneTest, ASequenceThatThrowsEndsAndItsNeighbourSaysTheSame) {
  make({});
  post(task(1, "one"));
  post(task(2, "two"));
  sinks_[1]->throws_after = 3;
  run();
  EXPECT_EQ(sinks_[1]->tokens.size(), 3u);
  const auto& ended = std::get<EosEvent>(results_.at(1).terminal);
  EXPECT_EQ(ended.reason, FinishReason::error);
  EXPECT_EQ(ended.error->code, ErrorCode::runtime_decode);
  EXPECT_EQ(sinks_[2]->tokens, expected("two"));
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
}

TEST_F(LaneTest, AProgressReportThatThrowsIsLostAndNothingElse) {
  make({.sequences = 1});
  for (std::uint64_t id = 1; id <= 3; ++id) {
    GenerationJob asked = task(id, "one");
    asked.wants_progress = true;
    post(std::move(asked));
    sinks_[id]->throws_at_progress = true;
  }
  run();
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(sinks_[id]->tokens, expected("one"));
}

TEST_F(LaneTest, WhatThrowsInNobodysNameEndsAllThatTheLaneHas) {
  LaneOptions options;
  bool throws = true;
  options.on_logits = [&](RequestId, std::span<const float>) {
    if (throws) throw std::bad_alloc();
  };
  make({}, options);
  for (std::uint64_t id = 1; id <= 6; ++id) post(task(id, "one"));
  run();
  for (std::uint64_t id = 1; id <= 6; ++id) {
    EXPECT_EQ(std::get<FailureEvent>(results_.at(id).terminal).error.code, ErrorCode::runtime_decode);
  }
  throws = false;
  post(task(7, "one"));
  run();
  EXPECT_EQ(sinks_[7]->tokens, expected("one"));
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
}

TEST_F(LaneTest, StreamsWhatTheModelSays) {
  make({});
  post(task(1, "hello"));
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("hello"));
  EXPECT_EQ(eos(1).reason, FinishReason::length);
  EXPECT_EQ(eos(1).usage.prompt_tokens, 5);
  EXPECT_EQ(eos(1).usage.completion_tokens, 8);
  EXPECT_EQ(eos(1).usage.recomputed_tokens, 5);
}

TEST_F(LaneTest, ManySequencesDoNotTouchEachOther) {
  for (const bool unified : {false, true}) {
    make({.cells = 400, .sequences = 4, .unified = unified});
    const std::vector<std::string> prompts{"one", "another prompt", "the third of them", "four"};
    for (std::size_t i = 0; i < prompts.size(); ++i) post(task(i, prompts[i], 20));
    run();
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(sinks_[i]->tokens, expected(prompts[i], 20)) << unified << i;
  }
}

TEST_F(LaneTest, MoreRequestsThanSlotsWaitTheirTurn) {
  make({.sequences = 2});
  for (std::uint64_t i = 0; i < 7; ++i) post(task(i, "prompt " + std::to_string(i)));
  run();
  for (std::uint64_t i = 0; i < 7; ++i) EXPECT_EQ(sinks_[i]->tokens, expected("prompt " + std::to_string(i)));
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
}

TEST_F(LaneTest, TellsWhenItComputedLastAndSinceWhenSomebodyWaits) {
  make({.sequences = 1});
  clock_.advance(std::chrono::seconds(1));
  const LaneStats& stats = lane_->stats();
  EXPECT_EQ(stats.last_call_us.value(), 0);
  post(task(0, "the first", 4));
  clock_.advance(std::chrono::seconds(1));
  const std::int64_t received_us = to_us(clock_.now());
  post(task(1, "the second", 4));
  while (stats.last_decode_us.value() == 0) step();
  EXPECT_EQ(stats.waiting_since_us.value(), received_us) << "one slot: the second waits";
  EXPECT_GE(stats.last_call_us.value(), stats.last_decode_us.value());
  EXPECT_GE(stats.last_decode_us.value(), received_us);
  run();
  EXPECT_EQ(stats.waiting_since_us.value(), 0);
}

TEST_F(LaneTest, ASessionComputesOnlyWhatIsNew) {
  make({});
  GenerationJob first = task(1, "hello");
  first.session = {"s"};
  post(std::move(first));
  run();
  std::vector<Token> chain = fake_tokens("hello");
  chain.insert(chain.end(), results_.at(1).generated.begin(), results_.at(1).generated.end());
  chain.push_back('!');
  GenerationJob second = task(2, "");
  second.session = {"s"};
  second.tokens = chain;
  post(std::move(second));
  run();
  EXPECT_EQ(results_.at(2).generated, fake_continuation(options_, chain, 8)) << "equal to one pass over the chain";
  EXPECT_EQ(eos(2).usage.tier, Tier::hot);
  EXPECT_EQ(eos(2).usage.reused_tokens, 12) << "all but the last token of the reply, which was never computed";
  EXPECT_EQ(eos(2).usage.recomputed_tokens, 2);
}

TEST_F(LaneTest, ARewrittenChainReusesOnlyTheCommonBeginning) {
  make({});
  GenerationJob first = task(1, "abcdef");
  first.session = {"s"};
  post(std::move(first));
  run();
  GenerationJob second = task(2, "abcxyz");
  second.session = {"s"};
  post(std::move(second));
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected("abcxyz"));
  EXPECT_EQ(eos(2).usage.reused_tokens, 3);
}

TEST_F(LaneTest, AModelThatCannotBeCutGoesOnHotAndComputesARewrittenChainAgain) {
  for (const bool unified : {false, true}) {
    make({.unified = unified, .can_truncate = false});
    GenerationJob first = task(1, "abcdef");
    first.session = {"s"};
    post(std::move(first));
    run();
    std::vector<Token> chain = fake_tokens("abcdef");
    chain.insert(chain.end(), results_.at(1).generated.begin(), results_.at(1).generated.end());
    chain.push_back('!');
    GenerationJob second = task(2, "");
    second.session = {"s"};
    second.tokens = chain;
    post(std::move(second));
    run();
    EXPECT_EQ(results_.at(2).generated, fake_continuation(options_, chain, 8));
    EXPECT_EQ(eos(2).usage.tier, Tier::hot);
    GenerationJob third = task(3, "abcxyz");
    third.session = {"s"};
    post(std::move(third));
    run();
    EXPECT_EQ(sinks_[3]->tokens, expected("abcxyz"));
    EXPECT_EQ(eos(3).usage.reused_tokens, 0);
  }
}

TEST_F(LaneTest, AnInterruptedCallOfAModelThatCannotBeCutIsComputedAgain) {
  make({.can_truncate = false});
  int calls = 0;
  context_->fault = [&](std::span<const llm::BatchRow>) {
    return ++calls % 4 == 2 ? FakeFault::interrupted_half : FakeFault::none;
  };
  for (std::uint64_t i = 0; i < 3; ++i) post(task(i, "prompt " + std::to_string(i), 20));
  run();
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(sinks_[i]->tokens, expected("prompt " + std::to_string(i), 20)) << i;
}

TEST_F(LaneTest, AnIdleSessionGivesItsSlotAndIsRecomputedLater) {
  make({.sequences = 1});
  GenerationJob first = task(1, "abc");
  first.session = {"s"};
  post(std::move(first));
  run();
  EXPECT_TRUE(lane_->holds({"s"}));
  post(task(2, "somebody else"));
  run();
  EXPECT_FALSE(lane_->holds({"s"}));
  GenerationJob again = task(3, "abc");
  again.session = {"s"};
  post(std::move(again));
  run();
  EXPECT_EQ(sinks_[3]->tokens, expected("abc"));
  EXPECT_EQ(eos(3).usage.tier, Tier::none);
}

TEST_F(LaneTest, ExhaustedCellsSwapTheNewestOutAndEveryoneFinishes) {
  make({.cells = 120, .sequences = 4, .unified = true});
  for (std::uint64_t i = 0; i < 4; ++i) post(task(i, "prompt number " + std::to_string(i), 40));
  run();
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sinks_[i]->tokens, expected("prompt number " + std::to_string(i), 40)) << i;
    EXPECT_EQ(eos(i).reason, FinishReason::length);
  }
  EXPECT_GT(lane_->stats().preemptions_total.value(), 0u);
  EXPECT_GT(lane_->stats().warm_hits_total.value(), 0u);
  EXPECT_EQ(lane_->stats().swapped_bytes.value(), 0);
}

TEST_F(LaneTest, AStateThatCannotBeSavedIsComputedAgain) {
  make({.cells = 120, .sequences = 4, .unified = true});
  context_->fail_state = true;
  for (std::uint64_t i = 0; i < 4; ++i) post(task(i, "prompt number " + std::to_string(i), 40));
  run();
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(sinks_[i]->tokens, expected("prompt number " + std::to_string(i), 40)) << i;
  EXPECT_GT(lane_->stats().preemptions_total.value(), 0u);
}

TEST_F(LaneTest, AFailedDecodeEndsOnlyTheSequenceThatFailsAlone) {
  make({});
  context_->fault = [](std::span<const llm::BatchRow> rows) {
    const bool has_bad = std::ranges::any_of(rows, [](const llm::BatchRow& row) { return row.token == 'X'; });
    return has_bad ? FakeFault::decode_error : FakeFault::none;
  };
  post(task(1, "good one"));
  post(task(2, "bad X"));
  post(task(3, "good too"));
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("good one"));
  EXPECT_EQ(sinks_[3]->tokens, expected("good too"));
  ASSERT_TRUE(std::holds_alternative<FailureEvent>(results_.at(2).terminal));
  EXPECT_EQ(std::get<FailureEvent>(results_.at(2).terminal).error.code, ErrorCode::runtime_decode);
}

TEST_F(LaneTest, CancelKeepsTheTokensSoFar) {
  make({});
  GenerationJob long_task = task(1, "hello", 40);
  long_task.session = {"s"};
  post(std::move(long_task));
  for (int i = 0; i < 4; ++i) lane_->step();
  const std::size_t before = sinks_[1]->tokens.size();
  lane_->post(CancelCommand{RequestId{1}});
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::cancelled);
  EXPECT_EQ(results_.at(1).generated.size(), before);
  EXPECT_GT(before, 0u);
  EXPECT_TRUE(lane_->holds({"s"}));
}

TEST_F(LaneTest, AnInterruptedPrefillGoesOnWhereItStopped) {
  make({.batch_rows_max = 16});
  int calls = 0;
  context_->fault = [&](std::span<const llm::BatchRow>) {
    return ++calls % 2 == 1 ? FakeFault::interrupted_half : FakeFault::none;
  };
  post(task(1, "a prompt that needs several chunks of prefill"));
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("a prompt that needs several chunks of prefill"));
}

TEST_F(LaneTest, WaitingPastTheDeadlineIsRefusedWithPosition) {
  make({.sequences = 1});
  post(task(1, "first", 50));
  GenerationJob late = task(2, "second");
  late.deadline = clock_.now() + std::chrono::milliseconds(5);
  post(std::move(late));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::length);
  ASSERT_TRUE(std::holds_alternative<FailureEvent>(results_.at(2).terminal));
  const Error error = std::get<FailureEvent>(results_.at(2).terminal).error;
  EXPECT_EQ(error.code, ErrorCode::limit_wait);
  EXPECT_NE(error.message.find("position 1"), std::string::npos) << error.message;
}

TEST_F(LaneTest, ARunningRequestIsNotMeasuredAgainstItsDeadlineButAgainstItsTimeout) {
  make({});
  GenerationJob quick = task(1, "x", 30);
  quick.deadline = clock_.now() + std::chrono::milliseconds(5);
  quick.timeout = clock_.now() + std::chrono::milliseconds(20);
  post(std::move(quick));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::timeout);
  EXPECT_GT(results_.at(1).generated.size(), 3u);
}

TEST_F(LaneTest, ASlowConsumerLosesItsStreamAndNothingElse) {
  make({});
  GenerationJob slow = task(1, "slow", 30);
  sinks_[1]->accepts_tokens = 3;
  post(std::move(slow));
  post(task(2, "fast", 10));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::slow_consumer);
  EXPECT_EQ(sinks_[2]->tokens, expected("fast", 10));
}

TEST_F(LaneTest, WithoutStreamingTheWholeTextComesAtTheEnd) {
  make({});
  GenerationJob whole = task(1, "hello");
  whole.reply.stream = false;
  post(std::move(whole));
  run();
  EXPECT_TRUE(sinks_[1]->tokens.empty());
  std::string text;
  for (const Token token : expected("hello")) text += static_cast<char>(token);
  EXPECT_EQ(eos(1).text, text);
}

TEST_F(LaneTest, PrefillNeverHoldsUpADecodingSequence) {
  make({.cells = 4000, .sequences = 2, .batch_rows_max = 64});
  post(task(1, "stream", 200));
  lane_->step();
  lane_->step();
  post(task(2, std::string(600, 'p'), 4));
  for (int i = 0; i < 10; ++i) {
    const std::size_t before = sinks_[1]->tokens.size();
    lane_->step();
    EXPECT_EQ(sinks_[1]->tokens.size(), before + 1) << "one token in every tick";
  }
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected(std::string(600, 'p'), 4));
}

TEST_F(LaneTest, AForkedSessionStartsFromItsParentsCells) {
  make({});
  GenerationJob parent = task(1, "parent");
  parent.session = {"p"};
  post(std::move(parent));
  run();
  GenerationJob child = task(2, "parent");
  child.session = {"c"};
  child.forked_from = {"p"};
  post(std::move(child));
  run();
  EXPECT_EQ(eos(2).usage.tier, Tier::hot);
  EXPECT_EQ(eos(2).usage.reused_tokens, 5);
  EXPECT_EQ(sinks_[2]->tokens, expected("parent"));
}

// A lane whose states go to a store.
class StoreLaneTest : public LaneTest {
 protected:
  void make_with_store(const FakeOptions& options) {
    LaneOptions lane_options;
    lane_options.store = &store_;
    lane_options.stored_tokens_min = 4;
    make(options, std::move(lane_options));
  }

  const EosEvent& ask(std::uint64_t id, std::string_view prompt, const std::string& session, const std::string& tenant = "a",
                      bool is_ephemeral = false, bool is_public = false) {
    GenerationJob asked = task(id, prompt);
    asked.session = SessionId{session};
    asked.flow.tenant = tenant;
    asked.is_ephemeral = is_ephemeral;
    asked.is_public = is_public;
    post(std::move(asked));
    run();
    EXPECT_EQ(sinks_[id]->tokens, expected(prompt));
    return eos(id);
  }

  // Memory for the state that a request with kPrompt leaves, and for no two of them.
  std::uint64_t state_room() const { return room_of_prompt(context_->shape(), static_cast<std::int32_t>(kPrompt.size()) + 8); }
  void work_on_disk() {
    while (store_.step()) {
    }
  }

  kv::StateStore store_{
      {.warm_bytes_max = 1 << 20, .cold_bytes_max = 1 << 20, .cold_tokens_min = 4}, std::make_unique<FakeColdStore>(), clock_};
  const std::string kPrompt = "the beginning of a conversation";
};

TEST_F(StoreLaneTest, ASessionThatLostItsSlotGoesOnFromMemory) {
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

TEST_F(StoreLaneTest, AtItsEndItWaitsForTheDiskWhereMemoryHasNoRoom) {
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
  store_.limit_memory({.at_rest = 0, .in_all = state_room()});
  lane_->close();
  lane_->cancel_all();
  EXPECT_EQ(waits, 1) << "the first one finds room";
  work_on_disk();
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::cold);
  EXPECT_EQ(store_.states_of(SessionId{"t"}).tier, Tier::cold);
}

TEST_F(StoreLaneTest, ARequestWaitsForItsSlotsStateToFindMemory) {
  make_with_store({.sequences = 1});
  ask(1, kPrompt, "s");
  store_.limit_memory({.at_rest = 0, .in_all = state_room()});
  auto others = store_.pool().reserve(state_room());
  ASSERT_TRUE(others);
  GenerationJob next = task(2, "another");
  next.session = SessionId{"t"};
  post(std::move(next));
  for (int i = 0; i < 20; ++i) step();
  EXPECT_TRUE(sinks_[2]->tokens.empty()) << "it waits";
  others.reset();
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected("another"));
  work_on_disk();
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::cold);
}

TEST_F(StoreLaneTest, WithMemoryForOneStateASlotIsEmptiedBeforeTheNextStateIsRead) {
  make_with_store({.sequences = 1});
  ask(1, kPrompt, "s");
  ask(2, "quite another beginning of a text", "t");
  store_.limit_memory({.at_rest = 0, .in_all = state_room() * 3 / 2});
  work_on_disk();
  ASSERT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::cold);
  GenerationJob again = task(3, kPrompt);
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

TEST_F(StoreLaneTest, AStateThatFindsNoMemoryForLongIsGivenUp) {
  make_with_store({.sequences = 1});
  ask(1, kPrompt, "s");
  store_.limit_memory({.at_rest = 0, .in_all = state_room()});
  const auto others = store_.pool().reserve(state_room());
  ASSERT_TRUE(others);
  const TimePoint began = clock_.now();
  ask(2, "another", "t");
  EXPECT_GE(clock_.now() - began, std::chrono::seconds(2));
  EXPECT_LE(clock_.now() - began, std::chrono::seconds(3));
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::none);
  EXPECT_EQ(ask(3, kPrompt, "s").usage.reused_tokens, 0) << "it is computed again";
}

TEST_F(StoreLaneTest, AHistoryThatIsSentWholeGoesOnWhereItsBeginningIs) {
  make_with_store({});
  ask(1, kPrompt, "");
  const EosEvent& longer = ask(2, kPrompt + " that goes on", "");
  EXPECT_EQ(longer.usage.tier, Tier::hot);
  EXPECT_EQ(longer.usage.reuse_reason, "prefix");
  EXPECT_EQ(longer.usage.reused_tokens, static_cast<std::int32_t>(kPrompt.size()));
}

TEST_F(StoreLaneTest, TenantsShareOnlyWhatIsPublic) {
  make_with_store({.sequences = 2});
  ask(1, kPrompt, "s", "a");
  EXPECT_EQ(ask(2, kPrompt, "", "b").usage.reused_tokens, 0);
  ask(3, "another", "t", "b");  // takes s's slot: its state lies in memory
  EXPECT_EQ(ask(4, kPrompt + "?", "", "c").usage.reused_tokens, 0);
  ask(5, "said to everybody, by a", "p", "a", false, true);
  EXPECT_GT(ask(6, "said to everybody, by a and b", "", "b").usage.reused_tokens, 16);
}

TEST_F(StoreLaneTest, AnEphemeralSessionTakesNoRoomOutsideItsSlot) {
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

// Requests that begin alike and arrive together.
class AlikeLaneTest : public LaneTest {
 protected:
  void SetUp() override { make({.cells = 4096}); }

  GenerationJob begins_alike(std::uint64_t id, const std::string& tenant = "a") {
    GenerationJob made = task(id, prompt(id));
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
  post(task(1, kShared + std::string(300, 'y')));
  post(begins_alike(2));
  step();
  step();
  EXPECT_GT(lane_->stats().sequences_active.value(), 1);
  run();
  EXPECT_EQ(reused(2), 0);
}

TEST_F(LaneTest, ProgressIsReportedWhereAsked) {
  make({.batch_rows_max = 16});
  GenerationJob asked = task(1, "a prompt that needs several chunks of prefill");
  asked.wants_progress = true;
  post(std::move(asked));
  run();
  EXPECT_GE(sinks_[1]->progress_events, 2);
}

// --- Guessed tokens

// A lane whose guesses are right but for every `wrong_every`-th token of each (0: always right).
LaneOptions guessing(const FakeOptions& options, std::int32_t wrong_every) {
  LaneOptions made;
  made.guess = [options, wrong_every](std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft) {
    draft = fake_continuation(options, std::vector<Token>(chain.begin(), chain.end()), count);
    for (std::size_t i = 0; wrong_every > 0 && i < draft.size(); ++i) {
      if ((i + 1) % static_cast<std::size_t>(wrong_every) == 0) draft[i] ^= 1;
    }
  };
  return made;
}

TEST_F(LaneTest, GuessesDoNotChangeWhatIsSaid) {
  const FakeOptions options{.cells = 400, .sequences = 2, .end_every = 60};
  const auto said = [&](LaneOptions lane_options) {
    make(options, std::move(lane_options));
    GenerationJob drawn = task(2, "drawn", 40);
    drawn.sampling.temperature = 1;
    drawn.seed = 5;
    post(task(1, "greedy", 40));
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
    EXPECT_EQ(said(guessing(options, wrong_every)), without) << "the same random numbers for the same tokens";
    EXPECT_GT(lane_->stats().drafted_tokens_total.value(), 0u);
  }
}

TEST_F(LaneTest, RightGuessesSaveCalls) {
  const FakeOptions options{.cells = 400};
  make(options, guessing(options, 0));
  post(task(1, "hello", 60));
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("hello", 60));
  EXPECT_LT(lane_->stats().batch_calls_total.value(), 30u) << "a prompt, and 59 tokens a few at a time";
  EXPECT_GT(lane_->stats().drafted_accepted_total.value(), 30u);
}

TEST_F(LaneTest, ASessionWhoseGuessesWereWrongGoesOnFromWhatWasSaid) {
  const FakeOptions options{.cells = 400};
  make(options, guessing(options, 2));
  GenerationJob first = task(1, "hello", 21);
  first.session = {"s"};
  post(std::move(first));
  run();
  std::vector<Token> chain = fake_tokens("hello");
  chain.insert(chain.end(), results_.at(1).generated.begin(), results_.at(1).generated.end());
  const std::size_t said = chain.size();
  chain.push_back('!');
  GenerationJob second = task(2, "");
  second.session = {"s"};
  second.tokens = chain;
  post(std::move(second));
  run();
  EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options, chain, 8));
  EXPECT_GE(eos(2).usage.reused_tokens, static_cast<std::int32_t>(said) - 1) << "nothing right was dropped with the wrong";
}

// --- A draft model

// What a draft model's context is like that costs a tenth of the model's and differs at one place in `differs_every`.
FakeOptions draft_options(FakeOptions options, std::uint32_t differs_every) {
  options.differs_every = differs_every;
  options.decode_cost = std::chrono::microseconds(100);
  options.row_cost = std::chrono::microseconds(10);
  return options;
}

TEST_F(LaneTest, ADraftModelDoesNotChangeGreedyText) {
  const FakeOptions options{.cells = 800, .sequences = 4, .end_every = 60};
  for (const std::uint32_t differs_every : {0u, 2u, 1u}) {
    make(options);
    draft_with(draft_options(options, differs_every));
    const std::vector<std::string> prompts{"one", "another", "a third which is somewhat longer than they are"};
    for (std::size_t i = 0; i < prompts.size(); ++i) post(task(i + 1, prompts[i], 60));
    run();
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(sinks_[i + 1]->tokens, expected(prompts[i], 60));
    EXPECT_GT(lane_->stats().drafted_tokens_total.value(), 0u);
  }
}

TEST_F(LaneTest, ARightDraftModelSavesCallsAndAWrongOneIsSwitchedOff) {
  const FakeOptions options{.cells = 2000};
  const auto drafted = [&](std::uint32_t differs_every) {
    make(options);
    draft_with(draft_options(options, differs_every));
    post(task(1, "hello", 300));
    run();
    EXPECT_EQ(sinks_[1]->tokens, expected("hello", 300));
    const LaneStats& stats = lane_->stats();
    return std::tuple(stats.drafted_tokens_total.value(), stats.drafted_accepted_total.value(),
                      stats.batch_calls_total.value());
  };
  const auto [right_drafted, right_accepted, right_calls] = drafted(0);
  EXPECT_GT(right_accepted, right_drafted * 95 / 100) << "the text itself, by which other guesses come, is not always right";
  EXPECT_LT(right_calls, 100u);
  const auto [wrong_drafted, wrong_accepted, wrong_calls] = drafted(1);
  EXPECT_LT(wrong_accepted, wrong_drafted / 4);
  EXPECT_LT(wrong_drafted, 100u) << "of 300 tokens";
  const auto [half_drafted, half_accepted, half_calls] = drafted(3);
  EXPECT_GT(half_accepted, 30u);
  EXPECT_LT(half_accepted, half_drafted);
  EXPECT_LT(half_calls, wrong_calls);
}

TEST_F(LaneTest, ASessionGoesOnAfterADraftModelsWrongGuesses) {
  const FakeOptions options{.cells = 800};
  make(options);
  draft_with(draft_options(options, 3));
  std::vector<Token> chain = fake_tokens("hello");
  for (std::uint64_t turn = 1; turn <= 4; ++turn) {
    GenerationJob next = task(turn, "", 20);
    next.session = {"s"};
    next.tokens = chain;
    post(std::move(next));
    run();
    EXPECT_EQ(sinks_[turn]->tokens, fake_continuation(options, chain, 20));
    chain.insert(chain.end(), results_.at(turn).generated.begin(), results_.at(turn).generated.end());
    chain.push_back('!');
  }
}

// The chances of every text of `length` tokens by the model itself, in `chances`.
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

TEST_F(LaneTest, WithADraftModelEveryTextIsAsLikelyAsWithout) {
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
    GenerationJob next = task(id, "tell", kLength);
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

// --- Who goes first

TEST_F(LaneTest, AnInteractiveRequestTakesTheSlotOfABackgroundOneWhichResumes) {
  make({.cells = 200, .sequences = 1});
  GenerationJob nightly = task(1, "a long report", 60);
  nightly.is_background = true;
  post(std::move(nightly));
  while (sinks_[1]->tokens.size() < 5) step();
  post(task(2, "now", 5));
  while (!results_.contains(2)) step();
  EXPECT_FALSE(results_.contains(1));
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 1u);
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("a long report", 60)) << "as if nobody had interrupted it";
  EXPECT_EQ(sinks_[2]->tokens, expected("now", 5));
}

TEST_F(LaneTest, InteractiveRequestsDoNotTakeEachOthersSlots) {
  make({.cells = 200, .sequences = 1});
  post(task(1, "first", 20));
  lane_->step();
  post(task(2, "second", 5));
  run();
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 0u);
}

// Interactive work without end: the background request has its turn after 10 s, and keeps its slot for a while.
TEST_F(LaneTest, ABackgroundRequestIsNotStarved) {
  make({.cells = 200, .sequences = 1, .row_cost = std::chrono::milliseconds(20)});
  GenerationJob nightly = task(1, "report", 5);
  nightly.is_background = true;
  post(task(2, "question", 20));
  post(std::move(nightly));
  std::uint64_t id = 3;
  const TimePoint began = clock_.now();
  for (int i = 0; i < 5000 && !results_.contains(1); ++i) {
    if (lane_->stats().queue_depth.value() < 3) post(task(id++, "question", 20));
    step();
  }
  ASSERT_TRUE(results_.contains(1));
  EXPECT_GT(to_ms(clock_.now() - began), 10'000);
  EXPECT_LT(to_ms(clock_.now() - began), 15'000);
}

TEST_F(LaneTest, AClientWithManyRequestsDoesNotStarveAnother) {
  make({.cells = 200, .sequences = 1});
  for (std::uint64_t id = 1; id <= 50; ++id) {
    GenerationJob many = task(id, "one of many", 10);
    many.flow = {"tenant", 1};
    post(std::move(many));
  }
  while (results_.size() < 2) step();
  GenerationJob single = task(100, "only one", 10);
  single.flow = {"tenant", 2};
  post(std::move(single));
  while (!results_.contains(100)) step();
  EXPECT_LE(results_.size(), 5u) << "two that were done, the one that ran, the one itself, one more at most";
  run();
}

TEST_F(LaneTest, RequestsThatAskForATargetCountAsPromises) {
  make({.row_cost = std::chrono::milliseconds(5)});
  GenerationJob wants = task(1, "quick please", 4);
  wants.target_ttft_ms = 1;  // impossible: twelve rows of 5 ms
  wants.target_tbt_ms = 100;
  post(std::move(wants));
  run();
  EXPECT_EQ(lane_->stats().promises_broken_total.value(), 1u);
  EXPECT_EQ(lane_->stats().promises_kept_total.value(), 3u);
}

TEST_F(LaneTest, AWantedFirstTokenComesBeforeOthersOfTheTenantButNotBeforeATenantWithLessWork) {
  for (const bool is_of_one_tenant : {true, false}) {
    make({.cells = 4096, .sequences = 3, .row_cost = std::chrono::milliseconds(1)});
    GenerationJob stream = task(1, "a stream", 200);
    stream.flow = {"busy", 1};
    post(std::move(stream));
    for (int i = 0; i < 20; ++i) step();
    GenerationJob quiet = task(2, std::string(100, 'q'), 2);
    quiet.flow = {is_of_one_tenant ? "busy" : "quiet", 2};
    post(std::move(quiet));
    step();
    GenerationJob hurried = task(3, std::string(100, 'h'), 2);
    hurried.flow = {"busy", 1};
    hurried.target_ttft_ms = 3'600'000;
    post(std::move(hurried));
    while (sinks_[2]->tokens.empty() && sinks_[3]->tokens.empty()) step();
    EXPECT_EQ(sinks_[3]->tokens.empty(), !is_of_one_tenant);
    run();
  }
}

TEST_F(LaneTest, AWantedTimeBetweenTokensShortensTicksByHalfAtMost) {
  std::vector<std::int64_t> steps;
  for (const double wanted_ms : {0.0, 20.0, 1e-6}) {
    LaneOptions options;
    options.target_tbt_ms = 40;
    make({.cells = 4096, .sequences = 2, .row_cost = std::chrono::milliseconds(1)}, std::move(options));
    GenerationJob stream = task(1, "a stream", 400);
    stream.target_tbt_ms = wanted_ms;
    post(std::move(stream));
    for (int i = 0; i < 20; ++i) step();
    post(task(2, std::string(300, 'p'), 1));
    std::int64_t count = 0;
    for (; sinks_[2]->tokens.empty(); ++count) step();
    steps.push_back(count);
    run();
  }
  EXPECT_GT(steps[1], steps[0]);
  EXPECT_EQ(steps[2], steps[1]) << "no shorter than half";
}

TEST_F(LaneTest, ABandwidthBudgetSpacesTheTicks) {
  LaneOptions options;
  options.weights = {.always = 1'000'000};
  options.bmt_budget_gbps = 0.1;  // 100 kB a ms: a tick every 10 ms
  make({}, std::move(options));
  post(task(1, "hello", 20));
  const TimePoint began = clock_.now();
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("hello", 20));
  EXPECT_GE(to_ms(clock_.now() - began), 19 * 10);
  EXPECT_LT(to_ms(clock_.now() - began), 19 * 10 + 40);
  EXPECT_GE(lane_->stats().bytes_moved_total.value(), 20'000'000u);
}

// --- The prefill lane

class PrefillLaneTest : public LaneTest {
 protected:
  // A lane with a prefill lane beside it. Everything that takes longer than a millisecond goes there.
  void make_both(FakeOptions options) {
    options.clock = &clock_;
    options_ = options;
    model_ = std::make_unique<FakeModel>(options);
    auto context = std::make_unique<FakeContext>(options);
    context_ = context.get();
    FakeOptions one = options;
    one.sequences = 1;
    one.cells = context->shape().sequence_cells_max;
    auto beside = std::make_unique<FakeContext>(one);
    prefill_context_ = beside.get();
    LaneOptions lane_options;
    lane_options.threads = 4;
    lane_options.threads_beside_prefill = 1;
    lane_options.target_tbt_ms = 1.5;
    lane_ = std::make_unique<Lane>(std::move(lane_options), std::move(context), std::move(beside), model_->vocab(), clock_,
                                   [this](GenerationResult result) { results_[result.id.value] = std::move(result); });
  }

  // Starts a stream and a prompt that goes to the prefill lane beside it.
  void start_both(std::int32_t stream_tokens = 40) {
    post(task(1, "a stream", stream_tokens));
    while (sinks_[1]->tokens.size() < 3) step();
    post(task(2, kLong, 6));
    lane_->step();
  }

  void run_both() {
    for (int i = 0; i < 10'000 && !lane_->is_idle(); ++i) {
      const bool prefilled = lane_->prefill_lane()->step().did_work;
      const StepOutcome outcome = lane_->step();
      lane_->check_invariants();
      lane_->prefill_lane()->check_invariants();
      if (!prefilled && !outcome.did_work && !lane_->is_idle()) clock_.advance(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(lane_->is_idle());
  }

  const std::string kLong = std::string(90, 'x') + "what is this?";
  FakeContext* prefill_context_ = nullptr;
};

TEST_F(PrefillLaneTest, ALongPromptIsComputedBesideAStream) {
  make_both({.cells = 800, .sequences = 4});
  start_both();
  EXPECT_TRUE(lane_->prefill_lane()->step().did_work);
  EXPECT_EQ(prefill_context_->threads(), 3);
  const std::size_t before = sinks_[1]->tokens.size();
  for (int i = 0; i < 5; ++i) lane_->step();
  EXPECT_EQ(sinks_[1]->tokens.size(), before + 5) << "the stream goes on, a token a tick";
  EXPECT_EQ(context_->threads(), 1);
  run_both();
  EXPECT_EQ(sinks_[1]->tokens, expected("a stream", 40));
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
  EXPECT_EQ(lane_->stats().handover.count(), 1u);
  EXPECT_EQ(context_->sequence_length(1), 0) << "one-shot requests leave nothing behind";
}

TEST_F(PrefillLaneTest, StreamsHaveATickBeforeAComputedPromptJoinsThem) {
  make_both({.cells = 800, .sequences = 4});
  start_both();
  while (lane_->stats().handover.count() == 0) {
    (void)lane_->prefill_lane()->step();
    const std::size_t before = sinks_[1]->tokens.size();
    step();
    if (lane_->stats().handover.count() == 0) continue;
    EXPECT_TRUE(sinks_[2]->tokens.empty()) << "its first token waits for their tick";
    EXPECT_EQ(sinks_[1]->tokens.size(), before + 1);
  }
  step();
  EXPECT_FALSE(sinks_[2]->tokens.empty());
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
}

TEST_F(PrefillLaneTest, ACancelledPromptLeavesBothLanesEmpty) {
  make_both({.cells = 800, .sequences = 4});
  start_both();
  EXPECT_TRUE(lane_->prefill_lane()->step().did_work);
  lane_->post(CancelCommand{RequestId{2}});
  lane_->step();
  EXPECT_EQ(eos(2).reason, FinishReason::cancelled);
  lane_->prefill_lane()->step();
  EXPECT_EQ(prefill_context_->sequence_length(0), 0);
  run_both();
  EXPECT_EQ(sinks_[1]->tokens, expected("a stream", 40));
}

TEST_F(PrefillLaneTest, AFailedPromptIsComputedInTheContextItself) {
  make_both({.cells = 800, .sequences = 4});
  prefill_context_->fault = [](std::span<const llm::BatchRow>) { return FakeFault::decode_error; };
  start_both();
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
  EXPECT_EQ(lane_->stats().handover.count(), 0u);
}

TEST_F(PrefillLaneTest, AShorterPromptTakesThePlaceOfALongerOne) {
  make_both({.cells = 1600, .sequences = 4});
  post(task(1, "a stream", 60));
  while (sinks_[1]->tokens.size() < 3) step();
  const std::string longest(350, 'y');
  post(task(2, longest, 6));
  lane_->step();
  EXPECT_TRUE(lane_->prefill_lane()->step().did_work);
  EXPECT_GT(prefill_context_->sequence_length(0), 0);
  post(task(3, kLong, 6));
  lane_->step();
  while (sinks_[3]->tokens.empty()) {
    lane_->prefill_lane()->step();
    lane_->prefill_lane()->check_invariants();
    lane_->step();
  }
  EXPECT_TRUE(sinks_[2]->tokens.empty());
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(longest, 6));
  EXPECT_EQ(sinks_[3]->tokens, expected(kLong, 6));
}

// --- A full context
// -------------------------------------------------------------------------------------------------------------

TEST_F(LaneTest, AReplyThatFillsTheContextDropsTheOldestTurnsAndGoesOn) {
  struct Kind {
    FakeOptions model;
    bool is_reproducible = false;
    std::int64_t shifts = 0;
  };
  const FakeOptions split{.cells = 160, .sequences = 4};
  const FakeOptions unified{.cells = 40, .sequences = 4, .unified = true};
  FakeOptions no_shift = split;
  no_shift.can_shift = false;
  FakeOptions no_cut = split;
  no_cut.can_truncate = false;
  for (const Kind& kind : {Kind{split, false, 2}, Kind{unified, false, 2}, Kind{no_shift}, Kind{no_cut}, Kind{split, true}}) {
    LaneOptions options;
    options.is_reproducible = kind.is_reproducible;
    make(kind.model, std::move(options));
    post(turns_task(1));
    run();
    const RecordingSink& sink = *sinks_[1];
    // Full at 40 tokens; a quarter of them is freed, or what there is.
    ASSERT_EQ(sink.shifts.size(), 2u);
    EXPECT_EQ(sink.shifts[0].after, 4u);
    EXPECT_EQ(sink.shifts[0].told.dropped_turns, 2);
    EXPECT_EQ(sink.shifts[0].told.dropped_tokens, 20);
    EXPECT_EQ(sink.shifts[1].after, 24u);
    EXPECT_EQ(sink.shifts[1].told.dropped_turns, 1);
    EXPECT_EQ(sink.shifts[1].told.dropped_tokens, 8);
    EXPECT_EQ(sink.tokens.size(), 32u) << "the turn under way stays, and ends the reply";
    EXPECT_EQ(eos(1).reason, FinishReason::length);
    EXPECT_EQ(eos(1).usage.prompt_tokens, 36);
    EXPECT_EQ(eos(1).usage.dropped_turns, 3);
    EXPECT_EQ(eos(1).usage.dropped_tokens, 28);
    EXPECT_EQ(results_.at(1).dropped_turns, 3);
    EXPECT_EQ(context_->shifts(), kind.shifts);
    EXPECT_EQ(sink.tokens, expected_with_shifts(1, fake_tokens(kTurns)));
    EXPECT_EQ(results_.at(1).generated, sink.tokens);
  }
}

TEST_F(LaneTest, InputThatDoesNotFitDropsTurnsBeforeItBegins) {
  for (const bool is_hot : {true, false}) {
    make({.cells = 160, .sequences = 4});
    std::vector<Token> chain = fake_tokens(kTurns);
    if (is_hot) {
      GenerationJob before = turns_task(1, kTurns, 2);
      post(std::move(before));
      run();
      chain.insert(chain.end(), results_.at(1).generated.begin(), results_.at(1).generated.end());
    } else {
      chain.insert(chain.end(), {'x', 'y'});
    }
    const std::vector<Token> input = fake_tokens("more input");
    chain.insert(chain.end(), input.begin(), input.end());
    GenerationJob next = turns_task(2, "", 5);
    next.tokens = chain;
    next.droppable.turns_begin.push_back(38);
    post(std::move(next));
    run();
    ASSERT_EQ(sinks_[2]->shifts.size(), 1u);
    EXPECT_EQ(sinks_[2]->shifts[0].after, 0u);
    EXPECT_EQ(sinks_[2]->shifts[0].told.dropped_tokens, 20) << "48 tokens become 35, which leaves room for 5";
    EXPECT_EQ(sinks_[2]->tokens, expected_with_shifts(2, chain));
    EXPECT_EQ(eos(2).usage.prompt_tokens, 28);
    EXPECT_EQ(eos(2).usage.reused_tokens, is_hot ? 37 - 20 : 0);
    EXPECT_EQ(eos(2).usage.reuse_reason, is_hot ? "shifted" : "not_cached");
    EXPECT_EQ(context_->moved_cells(0) > 0, is_hot);
  }
}

// What was moved up says something else than what is computed anew, so nobody else may go on from it.
TEST_F(LaneTest, CellsThatWereMovedUpAreNeitherSharedNorSaved) {
  for (const bool unified : {false, true}) {
    kv::StateStore store({.warm_bytes_max = 100'000}, nullptr, clock_);
    LaneOptions options;
    options.store = &store;
    options.stored_tokens_min = 4;
    make({.cells = unified ? 320 : 640, .sequences = 4, .unified = unified}, std::move(options));
    const std::int32_t cells = lane_->shape().sequence_cells_max;
    const std::string first(static_cast<std::size_t>(cells) / 4 * 3, 'f');
    const std::string second(static_cast<std::size_t>(cells) / 8, 's');
    GenerationJob fills = task(1, first + second, cells);
    fills.session = {"s"};
    fills.flow.tenant = "a";
    fills.droppable = {.keep = 20, .turns_begin = {cells / 4 * 3}};
    post(std::move(fills));
    for (int i = 0; i < 10'000 && sinks_[1]->shifts.empty(); ++i) step();
    for (int i = 0; i < 5; ++i) step();
    lane_->post(CancelCommand{RequestId{1}});
    run();
    ASSERT_EQ(context_->shifts(), 1);
    std::vector<Token> chain = fake_tokens(first.substr(0, 20) + second);
    chain.insert(chain.end(), results_.at(1).generated.begin(), results_.at(1).generated.end());

    GenerationJob own = task(2, "", 3);
    own.flow.tenant = "a";
    own.session = {"s"};
    own.tokens = chain;
    own.tokens.push_back('?');
    post(std::move(own));
    run();
    EXPECT_EQ(eos(2).usage.reuse_reason, "shifted");
    EXPECT_EQ(eos(2).usage.reused_tokens, static_cast<std::int32_t>(chain.size()) - 1);
    GenerationJob other = task(3, "", 3);
    other.flow.tenant = "a";
    other.tokens = chain;
    post(std::move(other));
    run();
    EXPECT_EQ(eos(3).usage.reused_tokens, 20) << "the beginning was not moved";
    GenerationJob fork = task(4, "", 3);
    fork.flow.tenant = "a";
    fork.session = {"fork"};
    fork.forked_from = {"s"};
    fork.tokens = chain;
    fork.tokens.push_back('!');
    post(std::move(fork));
    run();
    EXPECT_NE(eos(4).usage.reuse_reason, "shifted");
    lane_->close();
    lane_->cancel_all();
    EXPECT_EQ(store.states_of({"s"}).tier, Tier::none) << "it is computed again from its tokens";
    EXPECT_EQ(store.states_of({"fork"}).tier, Tier::warm);
  }
}

TEST_F(LaneTest, CellsThatAForkSharesAreNotMoved) {
  make({.cells = 40, .sequences = 4, .unified = true});
  post(turns_task(1, kTurns, 1));
  run();
  std::vector<Token> chain = fake_tokens(kTurns);
  chain.push_back(results_.at(1).generated.at(0));
  GenerationJob fork = task(2, "", 2);
  fork.session = {"fork"};
  fork.flow.tenant = "a";
  fork.forked_from = {"s"};
  fork.tokens = chain;
  post(std::move(fork));
  run();
  EXPECT_EQ(eos(2).usage.tier, Tier::hot);
  GenerationJob parent = turns_task(3, "", 20);
  parent.tokens = chain;
  post(std::move(parent));
  run();
  EXPECT_EQ(sinks_[3]->shifts.size(), 1u);
  EXPECT_EQ(sinks_[3]->tokens, expected_with_shifts(3, chain));
  EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 2));
}

TEST_F(LaneTest, AClientThatCannotBeToldWhatWasDroppedLosesItsStream) {
  make({.cells = 160, .sequences = 4});
  GenerationJob told = turns_task(1);
  sinks_[1]->accepts_shifts = false;
  post(std::move(told));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::slow_consumer);
  EXPECT_EQ(eos(1).usage.dropped_turns, 2);
  EXPECT_EQ(results_.at(1).dropped_turns, 2) << "its chain goes on from there";
  EXPECT_EQ(results_.at(1).generated.size(), 4u);
}

// --- How likely the tokens were

std::vector<Token> chosen_of(const std::vector<TokenLogprobs>& logprobs) {
  std::vector<Token> tokens;
  for (const TokenLogprobs& place : logprobs) tokens.push_back(place.chosen.token);
  return tokens;
}

TEST_F(LaneTest, TellsHowLikelyTheTokensWereAndSamplesTheSame) {
  std::map<std::uint64_t, std::vector<std::vector<float>>> rows;
  LaneOptions options;
  options.on_logits = [&](RequestId id, std::span<const float> logits) {
    rows[id.value].emplace_back(logits.begin(), logits.end());
  };
  make({}, options);
  GenerationJob one = task(1, "once upon");
  one.sampling.repeat_penalty = 1.5;
  one.sampling.temperature = 0.8;
  one.seed = 3;
  GenerationJob two = one;
  two.id = RequestId{2};
  sinks_[2] = std::make_shared<RecordingSink>();
  two.sink = sinks_[2];
  two.reply.logprobs = 3;
  post(std::move(one));
  post(std::move(two));
  run();
  EXPECT_EQ(sinks_[2]->tokens, sinks_[1]->tokens);
  EXPECT_TRUE(sinks_[1]->logprobs.empty());
  EXPECT_EQ(chosen_of(sinks_[2]->logprobs), sinks_[2]->tokens);
  for (std::size_t i = 0; i < sinks_[2]->logprobs.size(); ++i) {
    const TokenLogprobs& place = sinks_[2]->logprobs[i];
    ASSERT_EQ(place.top.size(), 3U);
    const TokenLogprobs by_row = llm::logprobs_of(rows[2][i], place.chosen.token, 3, model_->vocab());
    EXPECT_EQ(place.chosen.logprob, by_row.chosen.logprob) << "of the model's own logits, whatever the sampler made of them";
    EXPECT_EQ(place.top[0].token, by_row.top[0].token);
  }
}

TEST_F(LaneTest, DoesNotTellHowLikelyTheTokensOfAStopStringWere) {
  make({});
  const std::vector<Token> all = expected("once upon", 8);
  std::string text;
  for (const Token token : all) text += static_cast<char>(token);
  for (const bool streams : {true, false}) {
    const std::uint64_t id = streams ? 1 : 2;
    GenerationJob made = task(id, "once upon", 8);
    made.reply.stream = streams;
    made.reply.logprobs = 0;
    made.reply.stop = {text.substr(3, 3)};
    post(std::move(made));
    run();
    const std::size_t shown = text.find(text.substr(3, 3));
    const std::vector<Token> wanted(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shown));
    if (streams) {
      EXPECT_EQ(chosen_of(sinks_[id]->logprobs), wanted);
      EXPECT_TRUE(eos(id).logprobs.empty());
    } else {
      EXPECT_TRUE(sinks_[id]->logprobs.empty());
      EXPECT_EQ(chosen_of(eos(id).logprobs), wanted);
    }
  }
}

TEST_F(LaneTest, TellsTheRestWithTheEnd) {
  make({});
  const std::vector<Token> all = expected("once upon", 4);
  GenerationJob made = task(1, "once upon", 4);
  made.reply.logprobs = 0;
  made.reply.stop = {std::string(1, static_cast<char>(all[3])) + "never"};  // holds the last token back
  post(std::move(made));
  run();
  std::vector<Token> told = chosen_of(sinks_[1]->logprobs);
  EXPECT_EQ(told.size(), 3U);
  for (const Token token : chosen_of(eos(1).logprobs)) told.push_back(token);
  EXPECT_EQ(told, all);
}

TEST_F(LaneTest, GuessesChangeNothingOfHowLikelyTheTokensWere) {
  LaneOptions plain;
  plain.speculates = false;
  make({}, plain);
  GenerationJob alone = task(1, "abcabcabc", 12);
  alone.reply.logprobs = 2;
  post(std::move(alone));
  run();
  const std::vector<TokenLogprobs> without = sinks_[1]->logprobs;
  const std::vector<Token> right = sinks_[1]->tokens;
  LaneOptions guessing;
  guessing.guess = [&](std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft) {
    const std::size_t said = chain.size() - 9;
    for (std::size_t i = said; i < right.size() && std::ssize(draft) < count; ++i) draft.push_back(right[i] + (i % 5 == 4));
  };
  make({}, guessing);
  GenerationJob guessed = task(2, "abcabcabc", 12);
  guessed.reply.logprobs = 2;
  post(std::move(guessed));
  run();
  EXPECT_GT(lane_->stats().drafted_accepted_total.value(), 0U);
  ASSERT_EQ(chosen_of(sinks_[2]->logprobs), right);
  for (std::size_t i = 0; i < without.size(); ++i) {
    EXPECT_EQ(sinks_[2]->logprobs[i].chosen.logprob, without[i].chosen.logprob);
  }
}

// --- Values that are not finite

// A session's cells, in a slot or stored, in either layout: its reply is right all the same, and so is what comes into the
// cells next and what runs beside it.
TEST_F(LaneTest, CellsThatAreNotFiniteAreComputedAnewAndSpoilNothing) {
  for (const bool unified : {false, true}) {
    SCOPED_TRACE(unified);
    kv::StateStore store({.warm_bytes_max = 100'000}, nullptr, clock_);
    LaneOptions options;
    options.store = &store;
    options.stored_tokens_min = 4;
    make({.cells = unified ? 320 : 640, .sequences = 4, .unified = unified}, options);
    std::vector<Token> chain = run_turn("a turn of some length", 8);
    chain.push_back('?');
    post(task(3, "another that runs", 30));
    for (int i = 0; i < 8; ++i) step();
    context_->spoil(0, 3);
    post(next_turn(2, chain));
    run();
    EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 8));
    EXPECT_EQ(sinks_[3]->tokens, fake_continuation(options_, fake_tokens("another that runs"), 30));
    EXPECT_EQ(eos(2).usage.reuse_reason, "refused");
    EXPECT_EQ(eos(2).usage.reused_tokens, 0);
    EXPECT_EQ(eos(2).usage.recomputed_tokens, eos(2).usage.prompt_tokens);
    EXPECT_GE(lane_->stats().not_finite_total.value(), 1u);
    for (std::uint64_t id = 4; id < 12; ++id) post(task(id, "and more " + std::to_string(id), 8));
    run();
    for (std::uint64_t id = 4; id < 12; ++id) {
      EXPECT_EQ(sinks_[id]->tokens, expected("and more " + std::to_string(id)));
    }
    EXPECT_EQ(lane_->stats().requests_failed_total.value(), 0u);
  }
}

TEST_F(LaneTest, WhatIsNotFiniteIsNotKeptByOneThatMakesRoomInTheSameStep) {
  make({.cells = 320, .sequences = 4, .unified = true});
  GenerationJob stream = task(1, "a stream", 40);
  stream.is_background = true;
  post(std::move(stream));
  while (sinks_[1]->tokens.size() < 5) step();
  post(task(2, "a prompt beside it", 5));
  // The stream's row is spoiled; then the prompt has no room, for which the stream has to go.
  int calls = 0;
  context_->fault = [&calls](std::span<const llm::BatchRow>) {
    ++calls;
    return calls == 1 ? testing::FakeFault::not_finite : calls == 2 ? testing::FakeFault::no_room : testing::FakeFault::none;
  };
  run();
  EXPECT_GE(calls, 2);
  EXPECT_EQ(lane_->stats().not_finite_total.value(), 1u) << "what was kept of it did not come back";
  EXPECT_EQ(sinks_[1]->tokens, expected("a stream", 40));
  EXPECT_EQ(sinks_[2]->tokens, expected("a prompt beside it", 5));
}

TEST_F(LaneTest, AModelWhoseNumbersAreNeverFiniteEndsRepliesWithAnError) {
  make({.cells = 640, .sequences = 4});
  context_->fault = [](std::span<const llm::BatchRow>) { return testing::FakeFault::not_finite; };
  post(task(1, "hello", 8));
  run();
  const auto* failure = std::get_if<FailureEvent>(&results_.at(1).terminal);
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->error.code, ErrorCode::runtime_decode);
  EXPECT_EQ(lane_->stats().not_finite_total.value(), 2u) << "once more from its tokens, then no more";
  context_->fault = nullptr;
  post(task(2, "hello", 8));
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected("hello")) << "nothing is left of it";
}

// --- What is reused is computed anew, now and then

TEST_F(LaneTest, AWrongReuseIsFoundAndComputedAgain) {
  for (const bool unified : {false, true}) {
    for (const std::int32_t every : {0, 1}) {
      make({.cells = unified ? 320 : 640, .sequences = 4, .unified = unified, .has_spare = every > 0}, verifying(every));
      std::vector<Token> chain = run_turn("a turn of some length", 8);
      chain.push_back('?');
      context_->damage(0, 3);
      post(next_turn(2, chain));
      run();
      const bool is_right = sinks_[2]->tokens == fake_continuation(options_, chain, 8);
      EXPECT_EQ(is_right, every == 1) << "a damaged cell changes what is said";
      EXPECT_EQ(lane_->stats().reuses_wrong_total.value(), every == 1 ? 1u : 0u);
      EXPECT_EQ(eos(2).usage.reuse_reason, every == 1 ? "refused" : "hot");
      EXPECT_EQ(eos(2).usage.reused_tokens + eos(2).usage.recomputed_tokens, eos(2).usage.prompt_tokens);
      EXPECT_EQ(lane_->stats().cells_used.value(), static_cast<std::int64_t>(chain.size()) + 7);
    }
  }
}

TEST_F(LaneTest, AStoredStateThatIsWrongIsThrownAway) {
  kv::StateStore store({.warm_bytes_max = 100'000}, nullptr, clock_);
  LaneOptions options = verifying(1);
  options.store = &store;
  options.stored_tokens_min = 4;
  options.eviction = kv::EvictionOrder::lru;
  make({.cells = 160, .sequences = 2, .has_spare = true}, options);
  std::vector<Token> chain = run_turn("a turn of some length", 8);
  context_->damage(0, 3);
  for (std::uint64_t id = 2; id < 4; ++id) {  // which take both slots
    GenerationJob other = task(id, "something else " + std::to_string(id), 8);
    other.session = {std::to_string(id)};
    post(std::move(other));
    run();
  }
  ASSERT_EQ(store.states_of({"s"}).tier, Tier::warm);
  chain.push_back('?');
  GenerationJob another = task(4, "", 8);  // not of the session, whose state would leave the store as it comes back
  another.tokens = chain;
  post(std::move(another));
  run();
  EXPECT_EQ(sinks_[4]->tokens, fake_continuation(options_, chain, 8));
  EXPECT_EQ(eos(4).usage.reuse_reason, "refused");
  EXPECT_EQ(lane_->stats().reuses_wrong_total.value(), 1u);
  EXPECT_EQ(store.states_of({"s"}).tier, Tier::none);
}

TEST_F(LaneTest, ARequestThatLeavesWhileItsReuseIsVerifiedLeavesNothingBehind) {
  make({.cells = 640, .sequences = 2, .batch_rows_max = 8, .unified = true, .has_spare = true}, verifying(1));
  const std::string prompt(100, 'p');
  std::vector<Token> chain = run_turn(prompt, 8);
  chain.push_back('?');
  const std::int64_t cells = lane_->stats().cells_used.value();
  post(next_turn(2, chain));
  for (int i = 0; i < 100 && lane_->stats().cells_used.value() == cells; ++i) step();
  ASSERT_GT(lane_->stats().cells_used.value(), cells) << "the spare sequence has some";
  lane_->post(CancelCommand{RequestId{2}});
  run();
  EXPECT_EQ(eos(2).reason, FinishReason::cancelled);
  EXPECT_EQ(lane_->stats().cells_used.value(), cells);
  EXPECT_EQ(lane_->stats().reuses_verified_total.value(), 0u);
}

// Verification takes only cells that nobody else wants.
TEST_F(LaneTest, AVerificationGivesItsCellsToRequests) {
  make({.cells = 160, .sequences = 3, .batch_rows_max = 8, .unified = true, .has_spare = true}, verifying(1));
  const std::string prompt(60, 'p');
  std::vector<Token> chain = run_turn(prompt, 4);
  chain.push_back('?');
  post(next_turn(2, chain));
  step();
  post(task(3, std::string(70, 'q'), 8));
  run();
  EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 8));
  EXPECT_EQ(sinks_[3]->tokens, expected(std::string(70, 'q')));
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 0u);
  EXPECT_EQ(lane_->stats().requests_failed_total.value(), 0u);
}

}  // namespace
}  // namespace uma::engine
