// Log probabilities of tokens, and the times between tokens.
#include "engine/lane/run/reply_sampler.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <format>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/thrown.h"
#include "engine/lane/lane_test_support.h"
#include "grammar/grammar.h"
#include "llm/sampling/logprobs.h"
#include "llm/sampling/token_constraint.h"

namespace uma::engine {
namespace {

using ReplySamplerTest = LaneTest;

TEST_F(ReplySamplerTest, RequestsThatAskForATargetCountAsPromises) {
  make({.row_cost = std::chrono::milliseconds(5)});
  GenerationJob wants = job(1, "quick please", 4);
  wants.target_ttft_ms = 1;  // Impossible: twelve rows of 5 ms.
  wants.target_tbt_ms = 100;
  post(std::move(wants));
  run();
  EXPECT_EQ(lane_->stats().slo_missed_total.value(), 1u);
  EXPECT_EQ(lane_->stats().slo_met_total.value(), 3u);
}

std::vector<Token> chosen_of(const std::vector<TokenLogprobs>& logprobs) {
  std::vector<Token> tokens;
  for (const TokenLogprobs& place : logprobs) tokens.push_back(place.chosen.token);
  return tokens;
}

TEST_F(ReplySamplerTest, TellsHowLikelyTheTokensWereAndSamplesTheSame) {
  std::map<std::uint64_t, std::vector<std::vector<float>>> rows;
  LaneOptions options;
  options.on_logits = [&](RequestId id, std::span<const float> logits) {
    rows[id.value].emplace_back(logits.begin(), logits.end());
  };
  make({}, options);
  GenerationJob one = job(1, "once upon");
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

TEST_F(ReplySamplerTest, SeveralThreadsChooseTheTokensThatOneChooses) {
  constexpr std::uint64_t kJobs = 6;
  const auto run_with = [&](std::int32_t threads) {
    LaneOptions options;
    options.sampling_threads = threads;
    options.sampling_logits_min = 0;
    make({.sequences = 8}, options);
    for (std::uint64_t id = 1; id <= kJobs; ++id) {
      GenerationJob made = job(id, "once upon a time " + std::to_string(id), 40);
      made.sampling.temperature = id == 1 ? 0 : 0.9;
      made.sampling.repeat_penalty = id == 2 ? 1.5 : 1;
      made.seed = id;
      if (id == 3) made.reply.logprobs = 2;
      post(std::move(made));
    }
    run();
    std::vector<std::vector<Token>> tokens;
    for (std::uint64_t id = 1; id <= kJobs; ++id) tokens.push_back(sinks_[id]->tokens);
    return tokens;
  };
  const auto by_one = run_with(0);
  EXPECT_EQ(by_one, run_with(3));
  EXPECT_NE(by_one[3], by_one[4]);
  EXPECT_GE(by_one[1].size(), 2U);
}

TEST_F(ReplySamplerTest, SeveralThreadsFindLogitsThatAreNotFinite) {
  LaneOptions options;
  options.sampling_threads = 2;
  options.sampling_logits_min = 0;
  make({}, options);
  int calls = 0;
  context_->fault = [&](std::span<const llm::BatchRow> rows) {
    return rows.size() == 2 && ++calls == 3 ? FakeFault::not_finite : FakeFault::none;
  };
  post(job(1, "once upon"));
  post(job(2, "a time"));
  run();
  EXPECT_GE(calls, 3);
  EXPECT_EQ(sinks_[1]->tokens, expected("once upon"));
  EXPECT_EQ(sinks_[2]->tokens, expected("a time"));
}

// Each letter may begin hundreds of alternatives, so a place costs a good part of a step's budget.
std::shared_ptr<const grammar::Grammar> expensive_grammar() {
  std::string alternatives;
  for (int low = 0x20; low < 0x38; ++low) {
    for (int high = 0x58; high < 0x7e; ++high) {
      alternatives += std::format("{}[\\x{:02x}-\\x{:02x}] [a-z]", alternatives.empty() ? "" : " | ", low, high);
    }
  }
  return grammar::Grammar::parse("root ::= r*\nr ::= " + alternatives + "\n").value();
}

TEST_F(ReplySamplerTest, ExpensiveGrammarsShareOneBudgetOfAStep) {
  make({.cells = 1024, .sequences = 8});
  constexpr std::uint64_t kConstrained = 6;
  constexpr std::uint64_t kStream = kConstrained + 1;
  const auto grammar = expensive_grammar();
  const auto prompt = [](std::uint64_t id) { return "once upon a time " + std::to_string(id); };
  for (std::uint64_t id = 1; id <= kStream; ++id) {
    GenerationJob made = job(id, prompt(id), id == kStream ? 40 : 4);
    if (id != kStream) made.grammar = grammar;
    post(std::move(made));
  }
  llm::TokenConstraint alone(grammar, model_->vocab());
  const std::vector<Token> first = fake_continuation(options_, fake_tokens(prompt(1)), 1, &alone);
  ASSERT_EQ(first.size(), 1U);
  ASSERT_GT(alone.work() * (kConstrained - 1), ReplySampler::kGrammarWorkPerStep) << "together they exceed the budget";
  const auto tokens_of_constrained = [&] {
    std::size_t count = 0;
    for (std::uint64_t id = 1; id <= kConstrained; ++id) count += sinks_[id]->tokens.size();
    return count;
  };
  int steps_cut = 0;
  while (results_.size() < kStream) {
    const std::size_t before = tokens_of_constrained();
    const std::size_t streamed = sinks_[kStream]->tokens.size();
    step();
    const std::size_t more = tokens_of_constrained() - before;
    EXPECT_LT((more - std::min<std::size_t>(more, 1)) * alone.work() / 2, ReplySampler::kGrammarWorkPerStep);
    if (more > 0 && more < kConstrained) ++steps_cut;
    if (streamed > 0 && !results_.contains(kStream)) {
      EXPECT_GT(sinks_[kStream]->tokens.size(), streamed) << "the stream goes on";
    }
  }
  EXPECT_GT(steps_cut, 0);
  for (std::uint64_t id = 1; id <= kConstrained; ++id) {
    llm::TokenConstraint constraint(grammar, model_->vocab());
    EXPECT_EQ(sinks_[id]->tokens, fake_continuation(options_, fake_tokens(prompt(id)), 4, &constraint)) << id;
  }
  EXPECT_EQ(sinks_[kStream]->tokens, expected(prompt(kStream), 40));
}

TEST_F(ReplySamplerTest, TextsWithWhichRepliesBeginShareTheBudgetOfAStep) {
  make({.cells = 1024, .sequences = 8});
  constexpr std::uint64_t kConstrained = 6;
  constexpr std::uint64_t kStream = kConstrained + 1;
  const auto grammar = expensive_grammar();
  llm::TokenConstraint constraint(grammar, model_->vocab());
  std::string begun;
  for (const Token token : fake_continuation(options_, fake_tokens("it begins"), 4, &constraint)) {
    begun += static_cast<char>(token);
  }
  llm::TokenConstraint alone(grammar, model_->vocab());
  ASSERT_TRUE(alone.accept_text(begun));
  ASSERT_GT(3 * alone.work(), ReplySampler::kGrammarWorkPerStep) << "three of them exceed the budget";
  post(job(kStream, "a stream", 40));
  while (sinks_[kStream]->tokens.empty()) step();
  for (std::uint64_t id = 1; id <= kConstrained; ++id) {
    GenerationJob made = job(id, "once upon", 1);
    made.grammar = grammar;
    made.begun = begun;
    post(std::move(made));
  }
  for (int steps = 0; results_.size() < kConstrained; ++steps) {
    ASSERT_LT(steps, 40);
    const std::size_t ended = results_.size();
    const std::size_t streamed = sinks_[kStream]->tokens.size();
    step();
    EXPECT_LE(results_.size() - ended, 3u);
    EXPECT_EQ(sinks_[kStream]->tokens.size(), streamed + 1) << "the stream goes on";
  }
  const std::vector<Token> right = fake_continuation(options_, fake_tokens("once upon"), 1, &alone);
  for (std::uint64_t id = 1; id <= kConstrained; ++id) EXPECT_EQ(sinks_[id]->tokens, right) << id;
}

TEST_F(ReplySamplerTest, AGrammarHoldsForTheTextWithWhichAReplyBeginsIfItCan) {
  make({});
  const auto grammar = grammar::Grammar::parse("root ::= \"ab\" \"cd\"\n").value();
  const std::vector<std::pair<std::string, std::string>> cases = {{"", "abcd"}, {"ab", "cd"}, {"Here it is: ", "abcd"}};
  for (std::uint64_t id = 0; id < cases.size(); ++id) {
    GenerationJob made = job(id, "once upon", 8);
    made.grammar = grammar;
    made.begun = cases[id].first;
    post(std::move(made));
    run();
    EXPECT_EQ(sinks_[id]->tokens, fake_tokens(cases[id].second)) << cases[id].first;
    EXPECT_EQ(eos(id).reason, FinishReason::stop);
  }
}

TEST_F(ReplySamplerTest, ThePenaltiesCountThePromptsTokens) {
  make({});
  const std::string prompt = "the quick brown fox jumps over a lazy dog";
  const std::vector<Token> tokens = fake_tokens(prompt);
  ASSERT_TRUE(std::ranges::contains(tokens, expected(prompt, 1).front()));
  GenerationJob made = job(1, prompt, 1);
  made.sampling.presence_penalty = 100;
  post(std::move(made));
  run();
  ASSERT_EQ(sinks_[1]->tokens.size(), 1u);
  EXPECT_FALSE(std::ranges::contains(tokens, sinks_[1]->tokens.front()));
}

TEST_F(ReplySamplerTest, TheLastTokenOfAnExpensiveGrammarEndsItsRequest) {
  make({.cells = 1024, .row_cost = std::chrono::milliseconds(1)});
  post(job(1, "so that the speed is known"));
  run();
  const std::uint64_t thrown = thrown_count();
  GenerationJob made = job(2, "once upon a time", 2);
  made.grammar = expensive_grammar();
  post(std::move(made));
  run();
  EXPECT_EQ(eos(2).reason, FinishReason::length);
  EXPECT_EQ(thrown_count(), thrown) << "nobody is left to be charged";
}

TEST_F(ReplySamplerTest, DoesNotTellHowLikelyTheTokensOfAStopStringWere) {
  make({});
  const std::vector<Token> all = expected("once upon", 8);
  std::string text;
  for (const Token token : all) text += static_cast<char>(token);
  for (const bool streams : {true, false}) {
    const std::uint64_t id = streams ? 1 : 2;
    GenerationJob made = job(id, "once upon", 8);
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

TEST_F(ReplySamplerTest, TellsTheRestWithTheEnd) {
  make({});
  const std::vector<Token> all = expected("once upon", 4);
  GenerationJob made = job(1, "once upon", 4);
  made.reply.logprobs = 0;
  made.reply.stop = {std::string(1, static_cast<char>(all[3])) + "never"};  // A stop text that holds the last token back.
  post(std::move(made));
  run();
  std::vector<Token> told = chosen_of(sinks_[1]->logprobs);
  EXPECT_EQ(told.size(), 3U);
  for (const Token token : chosen_of(eos(1).logprobs)) told.push_back(token);
  EXPECT_EQ(told, all);
}

TEST_F(ReplySamplerTest, ChargesTheTenantForLogprobsThatWait) {
  make({});
  const auto memory = std::make_shared<TenantBudget>(1 << 20, "requests in flight", "limits.queue_bytes_max");
  for (const bool streams : {true, false}) {
    const std::uint64_t id = streams ? 1 : 2;
    GenerationJob made = job(id, "once upon", 8);
    made.reply.stream = streams;
    made.reply.logprobs = 20;
    made.share = memory->open(TenantId{"a"});
    post(std::move(made));
    run();
    ASSERT_EQ(eos(id).reason, FinishReason::length);
    if (streams) {
      EXPECT_EQ(memory->bytes_used(), 0U) << "the client has them all";
    } else {
      EXPECT_GT(memory->bytes_used(), 8 * 20 * sizeof(TokenLogprob));
    }
    results_.clear();
    EXPECT_EQ(memory->bytes_used(), 0U) << "the answer was written";
  }
}

TEST_F(ReplySamplerTest, EndsAReplyWhoseLogprobsNeedTooMuchMemory) {
  make({});
  const auto memory = std::make_shared<TenantBudget>(40'000, "requests in flight", "limits.queue_bytes_max");
  GenerationJob made = job(1, "once upon", 64);
  made.reply.stream = false;
  made.reply.logprobs = 20;
  made.share = memory->open(TenantId{"a"});
  post(std::move(made));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::error);
  EXPECT_EQ(eos(1).error->code, ErrorCode::limit_wait);
  EXPECT_TRUE(eos(1).error->message.contains("the log probabilities need too much memory after ")) << eos(1).error->message;
  EXPECT_LT(eos(1).usage.completion_tokens, 16);
}

TEST_F(ReplySamplerTest, TellsHowLikelyThePromptWasWhateverIsCached) {
  make({.cells = 400, .sequences = 2});
  const std::string prompt = "the beginning of a long conversation, and its end";
  post(job(1, prompt, 4));
  run();
  for (const std::int32_t tokens_max : {0, 3}) {
    GenerationJob scored = job(2, prompt, tokens_max);
    scored.wants_prompt_logprobs = true;
    scored.reply.logprobs = 1;
    scored.reply.stream = false;
    post(std::move(scored));
    post(job(3, "another prompt", 4));
    run();
    EXPECT_EQ(eos(2).usage.reused_tokens, 0) << "the logits of all rows are needed";
    const std::vector<TokenLogprobs>& told = eos(2).prompt_logprobs;
    const std::vector<Token> tokens = fake_tokens(prompt);
    ASSERT_EQ(chosen_of(told), tokens);
    EXPECT_TRUE(told.front().top.empty());
    for (std::size_t i = 1; i < told.size(); ++i) {
      const std::vector<Token> before(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_EQ(told[i].top.front().token, fake_continuation(options_, before, 1).front()) << i;
      EXPECT_LE(told[i].chosen.logprob, told[i].top.front().logprob);
    }
    EXPECT_EQ(eos(2).usage.completion_tokens, tokens_max);
    EXPECT_EQ(eos(2).logprobs.size(), static_cast<std::size_t>(tokens_max));
    EXPECT_EQ(eos(2).reason, FinishReason::length);
    EXPECT_EQ(sinks_[3]->tokens, expected("another prompt", 4));
    results_.clear();
  }
}

TEST_F(ReplySamplerTest, HowLikelyThePromptWasIsComputedAgainWithItsTokens) {
  make({.cells = 400});
  const auto likelihoods = [&](std::uint64_t id) {
    GenerationJob scored = job(id, "the beginning of a long conversation", 1);
    scored.wants_prompt_logprobs = true;
    scored.reply.logprobs = 1;
    scored.reply.stream = false;
    post(std::move(scored));
    run();
    std::vector<double> values;
    for (const TokenLogprobs& told : eos(id).prompt_logprobs) values.push_back(told.chosen.logprob);
    return values;
  };
  const std::vector<double> right = likelihoods(1);
  bool has_failed = false;
  context_->fault = [&](std::span<const llm::BatchRow>) {
    return std::exchange(has_failed, true) ? FakeFault::none : FakeFault::not_finite;
  };
  EXPECT_EQ(likelihoods(2), right);
  EXPECT_TRUE(has_failed);
}

TEST_F(ReplySamplerTest, LogprobsOfAPromptCountAsMemory) {
  make({.cells = 400});
  const auto memory = std::make_shared<TenantBudget>(4'000, "requests in flight", "limits.queue_bytes_max");
  GenerationJob scored = job(1, "the beginning of a long conversation, and its end", 1);
  scored.wants_prompt_logprobs = true;
  scored.reply.logprobs = 20;
  scored.reply.stream = false;
  scored.share = memory->open(TenantId{"a"});
  post(std::move(scored));
  run();
  EXPECT_EQ(error(1).code, ErrorCode::limit_wait);
}

TEST_F(ReplySamplerTest, WithoutATokenOnlyThePromptIsComputed) {
  make({.cells = 400});
  const std::string prompt = "the beginning of a conversation that is long enough to be found again by the next request for it";
  post(job(1, prompt, 0));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::length);
  EXPECT_EQ(eos(1).usage.completion_tokens, 0);
  EXPECT_TRUE(sinks_[1]->tokens.empty());
  post(job(2, prompt, 4));
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected(prompt, 4));
}

TEST_F(ReplySamplerTest, TheTokenThatEndsAReplyCounts) {
  make({.cells = 400, .end_every = 1});
  GenerationJob scored = job(1, "hello", 8);
  scored.wants_prompt_logprobs = true;
  scored.reply.logprobs = 1;
  post(std::move(scored));
  run();
  const std::vector<Token> generated = results_.at(1).generated;
  EXPECT_EQ(eos(1).reason, FinishReason::stop);
  EXPECT_EQ(eos(1).usage.completion_tokens, static_cast<std::int32_t>(generated.size()) + 1);
  ASSERT_TRUE(eos(1).end_logprobs);
  EXPECT_TRUE(model_->vocab().is_end_of_generation(eos(1).end_logprobs->chosen.token));
}

TEST_F(ReplySamplerTest, GuessesChangeNothingOfHowLikelyTheTokensWere) {
  LaneOptions plain;
  plain.speculates = false;
  make({}, plain);
  GenerationJob alone = job(1, "abcabcabc", 12);
  alone.reply.logprobs = 2;
  post(std::move(alone));
  run();
  const std::vector<TokenLogprobs> without = sinks_[1]->logprobs;
  const std::vector<Token> right = sinks_[1]->tokens;
  LaneOptions drafting;
  drafting.test_drafter = [&](std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft) {
    const std::size_t said = chain.size() - 9;
    for (std::size_t i = said; i < right.size() && std::ssize(draft) < count; ++i) draft.push_back(right[i] + (i % 5 == 4));
  };
  make({}, drafting);
  GenerationJob drafted = job(2, "abcabcabc", 12);
  drafted.reply.logprobs = 2;
  post(std::move(drafted));
  run();
  EXPECT_GT(lane_->stats().drafted_accepted_total.value(), 0U);
  ASSERT_EQ(chosen_of(sinks_[2]->logprobs), right);
  for (std::size_t i = 0; i < without.size(); ++i) {
    EXPECT_EQ(sinks_[2]->logprobs[i].chosen.logprob, without[i].chosen.logprob);
  }
}

TEST_F(ReplySamplerTest, ForcesTheEndOfThoughtsWithAndWithoutDrafts) {
  const std::vector<Token> closing = fake_tokens("</think>");
  const auto thinking = [&](std::uint64_t id) {
    GenerationJob made = job(id, "abcabcabc", 20);
    made.reply.format = {.thoughts = {"<think>", "</think>"}, .begins_with_reasoning = true};
    made.reply.thinking = chat::ThinkingLimit{.tokens_max = 3, .closing = closing};
    return made;
  };
  LaneOptions plain;
  plain.speculates = false;
  make({}, plain);
  std::vector<Token> right = fake_tokens("abcabcabc");
  const std::size_t prompt = right.size();
  const auto append = [&right](const std::vector<Token>& more) { right.insert(right.end(), more.begin(), more.end()); };
  append(fake_continuation(options_, right, 3));
  append(closing);
  append(fake_continuation(options_, right, 20 - 3 - static_cast<std::int32_t>(closing.size())));
  post(thinking(1));
  run();
  EXPECT_EQ(chain_after(1), right);
  EXPECT_EQ(eos(1).usage.completion_tokens, 20);
  EXPECT_EQ(eos(1).usage.reasoning_tokens, 11);
  LaneOptions drafting;
  drafting.test_drafter = [&](std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft) {
    // The model's own continuation, which goes on to think, or the right one.
    if (chain.size() < prompt + 5) {
      draft = fake_continuation(options_, {chain.begin(), chain.end()}, count);
    } else {
      for (std::size_t i = chain.size(); i < right.size() && std::ssize(draft) < count; ++i) draft.push_back(right[i]);
    }
  };
  make({}, drafting);
  post(thinking(2));
  run();
  EXPECT_GT(lane_->stats().drafted_accepted_total.value(), 0U);
  EXPECT_EQ(chain_after(2), right);
}

TEST_F(ReplySamplerTest, ThoughtsThatReachTheLimitOfTokensAreCut) {
  make({});
  GenerationJob made = job(1, "abcabcabc", 5);
  made.reply.format = {.thoughts = {"<think>", "</think>"}, .begins_with_reasoning = true};
  made.reply.thinking = chat::ThinkingLimit{.tokens_max = 3, .closing = fake_tokens("</think>")};
  post(std::move(made));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::length);
  EXPECT_EQ(eos(1).usage.completion_tokens, 5);
}

}  // namespace
}  // namespace uma::engine
