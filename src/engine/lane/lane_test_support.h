// A lane on a FakeModel, stepped by the test: the fixture of the tests of the lane and its parts.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane.h"
#include "engine/lane/move/state_transfer.h"
#include "testing/fake_cold_store.h"
#include "testing/fake_model.h"
#include "testing/recording_sink.h"
#include "testing/sim_clock.h"

namespace uma::engine {

using testing::fake_continuation;
using testing::fake_tokens;
using testing::FakeColdStore;
using testing::FakeContext;
using testing::FakeFault;
using testing::FakeModel;
using testing::FakeOptions;
using testing::RecordingSink;
using testing::SimClock;

class LaneTest : public ::testing::Test {
 protected:
  // `prefill`: the context of a prefill lane; null: there is none.
  void make(FakeOptions options, LaneOptions lane_options = {}, std::unique_ptr<FakeContext> prefill = nullptr) {
    options.clock = &clock_;
    options_ = options;
    model_ = std::make_unique<FakeModel>(options);
    auto context = std::make_unique<FakeContext>(options);
    context_ = context.get();
    lane_ = std::make_unique<Lane>(std::move(lane_options), std::move(context), std::move(prefill), model_->vocab(), clock_,
                                   [this](GenerationResult result) { results_[result.id.value] = std::move(result); });
  }

  // --- Jobs, each with a sink of its own

  GenerationJob job(std::uint64_t id, std::string_view prompt, std::int32_t tokens_max = 8) {
    GenerationJob made;
    made.id = RequestId{id};
    made.tokens = fake_tokens(prompt);
    made.tokens_max = tokens_max;
    made.received = clock_.now();
    sinks_[id] = std::make_shared<RecordingSink>();
    made.sink = sinks_[id];
    return made;
  }
  static GenerationJob of_session(const std::string& session, GenerationJob job) {
    job.session = SessionId{session};
    return job;
  }
  static GenerationJob of_tenant(const std::string& tenant, GenerationJob job) {
    job.flow.tenant = tenant;
    return job;
  }
  GenerationJob next_turn(std::uint64_t id, const std::vector<Token>& chain, std::int32_t tokens_max = 8) {
    GenerationJob next = of_session("s", job(id, "", tokens_max));
    next.tokens = chain;
    return next;
  }
  void post(GenerationJob made) {
    chains_[made.id.value] = made.tokens;
    lane_->stats().queue_depth.add(1);
    lane_->post(StartCommand{std::move(made)});
  }
  // The first turn of session "s". Returns its tokens.
  std::vector<Token> run_turn(std::string_view prompt, std::int32_t tokens_max = 8) {
    post(of_session("s", job(1, prompt, tokens_max)));
    run();
    return chain_after(1);
  }

  // --- Steps

  // Makes one step; if it has no work, advances the clock to the next wake.
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

  // --- Results

  // The model's continuation of the prompt.
  std::vector<Token> expected(std::string_view prompt, std::int32_t tokens_max = 8) {
    return fake_continuation(options_, fake_tokens(prompt), tokens_max);
  }
  // The tokens of an ended request: its prompt and the generated ones.
  std::vector<Token> chain_after(std::uint64_t id) {
    std::vector<Token> chain = chains_.at(id);
    const std::vector<Token>& generated = results_.at(id).generated;
    chain.insert(chain.end(), generated.begin(), generated.end());
    return chain;
  }
  // The event at the end of a request; throws if the request ended otherwise.
  const EosEvent& eos(std::uint64_t id) { return std::get<EosEvent>(results_.at(id).terminal); }
  const Error& error(std::uint64_t id) { return std::get<FailureEvent>(results_.at(id).terminal).error; }

  SimClock clock_;
  FakeOptions options_;
  std::unique_ptr<FakeModel> model_;
  FakeContext* context_ = nullptr;
  std::unique_ptr<Lane> lane_;
  std::map<std::uint64_t, std::vector<Token>> chains_;
  std::map<std::uint64_t, GenerationResult> results_;
  std::map<std::uint64_t, std::shared_ptr<RecordingSink>> sinks_;
};

// A lane with a state store.
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
    GenerationJob asked = job(id, prompt);
    asked.session = SessionId{session};
    asked.flow.tenant = tenant;
    asked.is_ephemeral = is_ephemeral;
    asked.is_public = is_public;
    post(std::move(asked));
    run();
    EXPECT_EQ(sinks_[id]->tokens, expected(prompt));
    return eos(id);
  }

  // Memory for one state that a request with kPrompt leaves, but not for two.
  std::uint64_t state_memory() const {
    return prompt_reservation_bytes(context_->shape(), static_cast<std::int32_t>(kPrompt.size()) + 8);
  }
  void work_on_disk() {
    while (store_.step()) {
    }
  }

  kv::StateStore store_{{.warm_bytes_max = 1 << 20, .cold_bytes_max = 1 << 20}, std::make_unique<FakeColdStore>(), clock_};
  const std::string kPrompt = "the beginning of a conversation";
};

}  // namespace uma::engine
