// A reply does not depend on where the beginning of its chain was: on the real library the logits after a restore equal those
// of a session that never left the context, and those after another batch shape are close.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/random.h"
#include "engine/lane/lane.h"
#include "llm/llama_model.h"
#include "testing/fake_cold_store.h"
#include "testing/recording_sink.h"

namespace uma::engine {
namespace {

using Logits = std::vector<float>;

// The largest difference that rounding in other batch shapes makes in the logits of this model; one wrong token makes a larger
// one.
constexpr double kRounding = 0.05;

struct Answer {
  Logits first;  // The logits of its first token.
  std::vector<Token> tokens;
  Usage usage;
};

class StoredState : public ::testing::TestWithParam<llm::KvLayout> {
 protected:
  static const llm::Model& model() {
    static const std::shared_ptr<const llm::Model> loaded = [] {
      const char* path = std::getenv("UMA_TEST_MODEL");
      UMA_CHECK(path != nullptr);  // script/test sets it.
      return llm::load_llama_model(path, {}).value();
    }();
    return *loaded;
  }

  static std::vector<Token> random_tokens(std::uint64_t seed, std::size_t count) {
    Random random(seed);
    std::vector<Token> tokens(count);
    const auto vocabulary = static_cast<std::uint64_t>(model().vocab().size());
    for (Token& token : tokens) token = static_cast<Token>(5 + random.next_below(vocabulary - 5));
    return tokens;
  }

  void make_store(std::uint64_t warm_bytes) {
    store_ = std::make_unique<kv::StateStore>(
        kv::StoreOptions{.warm_bytes_max = warm_bytes, .cold_bytes_max = std::uint64_t{1} << 30},
        std::make_unique<testing::FakeColdStore>(), clock_);
  }

  void make_lane() {
    LaneOptions options;
    options.store = store_.get();
    options.speculates = false;
    options.on_logits = [this](RequestId id, std::span<const float> logits) {
      Answer& answer = answers_[id.value];
      if (answer.first.empty()) answer.first.assign(logits.begin(), logits.end());
    };
    auto context = model().new_context({.cells = 4096, .sequences = 4, .threads = 1, .layout = GetParam()}).value();
    lane_ = std::make_unique<Lane>(std::move(options), std::move(context), nullptr, model().vocab(), clock_,
                                   [this](GenerationResult result) {
                                     Answer& answer = answers_[result.id.value];
                                     answer.tokens = std::move(result.generated);
                                     answer.usage = std::get<EosEvent>(result.terminal).usage;
                                     ++ended_;
                                   });
  }

  Answer ask(const std::string& session, std::vector<Token> chain, const std::string& forked_from = "") {
    GenerationJob job;
    job.id = RequestId{++last_id_};
    job.session = SessionId{session};
    job.forked_from = SessionId{forked_from};
    job.flow.tenant = tenant_;
    job.is_public = is_public_;
    job.tokens = std::move(chain);
    job.tokens_max = 12;
    job.sampling.ignore_eos = true;
    job.received = clock_.now();
    job.sink = std::make_shared<testing::RecordingSink>();
    lane_->stats().queue_depth.add(1);
    lane_->post(StartCommand{std::move(job)});
    const int before = ended_;
    for (int i = 0; ended_ == before && i < 100'000; ++i) {
      store_->step();
      const StepOutcome outcome = lane_->step();
      if (!outcome.did_work && ended_ == before) (void)lane_->wait(std::min(outcome.wake, clock_.now() + from_ms(1)));
    }
    EXPECT_EQ(ended_, before + 1);
    return answers_[last_id_];
  }

  // Stores all states of the lane and makes a new lane.
  void restart_lane() {
    lane_->close();
    lane_->cancel_all();
    make_lane();
  }

  static double distance(const Logits& a, const Logits& b) {
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, static_cast<double>(std::abs(a[i] - b[i])));
    return worst;
  }

  // Runs a session's first turn and returns the chain of its second, whose input is short enough to be computed in one call.
  std::vector<Token> first_turn(const std::string& session) {
    std::vector<Token> chain = random_tokens(1, 150);
    const Answer answer = ask(session, chain);
    chain.insert(chain.end(), answer.tokens.begin(), answer.tokens.end());
    for (const Token token : random_tokens(2, 5)) chain.push_back(token);
    return chain;
  }

  SteadyClock clock_;
  std::unique_ptr<kv::StateStore> store_;
  std::unique_ptr<Lane> lane_;
  std::map<std::uint64_t, Answer> answers_;
  std::string tenant_ = "a";
  bool is_public_ = false;
  std::uint64_t last_id_ = 0;
  int ended_ = 0;
};

TEST_P(StoredState, AfterARestoreTheLogitsAreThoseOfASessionThatNeverLeft) {
  Answer hot;
  for (const Tier tier : {Tier::hot, Tier::warm, Tier::cold}) {
    make_store(std::uint64_t{1} << 30);
    make_lane();
    const std::vector<Token> chain = first_turn("s");
    if (tier != Tier::hot) restart_lane();
    if (tier == Tier::cold) store_->save_all(kNever);
    const Answer answer = ask("s", chain);
    EXPECT_EQ(answer.usage.tier, tier);
    EXPECT_EQ(answer.usage.reuse_reason, tier_name(tier));
    EXPECT_EQ(answer.usage.reused_tokens, 150 + 11);
    if (tier == Tier::hot) {
      hot = answer;
    } else {
      EXPECT_EQ(distance(answer.first, hot.first), 0) << tier_name(tier);
      EXPECT_EQ(answer.tokens, hot.tokens);
    }
  }
}

TEST_P(StoredState, AForkSharesItsParentsStateAndSaysTheSame) {
  make_store(std::uint64_t{1} << 30);
  make_lane();
  const std::vector<Token> chain = first_turn("parent");
  const std::int64_t before = lane_->stats().cells_used.value();
  const Answer child = ask("child", chain, "parent");
  EXPECT_EQ(child.usage.tier, Tier::hot);
  EXPECT_EQ(child.usage.reused_tokens, 150 + 11);
  if (GetParam() == llm::KvLayout::unified) {
    EXPECT_EQ(lane_->stats().cells_used.value(), before + 6 + 11) << "the parent's cells are shared";
  }
  const Answer parent = ask("parent", chain);
  EXPECT_EQ(distance(child.first, parent.first), 0);
  lane_->check_invariants();
}

TEST_P(StoredState, WhatOthersHaveComputedIsSharedAndClose) {
  make_store(std::uint64_t{1} << 30);
  make_lane();
  const std::vector<Token> shared = random_tokens(7, 200);
  const auto with_end = [&](std::uint64_t seed) {
    std::vector<Token> chain = shared;
    for (const Token token : random_tokens(seed, 30)) chain.push_back(token);
    return chain;
  };
  const Answer first = ask("", with_end(11));
  EXPECT_EQ(first.usage.reused_tokens, 0);
  const Answer from_slot = ask("", with_end(12));
  EXPECT_EQ(from_slot.usage.reused_tokens, 200);
  EXPECT_EQ(from_slot.usage.reuse_reason, "prefix");
  restart_lane();
  const Answer from_store = ask("", with_end(13));
  EXPECT_EQ(from_store.usage.tier, Tier::warm);
  EXPECT_EQ(from_store.usage.reused_tokens, 200);
  // One request alone, with nothing to reuse.
  make_store(0);
  make_lane();
  const Answer alone = ask("", with_end(12));
  EXPECT_LT(distance(alone.first, from_slot.first), kRounding);
  make_lane();
  EXPECT_LT(distance(ask("", with_end(13)).first, from_store.first), kRounding);
  std::vector<Token> other = with_end(12);
  ++other[100];
  EXPECT_GT(distance(ask("", other).first, alone.first), kRounding) << "a wrong token in the middle is seen";
}

TEST_P(StoredState, AReceiptSaysWhoHadComputedWhatIsReused) {
  make_store(std::uint64_t{1} << 30);
  make_lane();
  ask("s", random_tokens(1, 100));
  ask("", random_tokens(2, 200));
  std::vector<Token> chain = random_tokens(2, 200);
  for (const Token token : random_tokens(3, 5)) chain.push_back(token);
  const Answer answer = ask("s", chain);
  EXPECT_EQ(answer.usage.tier, Tier::hot);
  EXPECT_EQ(answer.usage.reused_tokens, 200);
  EXPECT_EQ(answer.usage.reuse_reason, "prefix") << "its own slot held something else";
}

TEST_P(StoredState, TenantsShareNothingButWhatIsPublic) {
  make_store(std::uint64_t{1} << 30);
  make_lane();
  const auto chain = [&](bool is_public, std::uint64_t end) {
    std::vector<Token> tokens = random_tokens(is_public ? 21 : 22, 200);
    for (const Token token : random_tokens(end, 30)) tokens.push_back(token);
    return tokens;
  };
  // A one-shot request and a session of each tenant, first private and then public.
  for (const bool is_public : {false, true}) {
    is_public_ = is_public;
    ask(is_public ? "p" : "s", chain(is_public, 31));
    if (!is_public) ask("", chain(is_public, 32));
  }
  is_public_ = false;
  tenant_ = "b";
  for (const Tier tier : {Tier::hot, Tier::warm}) {
    if (tier == Tier::warm) restart_lane();
    const std::uint64_t end = tier == Tier::hot ? 40 : 50;
    const Answer others = ask(tier == Tier::hot ? "" : "mine", chain(false, 31));
    if (tier == Tier::hot) {
      EXPECT_EQ(others.usage.reused_tokens, 0);
    } else {
      EXPECT_EQ(others.usage.reused_tokens, 229) << "by now it has computed the same itself";
    }
    const Answer shared = ask("", chain(true, end));
    EXPECT_EQ(shared.usage.tier, tier);
    EXPECT_EQ(shared.usage.reused_tokens, 200);
    EXPECT_EQ(shared.usage.reuse_reason, "prefix");
  }
  tenant_ = "c";
  EXPECT_EQ(ask("", chain(false, 31)).usage.reused_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, StoredState, ::testing::Values(llm::KvLayout::split, llm::KvLayout::unified),
                         [](const auto& made) { return made.param == llm::KvLayout::split ? "split" : "unified"; });

}  // namespace
}  // namespace uma::engine
