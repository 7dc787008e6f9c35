// The router: generations, grammars, and exceptions. tests/sim checks arbitrary orders of events.
#include <format>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/thrown.h"
#include "engine/router/router_test_support.h"

namespace uma::engine {
namespace {

TEST_F(RouterTest, AStepThatThrowsEndsItsRequestAndNoOther) {
  start();
  source_.throws = true;
  const auto thrown = begin(one_shot("x", 3));
  source_.throws = false;
  const auto other = begin(one_shot("x", 3));
  settle();
  ASSERT_TRUE(thrown->terminal);
  const Error& error = thrown->error();
  EXPECT_EQ(error.code, ErrorCode::runtime_decode);
  EXPECT_FALSE(error.message.contains("bad_alloc")) << "what it says is for the log";
  EXPECT_FALSE(other->terminal);
  load();
  settle();
  EXPECT_EQ(other->tokens.size(), 3u);
  EXPECT_EQ(router_->requests_open(), 0);
}

TEST_F(RouterTest, TellsWhoWaitsAndHowManyUseAModel) {
  start();
  EXPECT_EQ(router_->activity(), nullptr);
  GenerateRequest wanted = one_shot("x", 30);
  wanted.options.request_class = RequestClass::background;
  const auto sink = begin(std::move(wanted));
  router_->step();
  const auto waiting = router_->activity();
  ASSERT_NE(waiting, nullptr);
  ASSERT_EQ(waiting->waiting.size(), 1u);
  EXPECT_EQ(waiting->waiting_count, 1);
  EXPECT_EQ(waiting->waiting[0].stage, WaitStage::loading);
  EXPECT_EQ(waiting->waiting[0].model, "fake");
  EXPECT_EQ(waiting->waiting[0].tenant, kTenant.value);
  EXPECT_TRUE(waiting->waiting[0].is_background);
  EXPECT_EQ(waiting->tenants.at(kTenant.value).queue_depth, 1);
  load();
  step_until_tokens(*sink);
  const auto running = router_->activity();
  EXPECT_EQ(running->waiting_count, 0);
  EXPECT_EQ(running->model_uses.at("fake"), 1);
  settle();
  EXPECT_EQ(router_->activity()->model_uses.at("fake"), 0);
}

TEST_F(RouterTest, CountsAllWhoWaitAlsoThoseThatAreNotShown) {
  start();
  (void)router_->activity();
  constexpr std::size_t kMore = 6;
  (void)begin_all(one_shot("x"), 1, TenantId{"other"});
  for (std::size_t i = 0; i < kWaitingShownMax + kMore; ++i) (void)begin(one_shot("x"));
  router_->step();
  const auto waiting = router_->activity();
  EXPECT_EQ(waiting->waiting.size(), kWaitingShownMax);
  EXPECT_EQ(waiting->waiting_count, kWaitingShownMax + kMore + 1);
  EXPECT_EQ(waiting->tenants.at(kTenant.value).queue_depth, kWaitingShownMax + kMore);
  EXPECT_EQ(waiting->tenants.at("other").queue_depth, 1);
  load();
  settle();
  EXPECT_TRUE(router_->activity()->tenants.empty());
}

TEST_F(RouterTest, AChangeThatThrowsIsRefusedAndItsSessionGoesOn) {
  left_behind("a").pending = {'a'};
  start();
  load();
  const std::uint64_t before = thrown_count();
  catalog_.throws = true;
  EXPECT_EQ(append("a").error().code, ErrorCode::runtime_decode);
  EXPECT_EQ(create_text(kTenant).error().code, ErrorCode::runtime_decode);
  EXPECT_EQ(thrown_count(), before + 2);
  catalog_.throws = false;
  EXPECT_EQ(list().size(), 1u);
  EXPECT_TRUE(append("a"));
}

TEST_F(RouterTest, AReplyWhoseEndThrowsEndsWithAnError) {
  left_behind("a").pending = {'a'};
  start();
  load();
  catalog_.throws = true;
  const auto sink = generate("a", 3);
  EXPECT_EQ(sink->tokens.size(), 3u);
  ASSERT_TRUE(sink->terminal);
  EXPECT_EQ(sink->eos().reason, FinishReason::error);
  catalog_.throws = false;
  const auto again = generate("a", 3);
  EXPECT_EQ(again->tokens, sink->tokens) << "its input is pending again";
  EXPECT_EQ(router_->requests_open(), 0);
}

TEST_F(RouterTest, ASessionIsEndedThoughItsReplyThrew) {
  left_behind("a").pending = {'a'};
  start();
  load();
  const auto sink = begin_long_reply("a");
  const auto ended = begin(sessions().end(kTenant, "a"));
  catalog_.throws = true;
  settle();
  EXPECT_TRUE(sink->terminal);
  ASSERT_TRUE(*ended) << "answered, one way or the other";
  EXPECT_EQ(router_->requests_open(), 0);
}

TEST_F(RouterTest, GenerationsOfOnePromptShareItAndDifferInTheirSeeds) {
  start();
  load(2);
  GenerateRequest request = one_shot("once");
  request.options.sampling.temperature = 1;
  request.options.sampling.seed = 7;
  const auto sinks = begin_all(request, 3);
  EXPECT_EQ(router_->requests_open(), 3);
  router_->step();
  EXPECT_TRUE(work_.step());
  EXPECT_FALSE(work_.step()) << "their prompt is prepared once";
  settle();
  for (std::uint64_t i = 0; i < sinks.size(); ++i) {
    ASSERT_TRUE(sinks[i]->terminal);
    EXPECT_EQ(sinks[i]->eos().usage.seed, 7 + i);
    request.options.sampling.seed = 7 + i;
    EXPECT_EQ(generate(request)->tokens, sinks[i]->tokens);
  }
  EXPECT_EQ(router_->requests_open(), 0);
}

TEST_F(RouterTest, WhatEndsBeforeItsPromptIsPreparedEndsWithAllItsGenerations) {
  start();
  load();
  GenerateRequest request = one_shot("once");
  const auto sinks = begin_all(request, 2);
  EXPECT_FALSE(router_->cancel(RequestId{2}));
  EXPECT_FALSE(sinks[1]->terminal);
  EXPECT_TRUE(router_->cancel(RequestId{1}));
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->terminal);
    EXPECT_EQ(sink->eos().reason, FinishReason::cancelled);
  }
  EXPECT_EQ(router_->requests_open(), 0);
  request.options.grammar = "nonsense";
  const auto refused = begin_all(request, 2);
  settle();
  for (const auto& sink : refused) EXPECT_TRUE(sink->has_failed());
}

TEST_F(RouterTest, ATextThatNoTokensMakeFitIsRefusedBeforeItIsTokenized) {
  start();
  load();
  const auto sinks = begin_all(one_shot(std::string(1 << 20, 'x')), 1);
  router_->step();
  ASSERT_TRUE(sinks.front()->has_failed()) << "no job has run";
  EXPECT_EQ(sinks.front()->error().code, ErrorCode::limit_prompt);
  EXPECT_TRUE(sinks.front()->error().message.starts_with("prompt is too long: 1048576 tokens > "))
      << sinks.front()->error().message;
}

TEST_F(RouterTest, AGenerationOfSeveralCanBeCancelledAlone) {
  start();
  load();
  const auto sinks = begin_all(one_shot("once", 50), 2);
  router_->step();
  work_.step();
  router_->step();
  EXPECT_TRUE(router_->cancel(RequestId{2}));
  settle();
  EXPECT_EQ(sinks[1]->eos().reason, FinishReason::cancelled);
  EXPECT_EQ(sinks[0]->tokens.size(), 50u);
}

TEST_F(RouterTest, GenerationsThatAClosedLaneDroppedEndWithTheDaemon) {
  start();
  load();
  const auto sinks = begin_all(one_shot("once"), 2);
  router_->step();
  work_.step();
  close_lanes();
  router_->step();  // The request is split, and its lane takes neither generation.
  router_->end_all([] {});
  router_->step();
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->terminal);
    EXPECT_EQ(sink->eos().reason, FinishReason::cancelled);
  }
}

TEST_F(RouterTest, ARequestHoldsMemoryUntilTheLastOfItsGenerationsEnds) {
  start();
  load();
  const auto memory = std::make_shared<TenantBudget>(4096, "holders", "the limit");
  GenerateRequest request = one_shot(std::string(100, 'x'), 3);
  request.share = memory->open(kTenant);
  const auto sinks = begin_all(request, 2);
  router_->step();
  work_.step();
  router_->step();
  const std::uint64_t prompts = 3 * 101 * sizeof(Token);  // Including the BOS: of two replies, and for later comparisons.
  EXPECT_EQ(memory->bytes_used(), prompts);
  (void)router_->cancel(RequestId{2});
  settle();
  ASSERT_TRUE(sinks[0]->terminal && sinks[1]->terminal);
  request.share.reset();
  EXPECT_EQ(memory->bytes_used(), 0u);

  const auto small = std::make_shared<TenantBudget>(500, "holders", "the limit");
  request.share = small->open(kTenant);
  EXPECT_EQ(generate(std::move(request))->error().code, ErrorCode::limit_wait);
  EXPECT_EQ(small->bytes_used(), 0u);
}

TEST_F(RouterTest, AReplyFollowsItsGrammarAndStopsWhereNothingMayFollow) {
  start();
  load();
  for (const bool ignore_eos : {false, true}) {
    const auto sink = generate_as(R"g(root ::= "(" [x-z]{3} (")" | "]"))g", "", ignore_eos);
    ASSERT_EQ(sink->tokens.size(), 5u);
    EXPECT_EQ(sink->tokens.front(), '(');
    ASSERT_TRUE(sink->has_eos());
    EXPECT_EQ(sink->eos().reason, FinishReason::stop);
    EXPECT_EQ(generate_as(R"(root ::= "")", "", ignore_eos)->tokens.size(), 0u);
    EXPECT_EQ(generate_as(R"(root ::= [a-z]*)", "", ignore_eos)->tokens.size(), 40u);
  }
}

// Each reply has its own position in a shared grammar.
TEST_F(RouterTest, RepliesAtOnceFollowTheirGrammarsEach) {
  start();
  load();
  std::vector<SinkPtr> sinks;
  for (int i = 0; i < 6; ++i) {
    GenerateRequest request = one_shot(std::string(static_cast<std::size_t>(1 + i), 'q'), std::nullopt);
    request.options.grammar = i % 2 == 0 ? R"(root ::= "a" [b-d]{20} "e")" : R"(root ::= [0-9]{4,12} ";")";
    sinks.push_back(begin(std::move(request)));
  }
  settle();
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    const std::vector<Token>& tokens = sinks[i]->tokens;
    ASSERT_TRUE(sinks[i]->has_eos());
    EXPECT_EQ(sinks[i]->eos().reason, FinishReason::stop);
    if (i % 2 == 0) {
      ASSERT_EQ(tokens.size(), 22u);
      EXPECT_EQ(tokens.front(), 'a');
      EXPECT_EQ(tokens.back(), 'e');
    } else {
      ASSERT_GE(tokens.size(), 5u);
      EXPECT_EQ(tokens.back(), ';');
    }
  }
}

TEST_F(RouterTest, AGrammarThatIsNoneIsRefusedBeforeAnythingChanges) {
  left_behind("a").pending = {testing::kFakeBos, 'x'};
  start();
  load();
  const auto sink = generate_as("root ::= other", "a");
  ASSERT_TRUE(sink->has_failed());
  const Error& error = sink->error();
  EXPECT_EQ(error.code, ErrorCode::proto_field);
  EXPECT_EQ(error.message, "field \"grammar\": rule \"other\" is used but not defined");
  EXPECT_EQ(get("a")->info.pending_tokens, 2) << "the input of a request that was refused is not appended";
  EXPECT_TRUE(generate_as("root ::= [a-z]", "a")->has_eos());
}

TEST_F(RouterTest, AReplyIsJsonOfItsSchemaAndASchemaThatCannotBeServedIsRefused) {
  start();
  load();
  const auto generate_json = [&](const std::string& schema) {
    GenerateRequest request = one_shot("say", 100);
    request.options.json_schema = schema;
    return generate(std::move(request));
  };
  const auto sink = generate_json(R"({"properties":{"a":{"enum":["xy"]},"b":{"const":null}},"required":["a","b"]})");
  ASSERT_TRUE(sink->has_eos());
  std::string text;
  for (const Token token : sink->tokens) {
    if (token != ' ' && token != '\t' && token != '\n') text += static_cast<char>(token);
  }
  EXPECT_EQ(text, R"({"a":"xy","b":null})");
  const auto message_of = [&](const std::string& schema) { return generate_json(schema)->error().message; };
  EXPECT_EQ(message_of(R"({"properties":{"a":{"type":3}}})"),
            "the schema of the reply's format: #/properties/a/type: must be a type or an array of types");
  const std::string with_not = R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})";
  const std::vector<std::string> left_out = {"response_format.json_schema.schema#/uniqueItems"};
  const auto partly = generate_json(with_not);
  EXPECT_EQ(partly->eos().usage.schema_left_out, left_out);
  GenerateRequest strict = one_shot("say", 100);
  strict.options.json_schema = with_not;
  strict.options.strict_schema = true;
  EXPECT_EQ(generate(std::move(strict))->error().message,
            "the schema of the reply's format: #/uniqueItems: is supported for a few listed values");
  EXPECT_EQ(message_of(R"({"enum":[]})"), "the schema of the reply's format: no JSON value satisfies the schema");
}

// A request right behind one with a grammar finds the session as the first one leaves it.
TEST_F(RouterTest, ARequestWithAGrammarIsNotOvertaken) {
  left_behind("a").pending = {testing::kFakeBos, 'x'};
  start();
  load();
  const auto begin_as = [&](const std::string& grammar) {
    GenerateRequest with_grammar = request("a");
    with_grammar.options.grammar = grammar;
    return begin(std::move(with_grammar));
  };
  const auto first = begin_as("root ::= [a-z]{9}");
  const auto second = begin_as("");
  const auto appended = begin(sessions().append(kTenant, {.session = "a", .input = {.text = "more", .messages = {}}}));
  settle();
  ASSERT_TRUE(first->has_eos());
  ASSERT_TRUE(second->has_failed());
  EXPECT_EQ(second->error().code, ErrorCode::session_busy);
  EXPECT_EQ(appended->value().error().code, ErrorCode::session_busy);

  const auto refused = begin_as("root ::= other");
  const auto next = begin_as("");
  settle();
  EXPECT_TRUE(refused->has_failed());
  EXPECT_TRUE(next->has_eos()) << "nothing is under way";
}

// FakeModel's vocabulary has all bytes, so no grammar can fail for lack of a character; one that explodes can.
TEST_F(RouterTest, AReplyThatCannotGoOnEndsWithAnError) {
  std::string gbnf = "root ::= \"a\" choice choice*\nchoice ::= ";
  for (int i = 0; i < 1500; ++i) gbnf += std::format("{}r{} \"z\"", i == 0 ? "" : " | ", i);
  for (int i = 0; i < 1500; ++i) {
    gbnf += std::format("\nr{} ::= \"a\" [{}-z] | \"a\" [0-9] \"x\"", i, static_cast<char>('b' + i % 20));
  }
  start();
  load();
  const auto sink = generate_as(gbnf);
  EXPECT_EQ(sink->tokens, (std::vector<Token>{'a', 'a'}));
  ASSERT_TRUE(sink->has_eos());
  const auto& eos = sink->eos();
  EXPECT_EQ(eos.reason, FinishReason::error);
  EXPECT_EQ(eos.error->code, ErrorCode::runtime_decode);
}

}  // namespace
}  // namespace uma::engine
