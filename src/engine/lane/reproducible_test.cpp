// Reproducible mode (scheduler.reproducible): on the real library, with split KV and without flash attention, the logits that a
// request's tokens are sampled from are the same bits whatever shares the batch and whatever happens to the request.
// UMA_TEST_MODEL is a tiny random model; UMA_REPRODUCIBLE_MODEL and UMA_REPRODUCIBLE_PROMPTS set another model and more
// prompts.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <xxhash.h>

#include "base/random.h"
#include "engine/lane/lane.h"
#include "llm/llama_model.h"
#include "testing/recording_sink.h"

namespace uma::engine {
namespace {

constexpr std::int32_t kTokens = 40;  // In each reply.

// The conditions in which the observed requests run.
struct Surroundings {
  std::int32_t threads = 1;
  std::int32_t slots = 8;
  std::int32_t company = 0;   // Other requests that come and go meanwhile.
  bool long_prompts = false;  // Some of the other requests have long prompts.
  bool prefill_lane = false;
  bool drafts = false;         // Draft tokens are used, half of which are wrong.
  bool is_background = false;  // The observed requests are background requests, whose slots others take.
};

using Bits = std::vector<XXH64_hash_t>;

// With flash attention the lane must shape its calls (LaneOptions::is_reproducible); without it any calls give the same bits.
class Reproducible : public ::testing::TestWithParam<llm::FlashAttention> {
 protected:
  static std::shared_ptr<const llm::Model> model() {
    static const std::shared_ptr<const llm::Model> loaded = [] {
      const char* tiny = std::getenv("UMA_TEST_MODEL");
      const char* wanted = std::getenv("UMA_REPRODUCIBLE_MODEL");
      if (wanted == nullptr) wanted = tiny != nullptr ? tiny : "build/release/models/tiny.gguf";
      return llm::load_llama_model(wanted, {}).value();
    }();
    return loaded;
  }
  static int prompts_count() {
    const char* wanted = std::getenv("UMA_REPRODUCIBLE_PROMPTS");
    return wanted != nullptr ? std::atoi(wanted) : 6;
  }

  static std::vector<Token> prompt(std::uint64_t number, std::size_t length) {
    Random random(number + 1);
    std::vector<Token> tokens;
    const auto vocabulary = static_cast<std::uint64_t>(model()->vocab().size());
    while (tokens.size() < length) tokens.push_back(static_cast<Token>(5 + random.next_below(vocabulary - 5)));
    return tokens;
  }
  // Some prompts are short, some exceed the library's tiles of 64, and some have more than the 512 cells from which its threads
  // divide a row.
  static std::vector<Token> watched_prompt(int number) {
    constexpr std::size_t kLengths[] = {20, 64, 130, 301, 520, 77};
    return prompt(static_cast<std::uint64_t>(number), kLengths[static_cast<std::size_t>(number) % std::size(kLengths)]);
  }

  // The logits of every observed reply.
  std::map<int, Bits> run(const Surroundings& around) {
    Random random(99);
    std::map<std::uint64_t, Bits> seen;
    LaneOptions options;
    options.threads = around.threads;
    options.threads_beside_prefill = around.threads / 2;
    options.is_reproducible = GetParam() == llm::FlashAttention::on;
    options.speculates = around.drafts;
    options.on_logits = [&](RequestId id, std::span<const float> logits) {
      if (id.value < kOthers) seen[id.value].push_back(XXH64(logits.data(), logits.size_bytes(), 0));
    };
    if (around.drafts) {
      options.test_drafter = [&](std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft) {
        const auto begin = chain.first(std::min<std::size_t>(chain.size(), 10));
        const auto known = answers_.find(std::vector<Token>(begin.begin(), begin.end()));
        for (std::int32_t i = 0; i < std::min(count, 4); ++i) {
          Token token = static_cast<Token>(5 + random.next_below(100));
          if (known != answers_.end() && chain.size() + static_cast<std::size_t>(i) < known->second.size() &&
              random.next_below(4) != 0)
            token = known->second[chain.size() + static_cast<std::size_t>(i)];
          draft.push_back(token);
        }
      };
    }
    llm::ContextOptions context_options{
        .cells = around.slots * 1024, .sequences = around.slots, .threads = around.threads, .layout = llm::KvLayout::split};
    context_options.flash_attention = GetParam();
    auto context = model()->new_context(context_options).value();
    std::unique_ptr<llm::Context> beside;
    if (around.prefill_lane) {
      context_options.sequences = 1;
      context_options.cells = 1024;
      beside = model()->new_context(context_options).value();
      options.target_tbt_ms = 0.01;  // Prompts of more than a few tokens are offloaded.
    }
    std::map<std::uint64_t, GenerationResult> results;
    Lane lane(std::move(options), std::move(context), std::move(beside), model()->vocab(), clock_,
              [&](GenerationResult result) { results[result.id.value] = std::move(result); });
    const auto start = [&](std::uint64_t id, std::vector<Token> tokens, std::int32_t count, bool is_background) {
      GenerationJob job;
      job.id = RequestId{id};
      job.tokens = std::move(tokens);
      job.tokens_max = count;
      job.sampling.ignore_eos = true;
      job.is_background = is_background;
      job.received = clock_.now();
      job.sink = std::make_shared<testing::RecordingSink>();
      lane.stats().queue_depth.add(1);
      lane.post(StartCommand{std::move(job)});
    };
    std::uint64_t others = kOthers;
    for (int number = 0; number < prompts_count(); ++number) {
      start(static_cast<std::uint64_t>(number), watched_prompt(number), kTokens, around.is_background);
      while (!results.contains(static_cast<std::uint64_t>(number))) {
        if (around.company > 0 && random.next_below(4) == 0 && lane.stats().queue_depth.value() == 0 &&
            lane.stats().sequences_active.value() <= around.company) {
          const std::size_t length = around.long_prompts && random.next_below(3) == 0 ? 400 : 5 + random.next_below(60);
          ++others;
          start(others, prompt(others, length), 1 + static_cast<std::int32_t>(random.next_below(20)), false);
          if (random.next_below(5) == 0) lane.post(CancelCommand{RequestId{others}});
        }
        if (lane.prefill_lane() != nullptr) lane.prefill_lane()->step();
        lane.step();
      }
      const GenerationResult& result = results.at(static_cast<std::uint64_t>(number));
      std::vector<Token> chain = watched_prompt(number);
      chain.insert(chain.end(), result.generated.begin(), result.generated.end());
      answers_[std::vector<Token>(chain.begin(), chain.begin() + 10)] = chain;
    }
    preemptions_ = lane.stats().preemptions_total.value();
    accepted_ = lane.stats().drafted_accepted_total.value();
    handovers_ = lane.stats().handover.count();
    lane.cancel_all();
    std::map<int, Bits> bits;
    for (auto& [id, hashes] : seen) bits[static_cast<int>(id)] = std::move(hashes);
    return bits;
  }

  static constexpr std::uint64_t kOthers = 1'000'000;
  SteadyClock clock_;
  std::map<std::vector<Token>, std::vector<Token>> answers_;  // By the first ten tokens of a prompt.
  std::uint64_t preemptions_ = 0;
  std::uint64_t accepted_ = 0;
  std::uint64_t handovers_ = 0;
};

TEST_P(Reproducible, TheBitsAreTheSameInEverySurrounding) {
  const auto alone = run({});
  ASSERT_EQ(alone.size(), static_cast<std::size_t>(prompts_count()));
  for (const auto& [number, bits] : alone) ASSERT_EQ(bits.size(), static_cast<std::size_t>(kTokens));
  EXPECT_EQ(run({.threads = 2}), alone) << "two threads";
  EXPECT_EQ(run({.company = 7}), alone) << "in company";
  EXPECT_EQ(run({.threads = 2, .company = 7, .long_prompts = true}), alone) << "in company of long prompts";
  EXPECT_EQ(run({.threads = 2, .company = 3, .long_prompts = true, .prefill_lane = true}), alone) << "with a prefill lane";
  EXPECT_GT(handovers_, 0u);
  EXPECT_EQ(run({.slots = 2, .company = 3, .is_background = true}), alone) << "sent away and resumed";
  EXPECT_GT(preemptions_, 0u);
  EXPECT_EQ(run({.threads = 2, .company = 3, .drafts = true}), alone) << "with draft tokens";
  EXPECT_GT(accepted_, 0u);
}

// A session's second turn: with its state in its slot, in a fork, restored from a snapshot, and computed again from its tokens.
TEST_P(Reproducible, ASessionGoesOnWithTheSameBitsWhereverItsStateIs) {
  llm::ContextOptions context_options{.cells = 4096, .sequences = 4, .threads = 2, .layout = llm::KvLayout::split};
  context_options.flash_attention = GetParam();
  for (int number = 0; number < prompts_count(); ++number) {
    std::map<std::uint64_t, Bits> seen;
    std::map<std::uint64_t, GenerationResult> results;
    const auto make_lane = [&] {
      LaneOptions options;
      options.threads = 2;
      options.is_reproducible = GetParam() == llm::FlashAttention::on;
      options.on_logits = [&](RequestId id, std::span<const float> logits) {
        seen[id.value].push_back(XXH64(logits.data(), logits.size_bytes(), 0));
      };
      return std::make_unique<Lane>(std::move(options), model()->new_context(context_options).value(), nullptr,
                                    model()->vocab(), clock_,
                                    [&](GenerationResult result) { results[result.id.value] = std::move(result); });
    };
    const auto say = [&](Lane& lane, std::uint64_t id, const std::string& session, std::vector<Token> chain,
                         const std::string& forked_from = "") {
      GenerationJob job;
      job.id = RequestId{id};
      job.session = SessionId{session};
      job.forked_from = SessionId{forked_from};
      job.tokens = std::move(chain);
      job.tokens_max = kTokens;
      job.sampling.ignore_eos = true;
      job.received = clock_.now();
      job.sink = std::make_shared<testing::RecordingSink>();
      lane.stats().queue_depth.add(1);
      lane.post(StartCommand{std::move(job)});
      while (!results.contains(id)) lane.step();
    };
    const auto lane = make_lane();
    std::vector<Token> chain = watched_prompt(number);
    say(*lane, 1, "s", chain);
    chain.insert(chain.end(), results.at(1).generated.begin(), results.at(1).generated.end());
    for (const Token token : prompt(5000 + static_cast<std::uint64_t>(number), 30)) chain.push_back(token);
    say(*lane, 3, "fork", chain, "s");
    say(*lane, 2, "s", chain);
    const auto fresh = make_lane();
    say(*fresh, 4, "s", chain);
    EXPECT_EQ(std::get<EosEvent>(results.at(2).terminal).usage.tier, Tier::hot);
    EXPECT_EQ(std::get<EosEvent>(results.at(3).terminal).usage.tier, Tier::hot);
    EXPECT_EQ(std::get<EosEvent>(results.at(4).terminal).usage.reused_tokens, 0);
    ASSERT_EQ(seen.at(2).size(), static_cast<std::size_t>(kTokens));
    EXPECT_EQ(seen.at(3), seen.at(2)) << "fork";
    // With flash attention generated tokens have other bits than the same tokens in a prompt.
    if (GetParam() == llm::FlashAttention::off) {
      EXPECT_EQ(seen.at(4), seen.at(2)) << "computed again";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(FlashAttention, Reproducible, ::testing::Values(llm::FlashAttention::on, llm::FlashAttention::off),
                         [](const auto& made) { return made.param == llm::FlashAttention::on ? "on" : "off"; });

}  // namespace
}  // namespace uma::engine
