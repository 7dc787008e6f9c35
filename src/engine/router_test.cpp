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

// A catalog in memory that cannot be read for a while.
class FlakyCatalog final : public kv::MemoryCatalog {
 public:
  void read(const SessionId& id, OnRead on_read) override {
    if (fails) return on_read(fail(ErrorCode::io_short_write, "the disk cannot be read"));
    ++readings;
    kv::MemoryCatalog::read(id, std::move(on_read));
  }
  bool fails = false;
  int readings = 0;
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
    options.record_bytes_max = record_bytes_max_;
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
  std::shared_ptr<Sink> generate(const std::string& session, std::int32_t max_tokens = 5) {
    GenerateRequest request;
    request.session = session;
    request.options.max_tokens = max_tokens;
    auto sink = std::make_shared<Sink>();
    router_->generate(RequestId{++last_request_}, kTenant, std::move(request), sink);
    settle();
    return sink;
  }

  testing::SimClock clock_;
  std::shared_ptr<const FakeModel> model_ = std::make_shared<FakeModel>(kOptions);
  FlakyCatalog catalog_;
  std::size_t record_bytes_max_ = RouterOptions().record_bytes_max;
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

TEST_F(RouterTest, WhatIsSaidInIdleSessionsLeavesMemoryAndIsReadWhenItIsNeeded) {
  // The catalog has one reference, and this test the other.
  const auto in_memory = [&](const char* id) { return catalog_.find(SessionId{id}).use_count() > 2; };
  for (const char* id : {"a", "b", "c"}) left_behind(id).chain = {testing::kFakeBos, 'o', 'n', 'c', 'e'};
  for (auto& [id, record] : records_) record.turns = {{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0}};
  record_bytes_max_ = 2 * kv::bytes_of(records_["a"]);
  start();
  load();
  EXPECT_EQ(list()[0].tokens, 5);
  EXPECT_EQ(catalog_.readings, 0) << "a listing reads nothing";
  EXPECT_EQ(get("a")->text, "once");
  EXPECT_EQ(get("b")->text, "once");
  EXPECT_TRUE(in_memory("a") && in_memory("b"));
  EXPECT_EQ(get("a")->text, "once");
  EXPECT_EQ(catalog_.readings, 2) << "what was used of late is there";
  EXPECT_EQ(get("c")->text, "once");
  EXPECT_TRUE(!in_memory("a") && in_memory("b") && in_memory("c"));
  record_bytes_max_ = 0;
  start();
  load();
  const auto sink = generate("a");
  EXPECT_EQ(sink->tokens, fake_continuation(kOptions, {testing::kFakeBos, 'o', 'n', 'c', 'e'}, 5));
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
  catalog_.fails = true;
  const auto sink = generate("a");
  EXPECT_EQ(std::get<FailureEvent>(*sink->terminal).error.code, ErrorCode::io_short_write);
  EXPECT_EQ(append("a").error().code, ErrorCode::io_short_write);
  EXPECT_EQ(get("a").error().code, ErrorCode::io_short_write);
  EXPECT_EQ(list().size(), 1u);
  catalog_.fails = false;
  EXPECT_EQ(generate("a")->tokens.size(), 5u);
  catalog_.fails = true;
  EXPECT_TRUE(ask<Unit>([&](auto reply) { router_->end_session(kTenant, "a", std::move(reply)); })) << "needs no reading";
}

TEST_F(RouterTest, WhoWaitsForAReadingHearsWhenTheSessionEnds) {
  left_behind("a");
  start();
  load();
  std::optional<Expected<SessionDetail>> detail;
  router_->get_session(kTenant, "a", [&](Expected<SessionDetail> got) { detail = std::move(got); });
  router_->end_session(kTenant, "a", [](const Expected<Unit>&) {});
  ASSERT_TRUE(detail);
  EXPECT_EQ(detail->error().code, ErrorCode::session_unknown);
  settle();
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
  const auto exported = ask<ExportedSession>([&](auto reply) { router_->export_session(kTenant, "tale", std::move(reply)); });
  ASSERT_TRUE(exported);
  EXPECT_EQ(exported->info.tokens, 5);
  const auto import = [&](const std::string& name, const Bytes& file) {
    return ask<ImportedSession>(
        [&](auto reply) { router_->import_session(TenantId{"another"}, {name, file}, std::move(reply)); });
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
  Bytes damaged = exported->file;
  damaged[50] ^= std::byte{1};
  EXPECT_EQ(import("third", damaged).error().code, ErrorCode::proto_field);
  EXPECT_EQ(catalog_.size(), 3u) << "what is refused leaves nothing";
  EXPECT_EQ(ask<ExportedSession>([&](auto reply) { router_->export_session(kTenant, "copy", std::move(reply)); }).error().code,
            ErrorCode::session_unknown)
      << "another tenant's";
}

TEST_F(RouterTest, AnImportThatDoesNotFitTheContextIsRefused) {
  kv::SessionRecord& record = left_behind("a");
  record.chain.assign(static_cast<std::size_t>(FakeContext(kOptions).shape().sequence_cells_max), 'x');
  record.turns = {{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0}};
  start();
  load();
  const auto exported = ask<ExportedSession>([&](auto reply) { router_->export_session(kTenant, "a", std::move(reply)); });
  ASSERT_TRUE(exported);
  const auto imported =
      ask<ImportedSession>([&](auto reply) { router_->import_session(kTenant, {"", exported->file}, std::move(reply)); });
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().code, ErrorCode::limit_context);
  EXPECT_EQ(catalog_.size(), 1u);
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
