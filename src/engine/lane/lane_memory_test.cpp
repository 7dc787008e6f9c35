// Sessions of models that cannot be cut at any token (described in src/llm/llama_memory_test.cpp). Whatever happens to a
// sequence, the logits that its tokens are sampled from equal those of one run over the same chain, up to the differences of
// other batch shapes. With the real library, and the lanes that the engine makes.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <future>
#include <map>

#include <gtest/gtest.h>

#include "base/random.h"
#include "engine/lane/lane.h"
#include "engine/model/load_workers.h"
#include "llm/sampling/logits.h"
#include "testing/recording_sink.h"

namespace uma::engine {
namespace {

struct Case {
  std::string model;
  llm::KvLayout layout;
};
void PrintTo(const Case& made, std::ostream* out) {
  *out << made.model << (made.layout == llm::KvLayout::split ? ", split" : ", unified");
}

class LaneMemory : public ::testing::TestWithParam<Case> {
 protected:
  // With other batch shapes the logits differ by at most 0.014, on seven of ggml's CPU variants.
  static constexpr double kClose = 0.04;

  static std::vector<Token> words(std::uint64_t seed, std::int32_t count) {
    Random random(seed);
    std::vector<Token> tokens;
    for (std::int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<Token>(300 + random.next_below(1000)));
    return tokens;
  }

  static llm::ContextOptions context_options(std::int32_t sequences, std::int32_t cells) {
    return {.cells = GetParam().layout == llm::KvLayout::unified ? cells : 1024 * sequences,
            .sequences = sequences,
            .threads = 1,
            .layout = GetParam().layout};
  }

  // `cells`: of a unified context; split contexts have 1024 for each sequence.
  void make(std::int32_t sequences, std::int32_t cells, bool has_prefill_lane = false, LaneOptions options = {}) {
    const char* tiny = std::getenv("UMA_TEST_MODEL");
    const std::filesystem::path folder =
        std::filesystem::path(tiny != nullptr ? tiny : "build/release/models/tiny.gguf").parent_path();
    LoadedWorkers loaded = load_workers({.path = (folder / (GetParam().model + ".gguf")).string(),
                                         .draft_path = "",
                                         .workers = 1,
                                         .context = context_options(sequences, cells),
                                         .replicates = false,
                                         .lanes = has_prefill_lane},
                                        [](double) { return true; })
                               .value();
    model_ = loaded.model;
    WorkerContexts& worker = loaded.workers.front();
    ASSERT_EQ(worker.prefill != nullptr, has_prefill_lane);
    if (has_prefill_lane) options.target_tbt_ms = 0.01;  // Prompts of more than a few tokens go to the prefill lane.
    options.speculates = options.test_drafter != nullptr;
    options.on_logits = [this](RequestId id, std::span<const float> logits) {
      logits_[id.value].emplace_back(logits.begin(), logits.end());
    };
    lane_ = std::make_unique<Lane>(std::move(options), std::move(worker.decode), std::move(worker.prefill), model_->vocab(),
                                   clock_, [this](GenerationResult result) { results_[result.id.value] = std::move(result); });
  }

  void post(std::uint64_t id, const std::string& session, std::vector<Token> chain, std::int32_t count = 12,
            bool is_background = false, const std::string& forked_from = "") {
    GenerationJob job;
    job.id = RequestId{id};
    job.session = SessionId{session};
    job.forked_from = SessionId{forked_from};
    job.tokens = std::move(chain);
    job.tokens_max = count;
    job.sampling.ignore_eos = true;
    job.is_background = is_background;
    job.received = clock_.now();
    sinks_[id] = std::make_shared<testing::RecordingSink>();
    job.sink = sinks_[id];
    chains_[id] = job.tokens;
    lane_->stats().queue_depth.add(1);
    lane_->post(StartCommand{std::move(job)});
  }

  void step() {
    if (lane_->prefill_lane() != nullptr) lane_->prefill_lane()->step();
    lane_->step();
    lane_->check_invariants();
  }

  // Runs until the request has ended, and compares each of its tokens with one run over its chain.
  void expect_right(std::uint64_t id) {
    while (!results_.contains(id)) step();
    const std::vector<Token>& generated = results_.at(id).generated;
    ASSERT_EQ(logits_.at(id).size(), generated.size()) << id;
    const auto fresh = model_->new_context(context_options(1, 1024)).value();
    std::vector<llm::BatchRow> rows;
    for (const Token token : chains_.at(id)) rows.push_back({token, static_cast<std::int32_t>(rows.size()), 0, false});
    for (std::size_t i = 0; i < generated.size(); ++i) {
      rows.back().wants_logits = true;
      ASSERT_TRUE(fresh->decode(rows, nullptr));
      const std::span<const float> expected = fresh->logits(static_cast<std::int32_t>(rows.size()) - 1);
      ASSERT_LT(llm::logits_distance(logits_.at(id)[i], expected), kClose) << "request " << id << ", token " << i;
      rows = {{generated[i], fresh->sequence_length(0), 0, false}};
    }
  }

  std::vector<Token> chain_after(std::uint64_t id, const std::vector<Token>& more) const {
    std::vector<Token> chain = chains_.at(id);
    const std::vector<Token>& generated = results_.at(id).generated;
    chain.insert(chain.end(), generated.begin(), generated.end());
    chain.insert(chain.end(), more.begin(), more.end());
    return chain;
  }

  // The first `count` tokens of a chain, followed by other tokens.
  static std::vector<Token> rewound(std::vector<Token> chain, std::int32_t count, const std::vector<Token>& more) {
    chain.resize(static_cast<std::size_t>(count));
    chain.insert(chain.end(), more.begin(), more.end());
    return chain;
  }

  const Usage& usage(std::uint64_t id) const { return std::get<EosEvent>(results_.at(id).terminal).usage; }
  Tier tier(std::uint64_t id) const { return usage(id).tier; }
  // The number of computed tokens: the chain and the reply without the last token.
  std::int32_t computed(std::uint64_t id) const { return static_cast<std::int32_t>(chain_after(id, {}).size()) - 1; }

  SteadyClock clock_;
  std::shared_ptr<const llm::Model> model_;
  std::unique_ptr<Lane> lane_;
  std::map<std::uint64_t, GenerationResult> results_;
  std::map<std::uint64_t, std::shared_ptr<testing::RecordingSink>> sinks_;
  std::map<std::uint64_t, std::vector<Token>> chains_;
  std::map<std::uint64_t, std::vector<std::vector<float>>> logits_;
};

TEST_P(LaneMemory, TurnsRewindsRepeatsAndForksOfASession) {
  make(4, 4096);
  post(1, "s", words(1, 150));
  expect_right(1);
  post(2, "s", chain_after(1, words(2, 20)));
  expect_right(2);
  EXPECT_EQ(tier(2), Tier::hot) << "a turn that only adds is cheap for every model";
  post(3, "s", rewound(chains_.at(2), 100, words(3, 10)));
  expect_right(3);
  post(4, "s", chains_.at(3));
  expect_right(4);
  post(6, "fork", chain_after(4, words(6, 40)), 12, false, "s");
  post(5, "s", chain_after(4, words(5, 7)));
  expect_right(5);
  expect_right(6);
  EXPECT_EQ(tier(6), Tier::hot);
  post(7, "fork", rewound(chains_.at(6), 120, words(7, 30)));
  expect_right(7);
}

TEST_P(LaneMemory, SequencesThatAreSwappedOutResumeAndCanBeRewound) {
  make(2, 1024);
  post(1, "a", words(1, 150), 60, true);
  post(2, "b", words(2, 170), 60, true);
  while (results_.empty() && (sinks_[1]->tokens.size() < 5 || sinks_[2]->tokens.size() < 5)) step();
  for (std::uint64_t id = 3; id < 6; ++id) post(id, "", words(id, 60));
  for (std::uint64_t id = 1; id < 6; ++id) expect_right(id);
  EXPECT_GT(lane_->stats().preemptions_total.value(), 0U);
  EXPECT_GT(lane_->stats().warm_hits_total.value(), 0U);
  post(6, "a", rewound(chain_after(1, {}), 140, words(6, 9)));
  post(7, "b", chain_after(2, words(7, 9)));
  expect_right(6);
  expect_right(7);
}

TEST_P(LaneMemory, WhatIsRewoundOrEditedGoesOnFromTheEndOfATurn) {
  kv::StateStore store({.warm_bytes_max = std::uint64_t{1} << 28}, nullptr, clock_);
  LaneOptions options;
  options.store = &store;
  make(4, 4096, false, std::move(options));
  post(1, "s", words(1, 80));
  expect_right(1);
  for (std::uint64_t id = 2; id < 7; ++id) {
    post(id, "s", chain_after(id - 1, words(id, 60)));
    expect_right(id);
  }
  // The last reply is made again several times. The turns before it stay stored in spite of the discarded replies.
  for (std::uint64_t id = 7; id < 13; ++id) {
    post(id, "s", chains_.at(6));
    expect_right(id);
    EXPECT_GE(usage(id).reused_tokens, computed(5)) << usage(id).reuse_reason;
  }
  post(13, "s", chain_after(4, words(13, 10)));
  expect_right(13);
  EXPECT_GE(usage(13).reused_tokens, computed(4)) << usage(13).reuse_reason;
  const bool has_state = GetParam().model == "tiny-recurrent" || GetParam().model == "tiny-hybrid";
  EXPECT_EQ(usage(13).reuse_reason == "checkpoint", has_state) << usage(13).reuse_reason;
  if (GetParam().model == "tiny") {
    EXPECT_EQ(tier(13), Tier::hot);
  }

  // A client sends its whole history and edits its last message.
  post(20, "", words(20, 90));
  expect_right(20);
  post(21, "", chain_after(20, words(21, 30)));
  expect_right(21);
  post(22, "", chain_after(20, words(22, 30)));
  expect_right(22);
  EXPECT_GE(usage(22).reused_tokens, computed(20)) << usage(22).reuse_reason;
  EXPECT_EQ(usage(22).reuse_reason, "prefix");
}

// Tokens in the context can be cut within the window; a restored state ends with its window.
TEST_P(LaneMemory, AWindowThatIsStillThereIsCutInPlace) {
  make(4, 4096);
  post(1, "s", words(1, 150));
  expect_right(1);
  post(2, "s", rewound(chains_.at(1), 100, words(2, 10)));
  expect_right(2);
  const bool has_state = GetParam().model == "tiny-recurrent" || GetParam().model == "tiny-hybrid";
  EXPECT_EQ(usage(2).reused_tokens, has_state ? 0 : 100);
}

class UnifiedLaneMemory : public LaneMemory {};

TEST_P(UnifiedLaneMemory, ExhaustedCellsSwapOutAndEveryoneIsRight) {
  make(4, 768);
  for (std::uint64_t id = 1; id < 5; ++id) post(id, std::format("s{}", id), words(id, 150), 120);
  for (std::uint64_t id = 1; id < 5; ++id) expect_right(id);
}

TEST_P(LaneMemory, PromptsOfThePrefillLaneGoOnAndCanBeRewound) {
  make(4, 4096, true);
  post(1, "", words(1, 30), 400);
  while (results_.empty() && sinks_[1]->tokens.size() < 3) step();
  post(2, "s", words(2, 400));
  expect_right(2);
  EXPECT_EQ(lane_->stats().handover.count(), 1U);
  post(3, "s", chain_after(2, words(3, 200)));
  expect_right(3);
  EXPECT_GE(lane_->stats().handover.count(), 2U);
  EXPECT_EQ(tier(3), Tier::hot);
  post(4, "s", rewound(chains_.at(3), 300, words(4, 5)));
  expect_right(4);
  post(5, "t", words(5, 300));
  post(6, "u", words(6, 120));
  expect_right(5);
  expect_right(6);
  post(7, "t", rewound(chains_.at(5), 299, words(7, 1)));
  expect_right(7);
  ASSERT_FALSE(results_.contains(1)) << "the stream was there all the time";
  expect_right(1);
}

TEST_P(LaneMemory, WrongGuessesLeaveNoTrace) {
  Random random(5);
  LaneOptions options;
  options.test_drafter = [&](std::span<const Token>, std::int32_t count, std::vector<Token>& draft) {
    for (std::int32_t i = 0; i < std::min(count, 3); ++i) draft.push_back(static_cast<Token>(300 + random.next_below(1000)));
  };
  make(2, 1024, false, std::move(options));
  post(1, "s", words(1, 150), 60);
  expect_right(1);
  EXPECT_EQ(lane_->stats().drafted_tokens_total.value() > 0, (GetParam().model == "tiny")) << "the others cannot drop cells";
  post(2, "s", chain_after(1, words(2, 20)), 60);
  expect_right(2);
}

std::vector<Case> cases_of(llm::KvLayout layout) {
  return {
      {"tiny", layout}, {"tiny-swa", layout}, {"tiny-gpt-oss", layout}, {"tiny-recurrent", layout}, {"tiny-hybrid", layout}};
}

std::string name_of(const ::testing::TestParamInfo<Case>& made) {
  std::string name = made.param.model;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Split, LaneMemory, ::testing::ValuesIn(cases_of(llm::KvLayout::split)), name_of);
INSTANTIATE_TEST_SUITE_P(Unified, LaneMemory, ::testing::ValuesIn(cases_of(llm::KvLayout::unified)), name_of);
INSTANTIATE_TEST_SUITE_P(Unified, UnifiedLaneMemory, ::testing::ValuesIn(cases_of(llm::KvLayout::unified)), name_of);

}  // namespace
}  // namespace uma::engine
