// Compares the sampler with libllama's samplers of the same names.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <format>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <llama.h>

#include "base/random.h"
#include "llm/llama_model.h"
#include "llm/sampling/repetition_penalties.h"
#include "llm/sampling/sampler.h"

namespace uma::llm {
namespace {

using LibrarySampler = std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)>;

LibrarySampler owned(llama_sampler* sampler) {
  return {sampler, &llama_sampler_free};
}

std::vector<float> normal_logits(Random& random, std::size_t vocabulary) {
  std::vector<float> logits(vocabulary);
  for (float& logit : logits) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += random.next_unit() - 0.5;
    logit = static_cast<float>(sum * 5);
  }
  return logits;
}

// The chances of the tokens that the library's sampler leaves.
std::map<Token, double> chances_of(const LibrarySampler& sampler, const std::vector<float>& logits) {
  std::vector<llama_token_data> entries;
  for (std::size_t i = 0; i < logits.size(); ++i) entries.push_back({static_cast<llama_token>(i), logits[i], 0});
  llama_token_data_array array{entries.data(), entries.size(), -1, false};
  llama_sampler_apply(sampler.get(), &array);
  std::map<Token, double> chances;
  double total = 0;
  for (std::size_t i = 0; i < array.size; ++i) total += chances[array.data[i].id] = std::exp(array.data[i].logit);
  for (auto& [token, chance] : chances) chance /= total;
  return chances;
}

std::map<Token, double> chances_of(const SamplingParams& params, std::vector<float> logits) {
  Sampler sampler(params, 1, {});
  Distribution distribution;
  sampler.distribution(logits, distribution);
  std::map<Token, double> chances;
  for (const auto& [token, chance] : distribution) chances[token] = chance;
  return chances;
}

void expect_equal(const std::map<Token, double>& ours, const std::map<Token, double>& theirs, const std::string& what) {
  EXPECT_EQ(ours.size(), theirs.size()) << what;
  for (const auto& [token, chance] : theirs) {
    const auto found = ours.find(token);
    ASSERT_TRUE(found != ours.end()) << what << ", token " << token << " of chance " << chance;
    EXPECT_NEAR(found->second, chance, 1e-4) << what;
  }
}

TEST(LibrarysSamplers, CutTypicalTokensAlike) {
  Random random(5);
  for (int round = 0; round < 100; ++round) {
    const std::vector<float> logits = normal_logits(random, 1 + random.next_below(3000));
    for (const double p : {0.05, 0.5, 0.95}) {
      SamplingParams params{.temperature = 1, .typical_p = p};
      expect_equal(chances_of(params, logits), chances_of(owned(llama_sampler_init_typical(static_cast<float>(p), 1)), logits),
                   std::format("round {}, typical_p {}", round, p));
    }
  }
}

TEST(LibrarysSamplers, ExcludeTheTopChoicesAlike) {
  Random random(6);
  for (int round = 0; round < 100; ++round) {
    const std::vector<float> logits = normal_logits(random, 1 + random.next_below(200));
    for (const double threshold : {0.01, 0.1, 0.4, 0.6}) {
      SamplingParams params{.temperature = 1, .xtc_probability = 1, .xtc_threshold = threshold};
      expect_equal(chances_of(params, logits),
                   chances_of(owned(llama_sampler_init_xtc(1, static_cast<float>(threshold), 1, 1)), logits),
                   std::format("round {}, xtc_threshold {}", round, threshold));
    }
  }
}

TEST(LibrarysSamplers, MirostatBeginsAlike) {
  Random random(7);
  for (int round = 0; round < 100; ++round) {
    const auto vocabulary = static_cast<std::size_t>(2 + random.next_below(3000));
    const std::vector<float> logits = normal_logits(random, vocabulary);
    for (const double tau : {0.5, 2.0, 5.0}) {
      SamplingParams params{.temperature = 1, .mirostat = 1, .mirostat_tau = tau};
      const auto tau_f = static_cast<float>(tau);
      expect_equal(
          chances_of(params, logits),
          chances_of(owned(llama_sampler_init_mirostat(static_cast<std::int32_t>(vocabulary), 1, tau_f, 0.1F, 100)), logits),
          std::format("round {}, version 1, tau {}", round, tau));
      params.mirostat = 2;
      expect_equal(chances_of(params, logits), chances_of(owned(llama_sampler_init_mirostat_v2(1, tau_f, 0.1F)), logits),
                   std::format("round {}, version 2, tau {}", round, tau));
    }
  }
}

// Logits after the library's sampler, by token.
std::vector<float> logits_after(const LibrarySampler& sampler, const std::vector<float>& logits) {
  std::vector<llama_token_data> entries;
  for (std::size_t i = 0; i < logits.size(); ++i) entries.push_back({static_cast<llama_token>(i), logits[i], 0});
  llama_token_data_array array{entries.data(), entries.size(), -1, false};
  llama_sampler_apply(sampler.get(), &array);
  std::vector<float> after(logits.size());
  for (std::size_t i = 0; i < array.size; ++i) after[static_cast<std::size_t>(array.data[i].id)] = array.data[i].logit;
  return after;
}

void expect_near(const std::vector<float>& ours, const std::vector<float>& theirs, const std::string& what) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_NEAR(ours[i], theirs[i], 1e-3 + 1e-5 * std::abs(theirs[i])) << what << ", token " << i;
  }
}

TEST(LibrarysSamplers, PenalizeTheLastTokensAlike) {
  Random random(8);
  for (const int last_n : {0, 1, 7, 64, 200}) {
    SamplingParams params{.repeat_penalty = 1.3, .repeat_last_n = last_n, .presence_penalty = 0.4, .frequency_penalty = -0.2};
    RepetitionPenalties ours(params, nullptr);
    const LibrarySampler theirs = owned(llama_sampler_init_penalties(30, last_n, 1.3F, -0.2F, 0.4F));
    for (int i = 0; i < 300; ++i) {
      const auto token = static_cast<Token>(random.next_below(30));
      ours.accept(token);
      llama_sampler_accept(theirs.get(), token);
      std::vector<float> logits = normal_logits(random, 30);
      const std::vector<float> expected = logits_after(theirs, logits);
      ours.apply(logits);
      expect_near(logits, expected, std::format("repeat_last_n {}, token {}", last_n, i));
    }
  }
}

// Texts of few different tokens, so that much of them is repeated.
void expect_same_dry(const SamplingParams& params, const Vocab* vocab, const LibrarySampler& theirs,
                     const std::vector<Token>& alphabet, std::size_t vocabulary, const std::string& what) {
  Random random(9);
  RepetitionPenalties ours(params, vocab);
  std::size_t penalized = 0;
  for (int i = 0; i < 400; ++i) {
    const Token token = alphabet[random.next_below(alphabet.size())];
    ours.accept(token);
    llama_sampler_accept(theirs.get(), token);
    std::vector<float> logits = normal_logits(random, vocabulary);
    const std::vector<float> before = logits;
    const std::vector<float> expected = logits_after(theirs, logits);
    ours.apply(logits);
    expect_near(logits, expected, std::format("{}, token {}", what, i));
    if (::testing::Test::HasFatalFailure()) return;
    penalized += logits != before ? 1 : 0;
  }
  EXPECT_GT(penalized, 50U) << what;
}

TEST(LibrarysSamplers, DryPenalizesAlikeWithoutBreakers) {
  for (const int last_n : {20, 150, 1000}) {
    for (const int allowed : {1, 2, 4}) {
      SamplingParams params{
          .dry_multiplier = 0.8, .dry_base = 1.4, .dry_allowed_length = allowed, .dry_penalty_last_n = last_n};
      const LibrarySampler theirs = owned(llama_sampler_init_dry(nullptr, 0.8F, 1.4F, allowed, last_n, nullptr, 0));
      expect_same_dry(params, nullptr, theirs, {1, 2, 3}, 6, std::format("last {}, allowed {}", last_n, allowed));
    }
  }
}

TEST(LibrarysSamplers, DryBreaksAtTheSameTexts) {
  const char* path = std::getenv("UMA_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "UMA_TEST_MODEL is not set";
  const auto model = load_llama_model(path, {});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  auto options = llama_model_default_params();
  options.vocab_only = true;
  const std::unique_ptr<llama_model, decltype(&llama_model_free)> library(llama_model_load_from_file(path, options),
                                                                          &llama_model_free);
  ASSERT_NE(library, nullptr);
  const Vocab& vocab = (*model)->vocab();
  std::vector<Token> alphabet;
  for (const std::string_view text : {"a", "b", ":", "x"}) alphabet.push_back(vocab.tokenize(text, false)->back());
  SamplingParams params{.dry_multiplier = 1, .dry_base = 1.5, .dry_penalty_last_n = 300};
  // Each within one token: of several, the library finds only those that it tokenizes alike.
  params.dry_sequence_breakers = {":", "b"};
  std::array<const char*, 2> breakers{":", "b"};
  const LibrarySampler theirs =
      owned(llama_sampler_init_dry(llama_model_get_vocab(library.get()), 1, 1.5F, 2, 300, breakers.data(), breakers.size()));
  expect_same_dry(params, &vocab, theirs, alphabet, static_cast<std::size_t>(vocab.size()), "breakers");
}

}  // namespace
}  // namespace uma::llm
