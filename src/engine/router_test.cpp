// What a router makes of the sessions that an earlier life of the daemon has left. Everything else of it is watched by
// tests/sim.
#include "engine/router/router.h"

#include <algorithm>
#include <format>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/thrown.h"
#include "engine/router_test_support.h"
#include "engine/worker_source_test_support.h"
#include "testing/fake_model.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

using testing::FakeContext;
using testing::FakeModel;
using testing::FakeOptions;

constexpr FakeOptions kRouterOptions{.cells = 1024, .sequences = 4};

class RouterSink final : public EventSink {
 public:
  bool deliver(const Event& event) override {
    if (const auto* token = std::get_if<TokenEvent>(&event)) tokens.push_back(token->token);
    if (const auto* shift = std::get_if<ContextShiftEvent>(&event)) shifts.push_back(*shift);
    if (is_terminal(event)) terminal = event;
    return true;
  }
  std::vector<Token> tokens;
  std::vector<ContextShiftEvent> shifts;
  std::optional<Event> terminal;
};

class RouterTest : public ::testing::Test {
 protected:
  RouterTest() { init_log(LogLevel::error); }

  kv::SessionRecord& left_behind(const std::string& id) {
    kv::SessionRecord& record = records_[id];
    record.id.value = id;
    record.tenant = kTenant;
    record.model = "fake";
    record.mode = SessionMode::text;
    record.last_used_s = clock_.unix_s();
    return record;
  }
  // A new life: what was left behind is in the catalog.
  void start(std::uint64_t seed = 1) {
    for (const auto& [id, record] : records_) {
      catalog_.commit(std::make_shared<const kv::SessionRecord>(record), nullptr, [](const Expected<Unit>&) {});
    }
    records_.clear();
    lanes_.clear();
    RouterOptions options;
    options.seed = seed;
    options.limits = limits_;
    options.record_bytes_max = record_bytes_max_;
    router_ = std::make_unique<Router>(options, source_, disk_, store_, preparer_, clock_);
  }
  void load(std::size_t lanes = 1) {
    std::vector<Lane*> made;
    for (std::size_t i = 0; i < lanes; ++i) {
      lanes_.push_back(std::make_unique<Lane>(LaneOptions{}, std::make_unique<FakeContext>(kRouterOptions), nullptr,
                                              model_->vocab(), clock_, [this](GenerationResult result) {
                                                router_->post([this, result = std::move(result)]() mutable {
                                                  router_->generations().on_result(std::move(result));
                                                });
                                              }));
      made.push_back(lanes_.back().get());
    }
    router_->on_loaded("fake", chat_model(model_, made));
  }
  void settle() {
    for (int quiet = 0; quiet < 3;) {
      bool worked = router_->step();
      worked |= preparer_.step();
      for (const auto& lane : lanes_) worked |= lane->step().did_work;
      router_->check_invariants();
      quiet = worked ? 0 : quiet + 1;
    }
  }

  // The value of a reply.
  template <class T, class Call>
  Expected<T> ask(Call&& call) {
    std::vector<Expected<T>> values;
    router_->post([&] { call(Reply<T>([&values](Expected<T> got) { values.push_back(std::move(got)); })); });
    settle();
    EXPECT_EQ(values.size(), 1u);
    return std::move(values.at(0));
  }
  std::vector<SessionInfo> list() { return router_->sessions().list(kTenant, {}).value().sessions; }
  Expected<SessionDetail> get(const std::string& session) {
    return ask<SessionDetail>(
        [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().get(kTenant, session)); });
  }
  Expected<SessionInfo> create(const TenantId& tenant, const std::string& name = "", const std::string& system = "") {
    CreateSessionRequest request;
    request.name = name;
    request.system = system;
    request.mode = SessionMode::text;
    return ask<SessionInfo>(
        [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().create(tenant, request)); });
  }
  Expected<Unit> end(const std::string& session, const TenantId& tenant = kTenant) {
    return ask<Unit>([&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().end(tenant, session)); });
  }
  Expected<SessionInfo> fork(const std::string& session) {
    return ask<SessionInfo>(
        [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().fork(kTenant, session, "")); });
  }
  Expected<SessionInfo> append(const std::string& session, const std::string& text = "more") {
    return ask<SessionInfo>([&](auto reply) {
      router_->tasks().answer(
          std::move(reply), router_->sessions().append(kTenant, {.session = session, .input = {.text = text, .messages = {}}}));
    });
  }
  std::shared_ptr<RouterSink> generate(const std::string& session, std::int32_t max_tokens = 5, bool regenerate = false) {
    GenerateRequest request;
    request.session = session;
    request.regenerate = regenerate;
    request.options.max_tokens = max_tokens;
    auto sink = std::make_shared<RouterSink>();
    router_->generations().start(RequestId{++last_request_}, kTenant, std::move(request), {sink});
    settle();
    return sink;
  }

  // One-shot where `session` is empty.
  std::shared_ptr<RouterSink> generate_as(const std::string& grammar, const std::string& session = "",
                                          bool ignore_eos = false) {
    GenerateRequest request;
    request.session = session;
    request.input.text = "say";
    request.options.max_tokens = 40;
    request.options.grammar = grammar;
    request.options.sampling.ignore_eos = ignore_eos;
    auto sink = std::make_shared<RouterSink>();
    router_->generations().start(RequestId{++last_request_}, kTenant, std::move(request), {sink});
    settle();
    return sink;
  }

  // Until its first token, or for some steps.
  std::shared_ptr<RouterSink> begin_long_reply(const std::string& session) {
    auto sink = std::make_shared<RouterSink>();
    GenerateRequest request;
    request.session = session;
    request.options.max_tokens = 500;
    router_->generations().start(RequestId{++last_request_}, kTenant, request, {sink});
    router_->step();
    for (int i = 0; i < 20 && sink->tokens.empty(); ++i) lanes_[0]->step();
    return sink;
  }

  testing::SimClock clock_;
  std::shared_ptr<const FakeModel> model_ = std::make_shared<FakeModel>(kRouterOptions);
  Limits limits_;
  DiskCatalog disk_;
  kv::MemoryCatalog& catalog_ = disk_.kept;
  std::size_t record_bytes_max_ = RouterOptions().record_bytes_max;
  kv::StateStore store_{{}, nullptr, clock_};
  std::map<std::string, kv::SessionRecord> records_;
  NamedModels source_;
  Preparer preparer_;
  std::unique_ptr<Router> router_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::uint64_t last_request_ = 0;
};

TEST_F(RouterTest, SessionsGoOnWhereTheyWere) {
  kv::SessionRecord& record = left_behind("a");
  record.name = "tale";
  record.chain = {testing::kFakeBos, 'o', 'n', 'c', 'e'};
  record.turns = {{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0}};
  record.pending = {'!'};
  std::vector<Token> tokens = record.chain;
  tokens.push_back('!');
  start();
  EXPECT_EQ(router_->sessions_count(), 1);
  load();
  const auto sink = generate("tale");
  EXPECT_EQ(sink->tokens, fake_continuation(kRouterOptions, tokens, 5));
  const kv::RecordPtr kept = catalog_.find(SessionId{"a"});
  EXPECT_EQ(kept->turns.size(), 2u);
  EXPECT_EQ(kept->chain.size(), 11u);
  EXPECT_TRUE(get("tale")->text.starts_with("once!"));
}

// --- What throws

TEST_F(RouterTest, AStepThatThrowsEndsItsRequestAndNoOther) {
  start();
  auto thrown = std::make_shared<RouterSink>();
  auto other = std::make_shared<RouterSink>();
  for (const auto& sink : {thrown, other}) {
    GenerateRequest request;
    request.input.text = "x";
    request.options.max_tokens = 3;
    source_.throws = sink == thrown;
    router_->generations().start(RequestId{++last_request_}, kTenant, std::move(request), {sink});
  }
  settle();
  ASSERT_TRUE(thrown->terminal);
  const Error& error = std::get<FailureEvent>(*thrown->terminal).error;
  EXPECT_EQ(error.code, ErrorCode::runtime_decode);
  EXPECT_FALSE(error.message.contains("bad_alloc")) << "what it says is for the log";
  EXPECT_FALSE(other->terminal);
  load();
  settle();
  EXPECT_EQ(other->tokens.size(), 3u);
  EXPECT_EQ(router_->requests_open(), 0);
}

TEST_F(RouterTest, AChangeThatThrowsIsRefusedAndItsSessionGoesOn) {
  left_behind("a").pending = {'a'};
  start();
  load();
  const std::uint64_t before = thrown_count();
  disk_.throws = true;
  EXPECT_EQ(append("a").error().code, ErrorCode::runtime_decode);
  EXPECT_EQ(create(kTenant).error().code, ErrorCode::runtime_decode);
  EXPECT_EQ(thrown_count(), before + 2);
  disk_.throws = false;
  EXPECT_EQ(list().size(), 1u);
  EXPECT_TRUE(append("a"));
}

TEST_F(RouterTest, AReplyWhoseEndThrowsEndsWithAnError) {
  left_behind("a").pending = {'a'};
  start();
  load();
  disk_.throws = true;
  const auto sink = generate("a", 3);
  EXPECT_EQ(sink->tokens.size(), 3u);
  ASSERT_TRUE(sink->terminal);
  EXPECT_EQ(std::get<EosEvent>(*sink->terminal).reason, FinishReason::error);
  disk_.throws = false;
  const auto again = generate("a", 3);
  EXPECT_EQ(again->tokens, sink->tokens) << "its input is pending again";
  EXPECT_EQ(router_->requests_open(), 0);
}

TEST_F(RouterTest, ASessionIsEndedThoughItsReplyThrew) {
  left_behind("a").pending = {'a'};
  start();
  load();
  const auto sink = begin_long_reply("a");
  std::optional<Expected<Unit>> ended;
  router_->post([&] {
    router_->tasks().answer([&](Expected<Unit> done) { ended = std::move(done); }, router_->sessions().end(kTenant, "a"));
  });
  disk_.throws = true;
  settle();
  EXPECT_TRUE(sink->terminal);
  ASSERT_TRUE(ended) << "answered, one way or the other";
  EXPECT_EQ(router_->requests_open(), 0);
}

// --- Lists

TEST_F(RouterTest, ListsComeInPagesOldestFirst) {
  for (int i = 0; i < 5; ++i) left_behind(std::format("s{}", i)).created_s = 5 - i;
  left_behind("foreign").tenant = TenantId{"other"};
  start();
  const auto page = [&](SessionListRequest request) { return router_->sessions().list(kTenant, request); };
  const auto ids_of = [](const SessionList& list) {
    std::string ids;
    for (const SessionInfo& session : list.sessions) ids += session.id.value + " ";
    return ids;
  };
  const auto first = page({.limit = 3});
  EXPECT_EQ(ids_of(*first), "s4 s3 s2 ");
  EXPECT_TRUE(first->has_more);
  const auto rest = page({.after = "s2", .limit = 3});
  EXPECT_EQ(ids_of(*rest), "s1 s0 ");
  EXPECT_FALSE(rest->has_more);
  EXPECT_FALSE(page({.limit = 5})->has_more);
  EXPECT_EQ(page({.after = "foreign"}).error().code, ErrorCode::session_unknown);
  EXPECT_TRUE(end("s3"));
  EXPECT_EQ(ids_of(*page({})), "s4 s2 s1 s0 ");
}

// --- Generations

TEST_F(RouterTest, GenerationsOfOnePromptShareItAndDifferInTheirSeeds) {
  start();
  load(2);
  GenerateRequest request;
  request.input.text = "once";
  request.options.max_tokens = 5;
  request.options.sampling.temperature = 1;
  request.options.sampling.seed = 7;
  std::vector<std::shared_ptr<RouterSink>> sinks{std::make_shared<RouterSink>(), std::make_shared<RouterSink>(),
                                                 std::make_shared<RouterSink>()};
  router_->generations().start(RequestId{1}, kTenant, request, {sinks.begin(), sinks.end()});
  EXPECT_EQ(router_->requests_open(), 3);
  router_->step();
  EXPECT_TRUE(preparer_.step());
  EXPECT_FALSE(preparer_.step()) << "their prompt is prepared once";
  settle();
  last_request_ = 3;
  for (std::uint64_t i = 0; i < sinks.size(); ++i) {
    ASSERT_TRUE(sinks[i]->terminal);
    EXPECT_EQ(std::get<EosEvent>(*sinks[i]->terminal).usage.seed, 7 + i);
    request.options.sampling.seed = 7 + i;
    auto alone = std::make_shared<RouterSink>();
    router_->generations().start(RequestId{++last_request_}, kTenant, request, {alone});
    settle();
    EXPECT_EQ(alone->tokens, sinks[i]->tokens);
  }
  EXPECT_EQ(router_->requests_open(), 0);
}

TEST_F(RouterTest, WhatEndsBeforeItsPromptIsPreparedEndsWithAllItsGenerations) {
  start();
  load();
  GenerateRequest request;
  request.input.text = "once";
  const auto first = std::make_shared<RouterSink>();
  const auto second = std::make_shared<RouterSink>();
  router_->generations().start(RequestId{1}, kTenant, request, {first, second});
  EXPECT_FALSE(router_->cancel(RequestId{2}));
  EXPECT_FALSE(second->terminal);
  EXPECT_TRUE(router_->cancel(RequestId{1}));
  for (const auto& sink : {first, second}) {
    ASSERT_TRUE(sink->terminal);
    EXPECT_EQ(std::get<EosEvent>(*sink->terminal).reason, FinishReason::cancelled);
  }
  EXPECT_EQ(router_->requests_open(), 0);
  request.options.grammar = "nonsense";
  const auto third = std::make_shared<RouterSink>();
  const auto fourth = std::make_shared<RouterSink>();
  router_->generations().start(RequestId{3}, kTenant, request, {third, fourth});
  settle();
  for (const auto& sink : {third, fourth}) EXPECT_TRUE(std::holds_alternative<FailureEvent>(sink->terminal.value()));
}

TEST_F(RouterTest, AGenerationOfSeveralCanBeCancelledAlone) {
  start();
  load();
  GenerateRequest request;
  request.input.text = "once";
  request.options.max_tokens = 50;
  const auto first = std::make_shared<RouterSink>();
  const auto second = std::make_shared<RouterSink>();
  router_->generations().start(RequestId{1}, kTenant, request, {first, second});
  router_->step();
  preparer_.step();
  router_->step();
  EXPECT_TRUE(router_->cancel(RequestId{2}));
  settle();
  EXPECT_EQ(std::get<EosEvent>(second->terminal.value()).reason, FinishReason::cancelled);
  EXPECT_EQ(first->tokens.size(), 50u);
}

TEST_F(RouterTest, ARequestHoldsMemoryUntilTheLastOfItsGenerationsEnds) {
  start();
  load();
  const auto memory = std::make_shared<TenantBudget>(4096, "holders", "the limit");
  GenerateRequest request;
  request.input.text = std::string(100, 'x');
  request.options.max_tokens = 3;
  request.share = memory->open(kTenant);
  const auto first = std::make_shared<RouterSink>();
  const auto second = std::make_shared<RouterSink>();
  router_->generations().start(RequestId{1}, kTenant, request, {first, second});
  router_->step();
  preparer_.step();
  router_->step();
  const std::uint64_t prompts = 2 * 101 * sizeof(Token);  // with the BOS
  EXPECT_EQ(memory->bytes_used(), prompts);
  (void)router_->cancel(RequestId{2});
  settle();
  ASSERT_TRUE(first->terminal && second->terminal);
  request.share.reset();
  EXPECT_EQ(memory->bytes_used(), 0u);

  const auto small = std::make_shared<TenantBudget>(500, "holders", "the limit");
  request.share = small->open(kTenant);
  const auto refused = std::make_shared<RouterSink>();
  router_->generations().start(RequestId{3}, kTenant, std::move(request), {refused});
  settle();
  EXPECT_EQ(std::get<FailureEvent>(refused->terminal.value()).error.code, ErrorCode::limit_wait);
  EXPECT_EQ(small->bytes_used(), 0u);
}

TEST_F(RouterTest, BeforeTheModelIsLoadedTheyAreThereAlready) {
  kv::SessionRecord& record = left_behind("a");
  record.chain = {testing::kFakeBos, 'x', 'y'};
  record.turns = {{.tokens_begin = 0, .reply_begin = 1, .messages_begin = 0},
                  {.tokens_begin = 2, .reply_begin = 3, .messages_begin = 0}};
  left_behind("b").mode = SessionMode::chat;
  start();
  EXPECT_EQ(list().size(), 2u);
  EXPECT_EQ(list()[0].worker, -1);
  EXPECT_TRUE(get("b"));
  const auto fork = ask<SessionInfo>(
      [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().fork(kTenant, "a", "fork")); });
  EXPECT_EQ(fork->turns, 2);
  const auto rewound = ask<SessionInfo>(
      [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().rewind(kTenant, "a", 0)); });
  EXPECT_EQ(rewound->turns, 1);
  EXPECT_TRUE(ask<Unit>([&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().end(kTenant, "b")); }));
  std::optional<Expected<SessionDetail>> text;
  router_->tasks().answer([&](Expected<SessionDetail> got) { text = std::move(got); },
                          router_->sessions().get(kTenant, "fork"));
  settle();
  EXPECT_FALSE(text) << "the model knows what its tokens say";
  load();
  settle();
  EXPECT_EQ(text->value().text, "xy");
  EXPECT_EQ(generate("fork")->tokens.size(), 5u);
  EXPECT_EQ(catalog_.size(), 2u);
}

TEST_F(RouterTest, AReplyThatTheTemplateWritesDifferentlyLaterIsCutFromTheChain) {
  model_ = std::make_shared<FakeModel>(FakeOptions{
      .cells = 1024,
      .sequences = 4,
      .has_chat_template = true,
      .chat_template =
          "{% for m in messages %}<|im_start|>{{ m.content[:2] if m.role == 'assistant' else m.content }}<|im_end|>{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>{% endif %}"});
  const capability::ChatFormat format(model_);
  left_behind("a").mode = SessionMode::chat;
  start();
  load();
  const auto kept = [&] { return catalog_.find(SessionId{"a"}); };
  const auto prompt = [&] { return kv::all_tokens(*kept()); };
  const auto written = [&] {
    std::vector<ChatMessage> messages = kept()->messages;
    messages.insert(messages.end(), kept()->pending_messages.begin(), kept()->pending_messages.end());
    return capability::tokenize_chat(format, {}, messages)->tokens;
  };

  ASSERT_TRUE(append("a"));
  const std::vector<Token> first_prompt = prompt();
  const std::vector<Token> first = generate("a")->tokens;
  EXPECT_EQ(first, fake_continuation(kRouterOptions, first_prompt, 5));
  ASSERT_TRUE(append("a"));
  EXPECT_EQ(prompt(), written()) << "as a client sees it that sends all messages at once";
  ASSERT_TRUE(append("a"));
  EXPECT_EQ(prompt(), written());
  ASSERT_EQ(kept()->turns.size(), 1u);
  EXPECT_EQ(kept()->turns[0].reply_begin, static_cast<std::int32_t>(first_prompt.size())) << "all before the reply is kept";
  const std::vector<Token> second_prompt = prompt();
  const std::vector<Token> second = generate("a")->tokens;
  EXPECT_EQ(second, fake_continuation(kRouterOptions, second_prompt, 5));
  EXPECT_EQ(generate("a", 5, /*regenerate=*/true)->tokens, second);

  ASSERT_TRUE(ask<SessionInfo>(
      [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().rewind(kTenant, "a", 0)); }));
  EXPECT_EQ(kept()->turns.size(), 1u);
  EXPECT_EQ(generate("a", 5, /*regenerate=*/true)->tokens, first) << "from the first prompt again";
  EXPECT_EQ(kept()->turns.size(), 1u);
}

TEST_F(RouterTest, TheirTimeToLiveHasGoneOn) {
  for (const char* id : {"a", "b", "c"}) left_behind(id).ttl_s = 60;
  records_["a"].last_used_s -= 1000;
  records_["b"].last_used_s -= 50;
  records_["c"].last_used_s += 1000;  // the clock was put back
  left_behind("d").last_used_s -= 100'000;
  start();
  settle();
  EXPECT_EQ(catalog_.find(SessionId{"a"}), nullptr);
  EXPECT_EQ(router_->sessions_count(), 3);
  clock_.advance(std::chrono::seconds(11));
  settle();
  EXPECT_EQ(catalog_.find(SessionId{"b"}), nullptr);
  clock_.advance(std::chrono::seconds(50));
  settle();
  EXPECT_EQ(catalog_.find(SessionId{"c"}), nullptr);
  EXPECT_EQ(catalog_.size(), 1u);
}

TEST_F(RouterTest, ASessionThatCannotBeForgottenIsWhole) {
  kv::SessionRecord& record = left_behind("a");
  record.name = "tale";
  record.chain = {testing::kFakeBos, 'o', 'n', 'c', 'e'};
  record.turns = {{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0}};
  start();
  load();
  disk_.is_full = true;
  const auto refused = end("tale");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::io_short_write);
  ASSERT_EQ(list().size(), 1u);
  EXPECT_EQ(get("tale")->text, "once");
  disk_.is_full = false;
  EXPECT_EQ(generate("tale")->tokens.size(), 5u);
  EXPECT_TRUE(end("tale"));
  EXPECT_TRUE(list().empty());
  EXPECT_EQ(catalog_.size(), 0u);
  EXPECT_EQ(end("tale").error().code, ErrorCode::session_unknown);
}

TEST_F(RouterTest, ASessionThatEndsTakesWhatRunsAndWaitsWithIt) {
  left_behind("a").pending = {testing::kFakeBos, 'x'};
  start();
  load();
  const auto sink = begin_long_reply("a");
  ASSERT_FALSE(sink->tokens.empty());
  std::vector<bool> ended;
  for (int i = 0; i < 2; ++i)
    router_->tasks().answer([&](const Expected<Unit>& done) { ended.push_back(done.has_value()); },
                            router_->sessions().end(kTenant, "a"));
  EXPECT_TRUE(ended.empty()) << "its reply has not ended";
  settle();
  EXPECT_EQ(ended, (std::vector<bool>{true, true}));
  EXPECT_EQ(std::get<EosEvent>(*sink->terminal).reason, FinishReason::cancelled);
  EXPECT_EQ(catalog_.size(), 0u);
}

TEST_F(RouterTest, AnEndThatFailsLeavesTheReplyThatItCancelled) {
  left_behind("a").pending = {testing::kFakeBos, 'x'};
  start();
  load();
  const auto sink = begin_long_reply("a");
  std::optional<Expected<Unit>> ended;
  router_->tasks().answer([&](Expected<Unit> done) { ended = std::move(done); }, router_->sessions().end(kTenant, "a"));
  for (int i = 0; i < 20 && catalog_.find(SessionId{"a"})->turns.empty(); ++i) {
    lanes_[0]->step();
    router_->step();
  }
  disk_.is_full = true;
  settle();
  ASSERT_TRUE(ended && !*ended);
  EXPECT_EQ(catalog_.find(SessionId{"a"})->chain.size(), 2 + sink->tokens.size());
  EXPECT_EQ(get("a")->info.turns, 1);
}

TEST_F(RouterTest, ATimeToLiveThatCouldNotBeKeptIsTriedAgain) {
  left_behind("a").ttl_s = 60;
  start();
  load();
  disk_.is_full = true;
  clock_.advance(std::chrono::seconds(61));
  settle();
  EXPECT_EQ(list().size(), 1u);
  disk_.is_full = false;
  settle();
  EXPECT_EQ(catalog_.size(), 1u);
  clock_.advance(std::chrono::seconds(61));
  settle();
  EXPECT_TRUE(list().empty());
  EXPECT_EQ(catalog_.size(), 0u);
}

TEST_F(RouterTest, SessionsBeyondTheDaemonsLimitAndATenantsQuotaAreRefused) {
  const TenantId other{"other"};
  limits_ = {.max_sessions = 4, .tenant_sessions_max = 3};
  left_behind("a");
  start();
  load();
  EXPECT_TRUE(create(kTenant, "b"));
  disk_.is_full = true;
  EXPECT_EQ(create(kTenant).error().code, ErrorCode::io_short_write) << "what is not kept does not count";
  disk_.is_full = false;
  EXPECT_TRUE(fork("a"));
  EXPECT_EQ(create(kTenant).error().code, ErrorCode::limit_quota);
  EXPECT_EQ(fork("a").error().code, ErrorCode::limit_quota);
  EXPECT_TRUE(create(other, "b"));
  EXPECT_EQ(create(other).error().code, ErrorCode::limit_sessions) << "all tenants' together";
  EXPECT_FALSE(end("a", other)) << "another tenant's";
  EXPECT_TRUE(end("b"));
  EXPECT_TRUE(create(kTenant));
  EXPECT_EQ(list().size(), 3u);
}

TEST_F(RouterTest, TokensBeyondATenantsQuotaAreRefused) {
  limits_.tenant_tokens_max = 100;
  left_behind("a").chain = std::vector<Token>(60, 'x');
  left_behind("b").chain = std::vector<Token>(20, 'x');
  records_["a"].turns = records_["b"].turns = {{.tokens_begin = 0, .reply_begin = 1, .messages_begin = 0}};
  start();
  load();
  EXPECT_EQ(append("b", std::string(30, 'y')).error().code, ErrorCode::limit_quota);
  EXPECT_EQ(fork("a").error().code, ErrorCode::limit_quota);
  EXPECT_EQ(create(kTenant, "", std::string(30, 'y')).error().code, ErrorCode::limit_quota);
  EXPECT_TRUE(create(kTenant)) << "it keeps no tokens";
  EXPECT_TRUE(create(TenantId{"other"}, "", std::string(90, 'y')));
  EXPECT_TRUE(append("b", std::string(15, 'y')));
  // A reply that begins below the quota is kept whole; the next one does not begin.
  EXPECT_EQ(generate("b", 20)->tokens.size(), 20u);
  const auto refused = generate("b");
  ASSERT_TRUE(std::holds_alternative<FailureEvent>(*refused->terminal));
  EXPECT_EQ(std::get<FailureEvent>(*refused->terminal).error.code, ErrorCode::limit_quota);
  EXPECT_TRUE(end("a"));
  EXPECT_EQ(generate("b")->tokens.size(), 5u);
}

TEST_F(RouterTest, InputsOfOneMomentDoNotPassAQuotaTogether) {
  limits_.tenant_tokens_max = 100;
  for (const char* id : {"a", "b"}) left_behind(id).pending = std::vector<Token>(10, 'x');
  start();
  load();
  int kept = 0;
  for (const char* id : {"a", "b"}) {
    router_->tasks().answer(
        [&](const Expected<SessionInfo>& appended) { kept += appended ? 1 : 0; },
        router_->sessions().append(kTenant, {.session = id, .input = {.text = std::string(60, 'y'), .messages = {}}}));
  }
  settle();
  EXPECT_EQ(kept, 1);
}

TEST_F(RouterTest, ATouchIsKept) {
  left_behind("a").ttl_s = 60;
  start();
  clock_.advance(std::chrono::seconds(50));
  EXPECT_TRUE(ask<SessionInfo>(
      [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().touch(kTenant, "a")); }));
  EXPECT_EQ(catalog_.find(SessionId{"a"})->last_used_s, clock_.unix_s());
  clock_.advance(std::chrono::seconds(50));
  start();
  settle();
  EXPECT_EQ(router_->sessions_count(), 1);
}

TEST_F(RouterTest, SessionsOfAnotherModelAreKeptAndListedAndSayWhoseTheyAre) {
  left_behind("a").model = "another";
  records_["a"].pending = {1, 2};
  left_behind("b").pending = {testing::kFakeVocabularySize};  // a file of this name had more tokens
  left_behind("c").model = "another";
  records_["c"].mode = SessionMode::chat;
  records_["c"].chain = {1, 2};
  records_["c"].messages = {{"user", "hello"}, {"assistant", "hi"}};
  records_["c"].turns = {{.tokens_begin = 0, .reply_begin = 1, .messages_begin = 0}};
  start();
  load();
  EXPECT_EQ(list().size(), 3u);
  for (const char* id : {"a", "b", "c"}) {
    const auto sink = generate(id);
    const auto* failure = std::get_if<FailureEvent>(&*sink->terminal);
    ASSERT_NE(failure, nullptr);
    EXPECT_EQ(failure->error.code, ErrorCode::model_unknown);
    const auto appended = append(id);
    ASSERT_FALSE(appended);
    EXPECT_EQ(appended.error().code, ErrorCode::model_unknown);
  }
  EXPECT_EQ(append("a").error().message,
            "session \"a\" is of model \"another\", which this daemon does not serve: it goes on when its own model is served");
  EXPECT_EQ(get("a").error().code, ErrorCode::model_unknown);
  EXPECT_EQ(get("c")->messages.size(), 2u);
  EXPECT_EQ(catalog_.size(), 3u);
  EXPECT_TRUE(ask<Unit>([&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().end(kTenant, "a")); }));
  EXPECT_EQ(catalog_.size(), 2u);
}

TEST_F(RouterTest, WhatIsSaidInIdleSessionsLeavesMemoryAndIsReadWhenItIsNeeded) {
  // The catalog has one reference, and this test the other.
  const auto in_memory = [&](const char* id) { return catalog_.find(SessionId{id}).use_count() > 2; };
  for (const char* id : {"a", "b", "c"}) left_behind(id).chain = {testing::kFakeBos, 'o', 'n', 'c', 'e'};
  for (auto& [id, record] : records_) record.turns = {{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0}};
  record_bytes_max_ = 2 * kv::bytes_of(records_["a"]);
  start();
  load();
  EXPECT_EQ(list()[0].tokens, 5);
  EXPECT_EQ(disk_.readings, 0) << "a listing reads nothing";
  EXPECT_EQ(get("a")->text, "once");
  EXPECT_EQ(get("b")->text, "once");
  EXPECT_TRUE(in_memory("a") && in_memory("b"));
  EXPECT_EQ(get("a")->text, "once");
  EXPECT_EQ(disk_.readings, 2) << "what was used of late is there";
  EXPECT_EQ(get("c")->text, "once");
  EXPECT_TRUE(in_memory("a") && !in_memory("b") && in_memory("c"));
  record_bytes_max_ = 0;
  start();
  load();
  const auto sink = generate("a");
  EXPECT_EQ(sink->tokens, fake_continuation(kRouterOptions, {testing::kFakeBos, 'o', 'n', 'c', 'e'}, 5));
  EXPECT_FALSE(in_memory("a"));
  EXPECT_TRUE(append("a"));
  EXPECT_FALSE(in_memory("a"));
  EXPECT_EQ(generate("a")->tokens.size(), 5u);
  EXPECT_EQ(catalog_.find(SessionId{"a"})->turns.size(), 2u) << "the first one was continued";
}

TEST_F(RouterTest, ASessionThatCannotBeReadSaysSoAndGoesOnWhenItCan) {
  left_behind("a").chain = {testing::kFakeBos, 'x'};
  records_["a"].turns = {{.tokens_begin = 0, .reply_begin = 1, .messages_begin = 0}};
  start();
  load();
  disk_.can_read = false;
  const auto sink = generate("a");
  EXPECT_EQ(std::get<FailureEvent>(*sink->terminal).error.code, ErrorCode::io_short_write);
  EXPECT_EQ(append("a").error().code, ErrorCode::io_short_write);
  EXPECT_EQ(get("a").error().code, ErrorCode::io_short_write);
  EXPECT_EQ(list().size(), 1u);
  disk_.can_read = true;
  EXPECT_EQ(generate("a")->tokens.size(), 5u);
  disk_.can_read = false;
  EXPECT_TRUE(ask<Unit>([&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().end(kTenant, "a")); }))
      << "needs no reading";
}

TEST_F(RouterTest, WhoReadsASessionIsAnsweredBeforeItEnds) {
  left_behind("a");
  start();
  load();
  std::optional<Expected<SessionDetail>> detail;
  router_->tasks().answer([&](Expected<SessionDetail> got) { detail = std::move(got); }, router_->sessions().get(kTenant, "a"));
  router_->tasks().answer([](const Expected<Unit>&) {}, router_->sessions().end(kTenant, "a"));
  settle();
  ASSERT_TRUE(detail);
  EXPECT_TRUE(*detail);
  EXPECT_TRUE(list().empty());
}

TEST_F(RouterTest, AnExportedSessionGoesOnAsAnImportedOne) {
  kv::SessionRecord& record = left_behind("a");
  record.name = "tale";
  record.chain = {testing::kFakeBos, 'o', 'n', 'c', 'e'};
  record.turns = {{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0}};
  record.pending = {'!'};
  record.ttl_s = 60;
  record.is_public = true;
  start();
  load();
  const auto exported = ask<ExportedSession>([&](auto reply) {
    router_->tasks().answer(std::move(reply), router_->transfer().export_session(kTenant, "tale", false));
  });
  ASSERT_TRUE(exported);
  EXPECT_EQ(exported->info.tokens, 5);
  const auto import = [&](const std::string& name, const PortableFile& file) {
    return ask<ImportedSession>([&](auto reply) {
      router_->tasks().answer(std::move(reply), router_->transfer().import_session(TenantId{"another"}, {name, file}));
    });
  };
  const auto imported = import("", exported->file);
  ASSERT_TRUE(imported);
  EXPECT_TRUE(imported->are_tokens_kept);
  EXPECT_EQ(imported->info.name, "tale") << "a name is a tenant's";
  const kv::RecordPtr kept = catalog_.find(imported->info.id);
  const kv::RecordPtr original = catalog_.find(SessionId{"a"});
  EXPECT_EQ(kept->chain, original->chain);
  EXPECT_EQ(kept->pending, original->pending);
  EXPECT_EQ(kept->turns, original->turns);
  EXPECT_EQ(kept->tenant.value, "another");
  EXPECT_FALSE(kept->is_public) << "rights do not travel";
  EXPECT_EQ(kept->ttl_s, 0);
  EXPECT_EQ(import("", exported->file).error().message, "field \"name\": a session \"tale\" exists already");
  EXPECT_TRUE(import("copy", exported->file));
  Bytes damaged(exported->file.size());
  PortableReader(exported->file).read(damaged);
  damaged[50] ^= std::byte{1};
  EXPECT_EQ(import("third", file_of(damaged)).error().code, ErrorCode::proto_field);
  EXPECT_EQ(catalog_.size(), 3u) << "what is refused leaves nothing";
  EXPECT_EQ(ask<ExportedSession>([&](auto reply) {
              router_->tasks().answer(std::move(reply), router_->transfer().export_session(kTenant, "copy", false));
            })
                .error()
                .code,
            ErrorCode::session_unknown)
      << "another tenant's";
}

TEST_F(RouterTest, AnImportThatDoesNotFitTheContextIsRefused) {
  kv::SessionRecord& record = left_behind("a");
  record.chain.assign(static_cast<std::size_t>(FakeContext(kRouterOptions).shape().sequence_cells_max), 'x');
  record.turns = {{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0}};
  start();
  load();
  const auto exported = ask<ExportedSession>(
      [&](auto reply) { router_->tasks().answer(std::move(reply), router_->transfer().export_session(kTenant, "a", false)); });
  ASSERT_TRUE(exported);
  const auto imported = ask<ImportedSession>([&](auto reply) {
    router_->tasks().answer(std::move(reply), router_->transfer().import_session(kTenant, {"", exported->file}));
  });
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().code, ErrorCode::limit_context);
  EXPECT_EQ(catalog_.size(), 1u);
}

TEST_F(RouterTest, NewIdsAreNoneThatExist) {
  const auto create = [&] {
    return ask<SessionInfo>(
               [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().create(kTenant, {})); })
        ->id;
  };
  start(42);
  load();
  const SessionId first = create();
  start(42);
  load();
  EXPECT_NE(create(), first);
  EXPECT_EQ(catalog_.size(), 2u);
}

TEST_F(RouterTest, TheLanesShareThem) {
  for (char id = 'a'; id < 'g'; ++id) left_behind({id});
  start();
  load(3);
  std::map<std::int32_t, int> count;
  for (const SessionInfo& info : list()) ++count[info.worker];
  EXPECT_EQ(count, (std::map<std::int32_t, int>{{0, 2}, {1, 2}, {2, 2}}));
}

// --- A full context: 256 cells for a session
// -----------------------------------------------------------------------------------------

TEST_F(RouterTest, AReplyFollowsItsGrammarAndStopsWhereNothingMayFollow) {
  start();
  load();
  for (const bool ignore_eos : {false, true}) {
    const auto sink = generate_as(R"g(root ::= "(" [x-z]{3} (")" | "]"))g", "", ignore_eos);
    ASSERT_EQ(sink->tokens.size(), 5u);
    EXPECT_EQ(sink->tokens.front(), '(');
    ASSERT_TRUE(std::holds_alternative<EosEvent>(*sink->terminal));
    EXPECT_EQ(std::get<EosEvent>(*sink->terminal).reason, FinishReason::stop);
    EXPECT_EQ(generate_as(R"(root ::= "")", "", ignore_eos)->tokens.size(), 0u);
    EXPECT_EQ(generate_as(R"(root ::= [a-z]*)", "", ignore_eos)->tokens.size(), 40u);
  }
}

// Each has its own place in a grammar that they share.
TEST_F(RouterTest, RepliesAtOnceFollowTheirGrammarsEach) {
  start();
  load();
  std::vector<std::shared_ptr<RouterSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    GenerateRequest request;
    request.input.text = std::string(static_cast<std::size_t>(1 + i), 'q');
    request.options.grammar = i % 2 == 0 ? R"(root ::= "a" [b-d]{20} "e")" : R"(root ::= [0-9]{4,12} ";")";
    sinks.push_back(std::make_shared<RouterSink>());
    router_->generations().start(RequestId{++last_request_}, kTenant, std::move(request), {sinks.back()});
  }
  settle();
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    const std::vector<Token>& tokens = sinks[i]->tokens;
    ASSERT_TRUE(std::holds_alternative<EosEvent>(*sinks[i]->terminal));
    EXPECT_EQ(std::get<EosEvent>(*sinks[i]->terminal).reason, FinishReason::stop);
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
  ASSERT_TRUE(std::holds_alternative<FailureEvent>(*sink->terminal));
  const Error& error = std::get<FailureEvent>(*sink->terminal).error;
  EXPECT_EQ(error.code, ErrorCode::proto_field);
  EXPECT_EQ(error.message, "field \"grammar\": rule \"other\" is used and not defined");
  EXPECT_EQ(get("a")->info.pending_tokens, 2) << "the input of a request that was refused is not appended";
  EXPECT_TRUE(std::holds_alternative<EosEvent>(*generate_as("root ::= [a-z]", "a")->terminal));
}

TEST_F(RouterTest, AReplyIsJsonOfItsSchemaAndASchemaThatCannotBeServedIsRefused) {
  start();
  load();
  const auto generate_json = [&](const std::string& schema) {
    GenerateRequest request;
    request.input.text = "say";
    request.options.max_tokens = 100;
    request.options.json_schema = schema;
    auto sink = std::make_shared<RouterSink>();
    router_->generations().start(RequestId{++last_request_}, kTenant, std::move(request), {sink});
    settle();
    return sink;
  };
  const auto sink = generate_json(R"({"properties":{"a":{"enum":["xy"]},"b":{"const":null}},"required":["a","b"]})");
  ASSERT_TRUE(std::holds_alternative<EosEvent>(*sink->terminal));
  std::string text;
  for (const Token token : sink->tokens) {
    if (token != ' ' && token != '\t' && token != '\n') text += static_cast<char>(token);
  }
  EXPECT_EQ(text, R"({"a":"xy","b":null})");
  const auto message_of = [&](const std::string& schema) {
    const auto refused = generate_json(schema);
    return std::get<FailureEvent>(*refused->terminal).error.message;
  };
  EXPECT_EQ(message_of(R"({"properties":{"a":{"not":{}}}})"),
            "the schema of the reply's format: #/properties/a/not: is not served");
  EXPECT_EQ(message_of(R"({"enum":[]})"), "the schema of the reply's format: no JSON value satisfies the schema");
}

// What is sent to a session right behind a request with a grammar finds it as that request leaves it.
TEST_F(RouterTest, ARequestWithAGrammarIsNotOvertaken) {
  left_behind("a").pending = {testing::kFakeBos, 'x'};
  start();
  load();
  const auto begin = [&](const std::string& grammar) {
    GenerateRequest request;
    request.session = "a";
    request.options.grammar = grammar;
    request.options.max_tokens = 5;
    auto sink = std::make_shared<RouterSink>();
    router_->generations().start(RequestId{++last_request_}, kTenant, std::move(request), {sink});
    return sink;
  };
  const auto first = begin("root ::= [a-z]{9}");
  const auto second = begin("");
  std::optional<Expected<SessionInfo>> appended;
  router_->tasks().answer([&](Expected<SessionInfo> done) { appended = std::move(done); },
                          router_->sessions().append(kTenant, {.session = "a", .input = {.text = "more", .messages = {}}}));
  settle();
  ASSERT_TRUE(std::holds_alternative<EosEvent>(*first->terminal));
  ASSERT_TRUE(std::holds_alternative<FailureEvent>(*second->terminal));
  EXPECT_EQ(std::get<FailureEvent>(*second->terminal).error.code, ErrorCode::session_busy);
  ASSERT_TRUE(appended);
  EXPECT_EQ(appended->error().code, ErrorCode::session_busy);

  const auto refused = begin("root ::= other");
  const auto next = begin("");
  settle();
  EXPECT_TRUE(std::holds_alternative<FailureEvent>(*refused->terminal));
  EXPECT_TRUE(std::holds_alternative<EosEvent>(*next->terminal)) << "nothing is under way";
}

// A grammar of characters that the vocabulary does not have cannot be here: FakeModel has all bytes. One that explodes can.
TEST_F(RouterTest, AReplyThatCannotGoOnEndsWithAnError) {
  std::string gbnf = "root ::= \"a\" choice*\nchoice ::= ";
  for (int i = 0; i < 3000; ++i) gbnf += std::format("{}r{} \"z\"", i == 0 ? "" : " | ", i);
  for (int i = 0; i < 3000; ++i) gbnf += std::format("\nr{} ::= \"a\" [{}-z]", i, static_cast<char>('b' + i % 20));
  start();
  load();
  const auto sink = generate_as(gbnf);
  EXPECT_EQ(sink->tokens, (std::vector<Token>{'a'}));
  ASSERT_TRUE(std::holds_alternative<EosEvent>(*sink->terminal));
  const auto& eos = std::get<EosEvent>(*sink->terminal);
  EXPECT_EQ(eos.reason, FinishReason::error);
  EXPECT_EQ(eos.error->code, ErrorCode::runtime_decode);
}

class FullContext : public RouterTest {
 protected:
  // Three turns of 80 tokens, the letters a, b and c, after a beginning of 5, and 30 tokens of input.
  kv::SessionRecord& full_session(OnFull on_full = OnFull::shift, const std::string& id = "a") {
    kv::SessionRecord& record = left_behind(id);
    record.on_full = on_full;
    record.n_keep = on_full == OnFull::shift ? 5 : 0;
    record.chain = {testing::kFakeBos, 'K', 'E', 'E', 'P'};
    for (const char letter : {'a', 'b', 'c'}) {
      const auto begin = static_cast<std::int32_t>(letter == 'a' ? 0 : record.chain.size());
      record.chain.resize(record.chain.size() + 80, letter);
      record.turns.push_back({.tokens_begin = begin, .reply_begin = begin + 40, .messages_begin = 0});
    }
    record.pending.assign(30, 'd');
    return record;
  }
  kv::RecordPtr kept(const std::string& id = "a") { return catalog_.find(SessionId{id}); }
  Expected<SessionInfo> rewind(std::int32_t turn) {
    return ask<SessionInfo>(
        [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().rewind(kTenant, "a", turn)); });
  }
};

TEST_F(FullContext, WhatAReplyWentOnWithoutIsGoneWithIt) {
  std::vector<Token> tokens = full_session().chain;
  start();
  load();
  const auto sink = generate("a", 60);
  ASSERT_EQ(sink->shifts.size(), 1u);
  EXPECT_EQ(sink->shifts[0].dropped_turns, 1);
  EXPECT_EQ(sink->shifts[0].dropped_tokens, 80) << "275 tokens become 195, which leaves room for 60";
  EXPECT_EQ(std::get<EosEvent>(*sink->terminal).usage.dropped_turns, 1);
  EXPECT_EQ(std::get<EosEvent>(*sink->terminal).usage.prompt_tokens, 195);
  tokens.erase(tokens.begin() + 5, tokens.begin() + 85);
  tokens.resize(tokens.size() + 30, 'd');
  EXPECT_EQ(sink->tokens, fake_continuation(kRouterOptions, tokens, 60));
  tokens.insert(tokens.end(), sink->tokens.begin(), sink->tokens.end());
  EXPECT_EQ(kept()->chain, tokens);
  EXPECT_TRUE(kept()->pending.empty());
  EXPECT_EQ(kept()->turns.size(), 3u);
  EXPECT_EQ(kept()->turns_dropped, 1);
  EXPECT_TRUE(get("a")->text.starts_with("KEEPbbb"));

  const SessionInfo info = list()[0];
  EXPECT_EQ(info.turns, 4);
  EXPECT_EQ(info.dropped_turns, 1);
  EXPECT_EQ(rewind(0).error().message,
            "field \"turn\" is 0, but turns 0 to 0 were dropped when the context was full: the session has turns 1 to 3");
  EXPECT_EQ(rewind(4).error().message, "field \"turn\" is 4, the session has turns 1 to 3");
  const auto fork = ask<SessionInfo>(
      [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().fork(kTenant, "a", "")); });
  EXPECT_EQ(kept(fork->id.value)->chain, tokens);
  EXPECT_EQ(fork->dropped_turns, 1);
  EXPECT_EQ(rewind(1)->turns, 2);
  tokens.resize(85);
  EXPECT_EQ(kept()->chain, tokens);
  start(2);
  EXPECT_EQ(list().size(), 2u);
  EXPECT_EQ(list()[0].dropped_turns, 1);
}

TEST_F(FullContext, AReplyThatFillsItDropsMoreAndIsOneTurn) {
  full_session();
  start();
  load();
  const auto sink = generate("a", 300);
  EXPECT_EQ(sink->shifts.size(), 2u);
  EXPECT_EQ(sink->tokens.size(), 256u - 5 - 30) << "its turn and the beginning fill the context at last";
  EXPECT_EQ(std::get<EosEvent>(*sink->terminal).reason, FinishReason::length);
  EXPECT_EQ(std::get<EosEvent>(*sink->terminal).usage.dropped_tokens, 240);
  EXPECT_EQ(kept()->turns.size(), 1u);
  EXPECT_EQ(kept()->turns_dropped, 3);
  EXPECT_EQ(kept()->chain.size(), 256u);
  EXPECT_TRUE(std::ranges::equal(std::span(kept()->chain).last(sink->tokens.size()), sink->tokens));
  // Going on with the same turn has nothing to drop any more; new input has.
  EXPECT_EQ(std::get<FailureEvent>(*generate("a")->terminal).error.code, ErrorCode::limit_context);
  EXPECT_TRUE(append("a"));
  EXPECT_EQ(generate("a")->shifts.size(), 1u);
  EXPECT_EQ(kept()->chain.size(), 5u + 4 + 5);
}

TEST_F(FullContext, ARequestThatNeverBeganDropsNothing) {
  full_session();
  start();
  load();
  const kv::RecordPtr before = kept();
  GenerateRequest request;
  request.session = "a";
  const auto sink = std::make_shared<RouterSink>();
  router_->generations().start(RequestId{77}, kTenant, request, {sink});
  router_->step();
  lanes_[0]->step();
  EXPECT_EQ(sink->shifts.size(), 1u);
  EXPECT_TRUE(router_->cancel(RequestId{77}));
  settle();
  EXPECT_TRUE(sink->tokens.empty());
  EXPECT_EQ(std::get<EosEvent>(*sink->terminal).reason, FinishReason::cancelled);
  EXPECT_EQ(*kept(), *before);
  EXPECT_EQ(generate("a")->shifts.size(), 1u);
}

TEST_F(FullContext, WithoutOnFullShiftItIsAnErrorAsIsATurnThatNeverFits) {
  full_session(OnFull::error);
  start();
  load();
  const auto sink = generate("a");
  EXPECT_EQ(std::get<FailureEvent>(*sink->terminal).error.code, ErrorCode::limit_context);
  EXPECT_EQ(kept()->turns.size(), 3u);
  full_session(OnFull::shift, "b").pending.assign(252, 'd');
  start(2);
  load();
  EXPECT_EQ(std::get<FailureEvent>(*generate("b")->terminal).error.code, ErrorCode::limit_context);
  EXPECT_FALSE(append("b"));
  EXPECT_EQ(kept("b")->pending.size(), 252u);
}

TEST_F(FullContext, AChatKeepsItsSystemPromptAndLosesTheMessagesThatItLost) {
  start();
  load();
  CreateSessionRequest request;
  request.mode = SessionMode::chat;
  request.system = "be brief";
  request.on_full = OnFull::shift;
  const auto made = ask<SessionInfo>(
      [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().create(kTenant, request)); });
  const std::string id = made->id.value;
  std::size_t shifts = 0;
  for (int turn = 0; turn < 8; ++turn) {
    EXPECT_TRUE(append(id));
    shifts += generate(id, 20)->shifts.size();
  }
  EXPECT_GE(shifts, 2u);
  const SessionDetail detail = get(id).value();
  EXPECT_EQ(detail.info.turns, 8);
  EXPECT_GE(detail.info.dropped_turns, 2);
  ASSERT_EQ(detail.messages.size(), 1u + 2 * static_cast<std::size_t>(8 - detail.info.dropped_turns));
  EXPECT_EQ(detail.messages[0], (ChatMessage{"system", "be brief"}));
  EXPECT_EQ(detail.messages[1].role, "user");
  // What the model sees is what the messages say.
  std::vector<ChatMessage> messages = detail.messages;
  messages.push_back({"user", "last"});
  const auto whole = capability::tokenize_chat(capability::ChatFormat(model_), {}, messages).value().tokens;
  const auto last = ask<SessionInfo>([&](auto reply) {
    router_->tasks().answer(std::move(reply),
                            router_->sessions().append(kTenant, {.session = id, .input = {.text = "last", .messages = {}}}));
  });
  ASSERT_TRUE(last);
  EXPECT_EQ(kv::all_tokens(*kept(id)), whole);
}

}  // namespace
}  // namespace uma::engine
