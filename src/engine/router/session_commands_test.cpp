// Sessions of an earlier daemon, and the session commands of clients.
#include <chrono>
#include <format>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/metadata.h"
#include "engine/router/router_test_support.h"

namespace uma::engine {
namespace {

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
  EXPECT_EQ(get("tale")->text, "once");
  EXPECT_EQ(get("tale")->pending_text, "!");
  const auto sink = generate("tale");
  EXPECT_EQ(sink->tokens, fake_continuation(kRouterOptions, tokens, 5));
  EXPECT_EQ(get("tale")->pending_text, "");
  EXPECT_EQ(kept("a")->turns.size(), 2u);
  EXPECT_EQ(kept("a")->chain.size(), 11u);
  EXPECT_TRUE(get("tale")->text.starts_with("once!"));
}

TEST_F(RouterTest, ListsComeInPagesOldestFirst) {
  for (int i = 0; i < 5; ++i) left_behind(std::format("s{}", i)).created_s = 5 - i;
  left_behind("foreign").tenant = TenantId{"other"};
  start();
  const auto page = [&](SessionListRequest request) { return wait_for(sessions().list(kTenant, std::move(request))); };
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

// An id as the engine makes them; those of larger numbers come later in lists.
std::string listed_id(std::size_t number) {
  return std::format("{:032}", number);
}

TEST_F(RouterTest, ListsAreOrderedByTheLastUseAndPagesShowNoSessionTwice) {
  for (std::size_t i = 0; i < 5; ++i) left_behind(listed_id(i)).last_used_s = 100 + static_cast<std::int64_t>(i / 2);
  start();
  const auto page = [&](const std::string& after, std::int32_t limit = 2) {
    return wait_for(sessions().list(kTenant, {.after = after, .limit = limit, .order = SessionOrder::last_used_first})).value();
  };
  const auto ids_of = [](const SessionList& list) {
    std::string ids;
    for (const SessionInfo& session : list.sessions) ids += session.id.value.substr(30) + " ";
    return ids;
  };
  const SessionList first = page("");
  EXPECT_EQ(ids_of(first), "04 03 ");
  EXPECT_EQ(first.next, "101." + listed_id(3));
  EXPECT_EQ(ids_of(page(listed_id(3))), "02 01 ");
  // What happens between two pages moves none that are still to come.
  clock_.advance(std::chrono::seconds(1));
  ASSERT_TRUE(wait_for(sessions().touch(kTenant, listed_id(3))));
  ASSERT_TRUE(end(listed_id(2)));
  EXPECT_EQ(ids_of(page(first.next)), "01 00 ");
  EXPECT_EQ(page(first.next).next, "");
  EXPECT_EQ(ids_of(page("", 4)), "03 04 01 00 ");
  router_->check_invariants();
}

TEST_F(RouterTest, AListIsSearchedInBoundedSteps) {
  for (std::size_t i = 0; i <= kPageSearchedMax; ++i) left_behind(listed_id(i));
  records_[listed_id(3)].metadata = R"({"title":"The needle"})";
  records_[listed_id(kPageSearchedMax)].name = "needle";
  start();
  const SessionList first = wait_for(sessions().list(kTenant, {.query = "NEEDLE"})).value();
  ASSERT_EQ(first.sessions.size(), 1u);
  EXPECT_EQ(first.sessions[0].metadata, R"({"title":"The needle"})");
  EXPECT_TRUE(first.has_more);
  const SessionList rest = wait_for(sessions().list(kTenant, {.after = first.next, .query = "needle"})).value();
  ASSERT_EQ(rest.sessions.size(), 1u);
  EXPECT_EQ(rest.sessions[0].name, "needle");
  EXPECT_FALSE(rest.has_more);
}

TEST_F(RouterTest, AListHasOnlySoMuchMetadata) {
  const std::string large = std::format(R"({{"a":"{0}","b":"{0}","title":"t"}})", std::string(512, 'x'));
  const std::size_t count = kPageMetadataBytesMax / 512;
  for (std::size_t i = 0; i < count; ++i) left_behind(listed_id(i)).metadata = large;
  records_[listed_id(0)].mode = SessionMode::chat;
  start();
  std::size_t listed = 0;
  std::size_t pages = 0;
  for (SessionList list{.sessions = {}, .has_more = true}; list.has_more; ++pages) {
    list = wait_for(sessions().list(kTenant, {.after = list.next})).value();
    listed += list.sessions.size();
    for (const SessionInfo& session : list.sessions) ASSERT_LE(session.metadata.size(), kListedMetadataBytesMax);
  }
  EXPECT_EQ(listed, count);
  EXPECT_GE(pages, 2u);
  EXPECT_TRUE(wait_for(sessions().list(kTenant, {}))->sessions[0].metadata.starts_with(R"({"title":"t","a":"x)"));
  EXPECT_EQ(get(listed_id(0))->info.metadata, large);
}

TEST_F(RouterTest, ANameAndMetadataAreChangedTogetherOrNotAtAll) {
  left_behind("a").metadata = R"({"title":"old","tags":"x"})";
  left_behind("b").name = "taken";
  left_behind("foreign").tenant = TenantId{"other"};
  start();
  const auto update = [&](UpdateSessionRequest request) { return wait_for(sessions().update(kTenant, std::move(request))); };
  const auto changed = update(
      {.session = "a", .name = "tale", .metadata = {{R"("title")", R"("new")"}, {R"("tags")", ""}, {R"("k")", R"("")"}}});
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->name, "tale");
  EXPECT_EQ(changed->metadata, R"({"title":"new","k":""})");
  EXPECT_EQ(kept("a")->name, "tale");
  EXPECT_EQ(kept("a")->metadata, changed->metadata);

  const auto refused = update({.session = "tale", .name = "taken", .metadata = {{R"("title")", R"("never")"}}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::session_name_taken);
  EXPECT_EQ(kept("a")->metadata, changed->metadata);
  EXPECT_EQ(update({.session = "foreign", .name = "mine"}).error().code, ErrorCode::session_unknown);
  EXPECT_TRUE(update({.session = "tale", .name = "tale"})) << "its own name";

  std::vector<MetadataChange> many;
  for (std::size_t i = 0; i < kMetadataPairsMax; ++i) many.push_back({std::format("\"m{}\"", i), R"("")"});
  EXPECT_EQ(update({.session = "tale", .metadata = many}).error().code, ErrorCode::proto_field);
  EXPECT_TRUE(update({.session = "tale", .metadata = many, .replaces_metadata = true}));
  EXPECT_EQ(metadata_pairs(kept("a")->metadata)->size(), kMetadataPairsMax);

  catalog_.is_full = true;
  EXPECT_EQ(update({.session = "tale", .name = "lost"}).error().code, ErrorCode::io_failed);
  catalog_.is_full = false;
  EXPECT_EQ(get("lost").error().code, ErrorCode::session_unknown);
  EXPECT_TRUE(update({.session = "tale", .name = ""}));
  EXPECT_EQ(get("tale").error().code, ErrorCode::session_unknown);
  EXPECT_TRUE(update({.session = "b", .name = "tale"}));

  const auto one = begin(sessions().update(kTenant, {.session = "a", .name = "both"}));
  const auto two = begin(sessions().update(kTenant, {.session = "b", .name = "both"}));
  settle();
  EXPECT_NE((*one)->has_value(), (*two)->has_value());
  router_->check_invariants();
}

TEST_F(RouterTest, AForkEndsBehindATurnAndKeepsItsParent) {
  kv::SessionRecord& record = left_behind("a");
  record.mode = SessionMode::chat;
  record.metadata = R"({"title":"old","tags":"x"})";
  record.chain = {1, 2, 3, 4};
  record.turns = {{.tokens_begin = 0, .reply_begin = 1, .messages_begin = 0},
                  {.tokens_begin = 2, .reply_begin = 3, .messages_begin = 3}};
  record.messages = {{"system", "s"}, {"user", "1"}, {"assistant", "2"}, {"user", "3"}, {"assistant", "4"}};
  record.pending = {5};
  record.pending_messages = {{"user", "5"}};
  left_behind("text").chain = {1, 2};
  records_["text"].turns = {{.tokens_begin = 0, .reply_begin = 1, .messages_begin = 0}};
  start();
  const auto fork = [&](ForkRequest request) { return wait_for(sessions().fork(kTenant, std::move(request))); };
  const auto all = fork({.session = "a"});
  EXPECT_EQ(all->parent, SessionId{"a"});
  EXPECT_EQ(all->fork_turn, 2);
  EXPECT_EQ(all->pending_tokens, 1);
  const auto first = fork({.session = "a", .name = "first", .turn = 0, .metadata = {{R"("title")", R"("new")"}}});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->turns, 1);
  EXPECT_EQ(first->fork_turn, 1);
  EXPECT_EQ(first->pending_tokens, 0);
  EXPECT_EQ(first->metadata, R"({"title":"new","tags":"x"})");
  const auto none = fork({.session = "a", .turn = ForkRequest::kSystemOnly});
  ASSERT_TRUE(none);
  EXPECT_EQ(none->turns, 0);
  EXPECT_EQ(none->fork_turn, 0);
  EXPECT_EQ(kept(none->id.value)->pending_messages, (std::vector<ChatMessage>{{"system", "s"}}));

  const std::size_t before = list().size();
  EXPECT_EQ(fork({.session = "a", .turn = 2}).error().code, ErrorCode::proto_field);
  EXPECT_EQ(fork({.session = "text", .turn = ForkRequest::kSystemOnly}).error().code, ErrorCode::proto_field);
  EXPECT_EQ(fork({.session = "a", .name = "first", .turn = 0}).error().code, ErrorCode::session_name_taken);
  EXPECT_EQ(list().size(), before);
  ASSERT_TRUE(end("a"));
  EXPECT_EQ(get("first")->info.parent, SessionId{"a"}) << "which has ended";
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
  const auto fork = wait_for(sessions().fork(kTenant, {.session = "a", .name = "fork"}));
  EXPECT_EQ(fork->turns, 2);
  const auto rewound = rewind("a", 0);
  EXPECT_EQ(rewound->turns, 1);
  EXPECT_TRUE(end("b"));
  const auto detail = begin(sessions().get(kTenant, "fork"));
  settle();
  EXPECT_FALSE(*detail) << "the model knows what its tokens say";
  load();
  settle();
  EXPECT_EQ((*detail)->value().text, "xy");
  EXPECT_EQ(generate("fork")->tokens.size(), 5u);
  EXPECT_EQ(disk_.size(), 2u);
}

TEST_F(RouterTest, AReplyThatTheTemplateWritesDifferentlyLaterIsCutFromTheChain) {
  model_ = std::make_shared<FakeModel>(FakeOptions{
      .cells = 1024,
      .sequences = 4,
      .has_chat_template = true,
      .chat_template =
          "{% for m in messages %}<|im_start|>{{ m.content[:2] if m.role == 'assistant' else m.content }}<|im_end|>{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>{% endif %}"});
  left_behind("a").mode = SessionMode::chat;
  start();
  load();
  const auto prompt = [&] { return kv::all_tokens(*kept("a")); };
  const auto written_at_once = [&] {
    std::vector<ChatMessage> messages = kept("a")->messages;
    messages.insert(messages.end(), kept("a")->pending_messages.begin(), kept("a")->pending_messages.end());
    return written(messages);
  };

  ASSERT_TRUE(append("a"));
  const std::vector<Token> first_prompt = prompt();
  const std::vector<Token> first = generate("a")->tokens;
  EXPECT_EQ(first, fake_continuation(kRouterOptions, first_prompt, 5));
  ASSERT_TRUE(append("a"));
  EXPECT_EQ(prompt(), written_at_once()) << "as a client sees it that sends all messages at once";
  ASSERT_TRUE(append("a"));
  EXPECT_EQ(prompt(), written_at_once());
  ASSERT_EQ(kept("a")->turns.size(), 1u);
  EXPECT_EQ(kept("a")->turns[0].reply_begin, static_cast<std::int32_t>(first_prompt.size())) << "all before the reply is kept";
  const std::vector<Token> second_prompt = prompt();
  const std::vector<Token> second = generate("a")->tokens;
  EXPECT_EQ(second, fake_continuation(kRouterOptions, second_prompt, 5));
  EXPECT_EQ(generate("a", 5, /*regenerate=*/true)->tokens, second);

  ASSERT_TRUE(rewind("a", 0));
  EXPECT_EQ(kept("a")->turns.size(), 1u);
  EXPECT_EQ(generate("a", 5, /*regenerate=*/true)->tokens, first) << "from the first prompt again";
  EXPECT_EQ(kept("a")->turns.size(), 1u);
}

TEST_F(RouterTest, TheirTimeToLiveHasGoneOn) {
  for (const char* id : {"a", "b", "c"}) left_behind(id).ttl_s = 60;
  records_["a"].last_used_s -= 1000;
  records_["b"].last_used_s -= 50;
  records_["c"].last_used_s += 1000;  // The clock was put back.
  left_behind("d").last_used_s -= 100'000;
  start();
  settle();
  EXPECT_EQ(kept("a"), nullptr);
  EXPECT_EQ(router_->sessions_count(), 3);
  clock_.advance(std::chrono::seconds(11));
  settle();
  EXPECT_EQ(kept("b"), nullptr);
  clock_.advance(std::chrono::seconds(50));
  settle();
  EXPECT_EQ(kept("c"), nullptr);
  EXPECT_EQ(disk_.size(), 1u);
}

TEST_F(RouterTest, ASessionThatCannotBeForgottenIsWhole) {
  kv::SessionRecord& record = left_behind("a");
  record.name = "tale";
  record.chain = {testing::kFakeBos, 'o', 'n', 'c', 'e'};
  record.turns = {{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0}};
  start();
  load();
  catalog_.is_full = true;
  const auto refused = end("tale");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::io_failed);
  ASSERT_EQ(list().size(), 1u);
  EXPECT_EQ(get("tale")->text, "once");
  catalog_.is_full = false;
  EXPECT_EQ(generate("tale")->tokens.size(), 5u);
  EXPECT_TRUE(end("tale"));
  EXPECT_TRUE(list().empty());
  EXPECT_EQ(disk_.size(), 0u);
  EXPECT_EQ(end("tale").error().code, ErrorCode::session_unknown);
}

TEST_F(RouterTest, ASessionThatEndsTakesWhatRunsAndWaitsWithIt) {
  left_behind("a").pending = {testing::kFakeBos, 'x'};
  start();
  load();
  const auto sink = begin_long_reply("a");
  ASSERT_FALSE(sink->tokens.empty());
  const auto ended = begin(sessions().end(kTenant, "a"));
  const auto ended_again = begin(sessions().end(kTenant, "a"));
  EXPECT_FALSE(*ended || *ended_again) << "its reply has not ended";
  settle();
  EXPECT_TRUE(ended->value() && ended_again->value());
  EXPECT_EQ(sink->eos().reason, FinishReason::cancelled);
  EXPECT_EQ(disk_.size(), 0u);
}

TEST_F(RouterTest, AnEndThatFailsLeavesTheReplyThatItCancelled) {
  left_behind("a").pending = {testing::kFakeBos, 'x'};
  start();
  load();
  const auto sink = begin_long_reply("a");
  const auto ended = begin(sessions().end(kTenant, "a"));
  for (int i = 0; i < 20 && kept("a")->turns.empty(); ++i) {
    lane().step();
    router_->step();
  }
  catalog_.is_full = true;
  settle();
  ASSERT_TRUE(*ended);
  EXPECT_FALSE(ended->value());
  EXPECT_EQ(kept("a")->chain.size(), 2 + sink->tokens.size());
  EXPECT_EQ(get("a")->info.turns, 1);
}

TEST_F(RouterTest, ATimeToLiveThatCouldNotBeKeptIsTriedAgain) {
  left_behind("a").ttl_s = 60;
  start();
  load();
  catalog_.is_full = true;
  clock_.advance(std::chrono::seconds(61));
  settle();
  EXPECT_EQ(list().size(), 1u);
  catalog_.is_full = false;
  settle();
  EXPECT_EQ(disk_.size(), 1u);
  clock_.advance(std::chrono::seconds(61));
  settle();
  EXPECT_TRUE(list().empty());
  EXPECT_EQ(disk_.size(), 0u);
}

TEST_F(RouterTest, SessionsBeyondTheDaemonsLimitAndATenantsQuotaAreRefused) {
  const TenantId other{"other"};
  limits_ = {.max_sessions = 4, .tenant_sessions_max = 3};
  left_behind("a");
  start();
  load();
  EXPECT_TRUE(create_text(kTenant, "b"));
  catalog_.is_full = true;
  EXPECT_EQ(create_text(kTenant).error().code, ErrorCode::io_failed) << "what is not kept does not count";
  catalog_.is_full = false;
  EXPECT_TRUE(fork("a"));
  EXPECT_EQ(create_text(kTenant).error().code, ErrorCode::limit_quota);
  EXPECT_EQ(fork("a").error().code, ErrorCode::limit_quota);
  EXPECT_TRUE(create_text(other, "b"));
  EXPECT_EQ(create_text(other).error().code, ErrorCode::limit_sessions) << "all tenants' together";
  EXPECT_FALSE(end("a", other)) << "another tenant's";
  EXPECT_TRUE(end("b"));
  EXPECT_TRUE(create_text(kTenant));
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
  EXPECT_EQ(create_text(kTenant, "", std::string(30, 'y')).error().code, ErrorCode::limit_quota);
  EXPECT_TRUE(create_text(kTenant)) << "it keeps no tokens";
  EXPECT_TRUE(create_text(TenantId{"other"}, "", std::string(90, 'y')));
  EXPECT_TRUE(append("b", std::string(15, 'y')));
  // A reply that begins below the quota is kept whole; the next one is refused.
  EXPECT_EQ(generate("b", 20)->tokens.size(), 20u);
  const auto refused = generate("b");
  ASSERT_TRUE(refused->has_failed());
  EXPECT_EQ(refused->error().code, ErrorCode::limit_quota);
  EXPECT_TRUE(end("a"));
  EXPECT_EQ(generate("b")->tokens.size(), 5u);
}

TEST_F(RouterTest, InputsOfOneMomentDoNotPassAQuotaTogether) {
  limits_.tenant_tokens_max = 100;
  for (const char* id : {"a", "b"}) left_behind(id).pending = std::vector<Token>(10, 'x');
  start();
  load();
  const auto append_many = [&](const char* id) {
    return begin(sessions().append(kTenant, {.session = id, .input = {.text = std::string(60, 'y'), .messages = {}}}));
  };
  const auto first = append_many("a");
  const auto second = append_many("b");
  settle();
  EXPECT_NE(first->value().has_value(), second->value().has_value());
}

TEST_F(RouterTest, ATouchIsKept) {
  left_behind("a").ttl_s = 60;
  start();
  clock_.advance(std::chrono::seconds(50));
  EXPECT_TRUE(wait_for(sessions().touch(kTenant, "a")));
  EXPECT_EQ(kept("a")->last_used_s, clock_.unix_s());
  clock_.advance(std::chrono::seconds(50));
  start();
  settle();
  EXPECT_EQ(router_->sessions_count(), 1);
}

TEST_F(RouterTest, SessionsOfAnotherModelAreKeptAndListedAndSayWhoseTheyAre) {
  left_behind("a").model = "another";
  records_["a"].pending = {1, 2};
  left_behind("b").pending = {testing::kFakeVocabularySize};  // A file of this name had more tokens.
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
            "session \"a\" uses model \"another\", which this daemon does not serve: serve that model to continue the session");
  EXPECT_EQ(get("a").error().code, ErrorCode::model_unknown);
  EXPECT_EQ(get("c")->messages.size(), 2u);
  EXPECT_EQ(disk_.size(), 3u);
  EXPECT_TRUE(end("a"));
  EXPECT_EQ(disk_.size(), 2u);
}

TEST_F(RouterTest, WhatIsSaidInIdleSessionsLeavesMemoryAndIsReadWhenItIsNeeded) {
  // The catalog has one reference and this test another.
  const auto in_memory = [&](const char* id) { return kept(id).use_count() > 2; };
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
  EXPECT_EQ(kept("a")->turns.size(), 2u) << "the first one was continued";
}

TEST_F(RouterTest, ASessionThatCannotBeReadSaysSoAndGoesOnWhenItCan) {
  left_behind("a").chain = {testing::kFakeBos, 'x'};
  records_["a"].turns = {{.tokens_begin = 0, .reply_begin = 1, .messages_begin = 0}};
  start();
  load();
  catalog_.can_read = false;
  const auto sink = generate("a");
  EXPECT_EQ(sink->error().code, ErrorCode::io_failed);
  EXPECT_EQ(append("a").error().code, ErrorCode::io_failed);
  EXPECT_EQ(get("a").error().code, ErrorCode::io_failed);
  EXPECT_EQ(list().size(), 1u);
  catalog_.can_read = true;
  EXPECT_EQ(generate("a")->tokens.size(), 5u);
  catalog_.can_read = false;
  EXPECT_TRUE(end("a")) << "needs no reading";
}

TEST_F(RouterTest, WhoReadsASessionIsAnsweredBeforeItEnds) {
  left_behind("a");
  start();
  load();
  const auto detail = begin(sessions().get(kTenant, "a"));
  const auto ended = begin(sessions().end(kTenant, "a"));
  settle();
  EXPECT_TRUE(detail->value());
  EXPECT_TRUE(ended->value());
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
  const auto exported = wait_for(router_->transfer().export_session(kTenant, "tale", false));
  ASSERT_TRUE(exported);
  EXPECT_EQ(exported->info.tokens, 5);
  const auto import = [&](const std::string& name, const PortableFile& file) {
    return wait_for(router_->transfer().import_session(TenantId{"another"}, {name, file}));
  };
  const auto imported = import("", exported->file);
  ASSERT_TRUE(imported);
  EXPECT_TRUE(imported->are_tokens_kept);
  EXPECT_EQ(imported->info.name, "tale") << "a name is a tenant's";
  const kv::RecordPtr copy = kept(imported->info.id.value);
  const kv::RecordPtr original = kept("a");
  EXPECT_EQ(copy->chain, original->chain);
  EXPECT_EQ(copy->pending, original->pending);
  EXPECT_EQ(copy->turns, original->turns);
  EXPECT_EQ(copy->tenant.value, "another");
  EXPECT_FALSE(copy->is_public) << "rights do not travel";
  EXPECT_EQ(copy->ttl_s, 0);
  EXPECT_EQ(import("", exported->file).error().message, "field \"name\": a session \"tale\" exists already");
  EXPECT_TRUE(import("copy", exported->file));
  Bytes damaged(exported->file.size());
  PortableReader(exported->file).read(damaged);
  damaged[50] ^= std::byte{1};
  EXPECT_EQ(import("third", file_of(damaged)).error().code, ErrorCode::proto_field);
  EXPECT_EQ(disk_.size(), 3u) << "what is refused leaves nothing";
  EXPECT_EQ(wait_for(router_->transfer().export_session(kTenant, "copy", false)).error().code, ErrorCode::session_unknown)
      << "another tenant's";
}

TEST_F(RouterTest, AnImportThatDoesNotFitTheContextIsRefused) {
  kv::SessionRecord& record = left_behind("a");
  record.chain.assign(static_cast<std::size_t>(FakeContext(kRouterOptions).shape().sequence_cells_max), 'x');
  record.turns = {{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0}};
  start();
  load();
  const auto exported = wait_for(router_->transfer().export_session(kTenant, "a", false));
  ASSERT_TRUE(exported);
  const auto imported = wait_for(router_->transfer().import_session(kTenant, {"", exported->file}));
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().code, ErrorCode::limit_context);
  EXPECT_EQ(disk_.size(), 1u);
}

TEST_F(RouterTest, NewIdsAreNoneThatExist) {
  start(42);
  load();
  const SessionId first = create({})->id;
  start(42);
  load();
  EXPECT_NE(create({})->id, first);
  EXPECT_EQ(disk_.size(), 2u);
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
