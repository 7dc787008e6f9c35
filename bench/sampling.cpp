// Measures how long it takes to choose the tokens of one tick: llm::Sampler against libllama's sampler chain, in turn on the
// same logits. Both get freshly written rows before each tick, as after a decode call, and both record the token they chose.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <llama.h>

#include "base/random.h"
#include "llm/sampling/sampler.h"

namespace uma {
namespace {

constexpr int kTextTokens = 64;  // Recorded before the first tick.

struct Case {
  const char* name;
  SamplingParams params;
};

std::vector<Case> all_cases() {
  SamplingParams sampled;
  sampled.temperature = 0.8;
  std::vector<Case> cases{{"greedy", {}}, {"temperature", sampled}};
  SamplingParams usual = sampled;
  usual.top_k = 40;
  usual.top_p = 0.95;
  cases.push_back({"top_k 40, top_p 0.95", usual});
  usual.min_p = 0.05;
  cases.push_back({"top_k 40, top_p 0.95, min_p 0.05", usual});
  SamplingParams penalties = usual;
  penalties.min_p = 0;
  penalties.repeat_penalty = 1.1;
  cases.push_back({"penalties, top_k 40, top_p 0.95", penalties});
  SamplingParams large_k = sampled;
  large_k.top_k = 1000;
  cases.push_back({"top_k 1000", large_k});
  SamplingParams top_p = sampled;
  top_p.top_p = 0.95;
  cases.push_back({"top_p 0.95", top_p});
  SamplingParams min_p = sampled;
  min_p.min_p = 0.05;
  cases.push_back({"min_p 0.05", min_p});
  SamplingParams dry = usual;
  dry.min_p = 0;
  dry.dry_multiplier = 0.8;
  dry.dry_penalty_last_n = kTextTokens;
  cases.push_back({"dry, top_k 40, top_p 0.95", dry});
  SamplingParams xtc = min_p;
  xtc.xtc_probability = 0.5;
  cases.push_back({"min_p 0.05, xtc 0.5", xtc});
  SamplingParams typical = sampled;
  typical.typical_p = 0.9;
  cases.push_back({"typical_p 0.9", typical});
  SamplingParams mirostat = sampled;
  mirostat.mirostat = 1;
  cases.push_back({"mirostat 1", mirostat});
  mirostat.mirostat = 2;
  cases.push_back({"mirostat 2", mirostat});
  return cases;
}

// Logits of one tick, row after row: normal with standard deviation 2.5. If peaked, about one token in 10,000 gets 16 more.
std::vector<float> make_logits(std::size_t rows, std::size_t vocabulary, bool is_peaked) {
  std::mt19937 engine(7);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(rows * vocabulary);
  for (float& logit : logits) {
    logit = normal(engine);
    if (is_peaked && engine() % 10'000 == 0) logit += 16;
  }
  return logits;
}

// libllama's chain in the order of llama.cpp's programs, with the rest of the work of llama_sampler_sample().
class Chain {
 public:
  Chain(const SamplingParams& params, std::uint32_t seed, std::size_t vocabulary)
      : chain_(llama_sampler_chain_init(llama_sampler_chain_default_params()), &llama_sampler_free), entries_(vocabulary) {
    const auto add = [&](llama_sampler* sampler) { llama_sampler_chain_add(chain_.get(), sampler); };
    if (params.repeat_penalty != 1) {
      add(llama_sampler_init_penalties(static_cast<std::int32_t>(vocabulary), 64, static_cast<float>(params.repeat_penalty), 0,
                                       0));
    }
    if (params.dry_multiplier > 0) {
      add(llama_sampler_init_dry(nullptr, static_cast<float>(params.dry_multiplier), static_cast<float>(params.dry_base),
                                 params.dry_allowed_length, params.dry_penalty_last_n, nullptr, 0));
    }
    if (params.temperature <= 0) {
      add(llama_sampler_init_greedy());
      return;
    }
    if (params.mirostat > 0) {
      const auto tau = static_cast<float>(params.mirostat_tau);
      const auto eta = static_cast<float>(params.mirostat_eta);
      add(llama_sampler_init_temp(static_cast<float>(params.temperature)));
      add(params.mirostat == 1 ? llama_sampler_init_mirostat(static_cast<std::int32_t>(vocabulary), seed, tau, eta, 100)
                               : llama_sampler_init_mirostat_v2(seed, tau, eta));
      return;
    }
    if (params.top_k > 0) add(llama_sampler_init_top_k(params.top_k));
    if (params.typical_p < 1) add(llama_sampler_init_typical(static_cast<float>(params.typical_p), 1));
    if (params.top_p < 1) add(llama_sampler_init_top_p(static_cast<float>(params.top_p), 1));
    if (params.min_p > 0) add(llama_sampler_init_min_p(static_cast<float>(params.min_p), 1));
    if (params.xtc_probability > 0) {
      add(llama_sampler_init_xtc(static_cast<float>(params.xtc_probability), static_cast<float>(params.xtc_threshold), 1,
                                 seed));
    }
    add(llama_sampler_init_temp(static_cast<float>(params.temperature)));
    add(llama_sampler_init_dist(seed));
  }

  void accept(Token token) { llama_sampler_accept(chain_.get(), token); }

  Token sample(std::span<const float> logits) {
    for (std::size_t i = 0; i < logits.size(); ++i) entries_[i] = {static_cast<llama_token>(i), logits[i], 0};
    llama_token_data_array array{entries_.data(), entries_.size(), -1, false};
    llama_sampler_apply(chain_.get(), &array);
    return array.data[array.selected].id;
  }

 private:
  std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)> chain_;
  std::vector<llama_token_data> entries_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Copies the logits and then times one tick, in microseconds.
template <class Contestant>
double time_tick_us(std::vector<Contestant>& rows, std::span<const float> fresh, std::vector<float>& logits) {
  std::ranges::copy(fresh, logits.begin());
  const std::size_t vocabulary = fresh.size() / rows.size();
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t row = 0; row < rows.size(); ++row) {
    rows[row].accept(rows[row].sample(std::span(logits).subspan(row * vocabulary, vocabulary)));
  }
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count();
}

void measure(const Case& measured, std::size_t vocabulary, std::size_t batch, bool is_peaked, int rounds) {
  const std::vector<float> fresh = make_logits(batch, vocabulary, is_peaked);
  std::vector<float> logits(fresh.size());
  std::vector<llm::Sampler> ours;
  std::vector<Chain> theirs;
  Random random(1);
  for (std::size_t row = 0; row < batch; ++row) {
    ours.emplace_back(measured.params, row, std::span<const Token>());
    theirs.emplace_back(measured.params, static_cast<std::uint32_t>(row), vocabulary);
    for (int i = 0; i < kTextTokens; ++i) {
      const auto token = static_cast<Token>(random.next_below(vocabulary));
      ours.back().accept(token);
      theirs.back().accept(token);
    }
  }
  std::vector<double> ours_us, theirs_us, ratios;
  for (int round = -1; round < rounds; ++round) {
    double our_us = 0, their_us = 0;
    // The order alternates from round to round.
    for (const bool is_ours : {round % 2 == 0, round % 2 != 0}) {
      (is_ours ? our_us : their_us) = is_ours ? time_tick_us(ours, fresh, logits) : time_tick_us(theirs, fresh, logits);
    }
    if (round < 0) continue;  // In the first round, memory is touched for the first time.
    ours_us.push_back(our_us);
    theirs_us.push_back(their_us);
    ratios.push_back(our_us / their_us);
  }
  std::printf("| %s | %s | %zu | %zu | %.0f | %.0f | %.3f |\n", measured.name, is_peaked ? "peaked" : "flat", vocabulary, batch,
              median(ours_us), median(theirs_us), median(ratios));
  std::fflush(stdout);
}

}  // namespace
}  // namespace uma

int main(int argc, char** argv) {
  CLI::App app{"Measures the sampling of one tick: umad's sampler against libllama's chain."};
  int rounds = 31;
  std::vector<std::size_t> vocabularies{32'000, 151'936};
  std::vector<std::size_t> batches{1, 16};
  app.add_option("--rounds", rounds, "ticks of each case (default 31)")->check(CLI::PositiveNumber);
  app.add_option("--vocabulary", vocabularies, "sizes of the vocabulary (default 32000,151936)")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--batch", batches, "rows of a tick (default 1,16)")->delimiter(',')->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  std::puts(
      "| case | logits | vocabulary | rows | umad, us a tick | libllama, us a tick | ratio |\n|---|---|---|---|---|---|---|");
  for (const uma::Case& measured : uma::all_cases()) {
    for (const bool is_peaked : {false, true}) {
      for (const std::size_t vocabulary : vocabularies) {
        for (const std::size_t batch : batches) uma::measure(measured, vocabulary, batch, is_peaked, rounds);
      }
    }
  }
}
