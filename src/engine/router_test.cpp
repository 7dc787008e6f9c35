// What a router makes of the sessions that an earlier life of the daemon has left. Everything else of it is watched by
// tests/sim.
#include "engine/router.h"

#include <algorithm>
#include <map>
#include <optional>

#include <gtest/gtest.h>

#include "base/log.h"
#include "testing/fake_model.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

using testing::FakeContext;
using testing::FakeModel;
using testing::FakeOptions;

constexpr FakeOptions kOptions{.cells = 1024, .sequences = 4};
const TenantId kTenant{"test"};

class Sink final : public EventSink {
 public:
  bool deliver(const Event& event) override {
    if (const auto* token = std::get_if<TokenEvent>(&event)) tokens.push_back(token->token);
    if (is_terminal(event)) terminal = event;
    return true;
  }
  std::vector<Token> tokens;
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
    options.model_name = "fake";
    options.seed = seed;
    router_ = std::make_unique<Router>(options, catalog_, store_, preparer_, clock_);
  }
  void load(std::size_t lanes = 1) {
    std::vector<Lane*> made;
    for (std::size_t i = 0; i < lanes; ++i) {
      lanes_.push_back(std::make_unique<Lane>(
          LaneOptions{}, std::make_unique<FakeContext>(kOptions), nullptr, model_->vocab(), clock_, [this](TaskResult result) {
            router_->post([this, result = std::move(result)]() mutable { router_->on_result(std::move(result)); });
          }));
      made.push_back(lanes_.back().get());
    }
    router_->on_loaded(model_, made);
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
    std::optional<Expected<T>> value;
    call(Reply<T>([&value](Expected<T> got) { value = std::move(got); }));
    settle();
    return std::move(value).value();
  }
  std::vector<SessionInfo> list() {
    return ask<std::vector<SessionInfo>>([&](auto reply) { router_->list_sessions(kTenant, std::move(reply)); }).value();
  }
  Expected<SessionDetail> get(const std::string& session) {
    return ask<SessionDetail>([&](auto reply) { router_->get_session(kTenant, session, std::move(reply)); });
  }
  Expected<SessionInfo> append(const std::string& session) {
    return ask<SessionInfo>([&](auto reply) {
      router_->append_input(kTenant, {.session = session, .input = {.text = "more", .messages = {}}}, std::move(reply));
    });
  }
  std::shared_ptr<Sink> generate(const std::string& session, std::int32_t max_tokens = 5, bool regenerate = false) {
    GenerateRequest request;
    request.session = session;
    request.regenerate = regenerate;
    request.options.max_tokens = max_tokens;
    auto sink = std::make_shared<Sink>();
    router_->generate(RequestId{++last_request_}, kTenant, std::move(request), sink);
    settle();
    return sink;
  }

  testing::SimClock clock_;
  std::shared_ptr<const FakeModel> model_ = std::make_shared<FakeModel>(kOptions);
  kv::MemoryCatalog catalog_;
  kv::StateStore store_{{}, nullptr, clock_};
  std::map<std::string, kv::SessionRecord> records_;
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
  EXPECT_EQ(sink->tokens, fake_continuation(kOptions, tokens, 5));
  const kv::RecordPtr kept = catalog_.find(SessionId{"a"});
  EXPECT_EQ(kept->turns.size(), 2u);
  EXPECT_EQ(kept->chain.size(), 11u);
  EXPECT_TRUE(get("tale")->text.starts_with("once!"));
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
  const auto fork = ask<SessionInfo>([&](auto reply) { router_->fork_session(kTenant, "a", "fork", std::move(reply)); });
  EXPECT_EQ(fork->turns, 2);
  const auto rewound = ask<SessionInfo>([&](auto reply) { router_->rewind_session(kTenant, "a", 0, std::move(reply)); });
  EXPECT_EQ(rewound->turns, 1);
  EXPECT_TRUE(ask<Unit>([&](auto reply) { router_->end_session(kTenant, "b", std::move(reply)); }));
  std::optional<Expected<SessionDetail>> text;
  router_->get_session(kTenant, "fork", [&](Expected<SessionDetail> got) { text = std::move(got); });
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
  const auto prompt = [&] {
    std::vector<Token> tokens = kept()->chain;
    tokens.insert(tokens.end(), kept()->pending.begin(), kept()->pending.end());
    return tokens;
  };
  const auto written = [&] {
    std::vector<ChatMessage> messages = kept()->messages;
    messages.insert(messages.end(), kept()->pending_messages.begin(), kept()->pending_messages.end());
    return capability::tokenize_chat(format, {}, messages)->tokens;
  };

  ASSERT_TRUE(append("a"));
  const std::vector<Token> first_prompt = prompt();
  const std::vector<Token> first = generate("a")->tokens;
  EXPECT_EQ(first, fake_continuation(kOptions, first_prompt, 5));
  ASSERT_TRUE(append("a"));
  EXPECT_EQ(prompt(), written()) << "as a client sees it that sends all messages at once";
  ASSERT_TRUE(append("a"));
  EXPECT_EQ(prompt(), written());
  ASSERT_EQ(kept()->turns.size(), 1u);
  EXPECT_EQ(kept()->turns[0].reply_begin, static_cast<std::int32_t>(first_prompt.size())) << "all before the reply is kept";
  const std::vector<Token> second_prompt = prompt();
  const std::vector<Token> second = generate("a")->tokens;
  EXPECT_EQ(second, fake_continuation(kOptions, second_prompt, 5));
  EXPECT_EQ(generate("a", 5, /*regenerate=*/true)->tokens, second);

  ASSERT_TRUE(ask<SessionInfo>([&](auto reply) { router_->rewind_session(kTenant, "a", 0, std::move(reply)); }));
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

TEST_F(RouterTest, ATouchIsKept) {
  left_behind("a").ttl_s = 60;
  start();
  clock_.advance(std::chrono::seconds(50));
  EXPECT_TRUE(ask<SessionInfo>([&](auto reply) { router_->touch_session(kTenant, "a", std::move(reply)); }));
  EXPECT_EQ(catalog_.find(SessionId{"a"})->last_used_s, clock_.unix_s());
  clock_.advance(std::chrono::seconds(50));
  start();
  settle();
  EXPECT_EQ(router_->sessions_count(), 1);
}

TEST_F(RouterTest, SessionsOfAnotherModelAreKeptAndListedAndSayWhoseTheyAre) {
  left_behind("a").model = "another";
  records_["a"].chain = {1, 2};
  left_behind("b").chain = {testing::kFakeVocabularySize};  // a file of this name had more tokens
  left_behind("c").model = "another";
  records_["c"].mode = SessionMode::chat;
  records_["c"].messages = {{"user", "hello"}};
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
            "session \"a\" is of model \"another\", this daemon serves \"fake\": it goes on when its own model is served");
  EXPECT_EQ(get("a").error().code, ErrorCode::model_unknown);
  EXPECT_EQ(get("c")->messages.size(), 1u);
  EXPECT_EQ(catalog_.size(), 3u);
  EXPECT_TRUE(ask<Unit>([&](auto reply) { router_->end_session(kTenant, "a", std::move(reply)); }));
  EXPECT_EQ(catalog_.size(), 2u);
}

TEST_F(RouterTest, NewIdsAreNoneThatExist) {
  const auto create = [&] {
    return ask<SessionInfo>([&](auto reply) { router_->create_session(kTenant, {}, std::move(reply)); })->id;
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

}  // namespace
}  // namespace uma::engine
