// Responses in the router: the session that each turn becomes part of, and the state after failures.
#include <algorithm>
#include <format>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace uma::engine {
namespace {

constexpr FakeOptions kResponseOptions{.cells = 4096, .sequences = 4, .has_chat_template = true};

class ResponsesTest : public ::testing::Test, protected EngineBench {
 protected:
  ResponsesTest() : EngineBench(kResponseOptions) { start(); }

  // Starts the daemon again with the catalog.
  void start() {
    start_router({.limits = limits_, .seed = ++lives_});
    load();
  }

  // `previous` is the id of a response in `session`.
  static GenerateRequest request(const std::string& id, const std::string& session = "", const std::string& previous = "",
                                 const std::string& text = "Hello") {
    GenerateRequest request;
    request.session = session;
    request.input.messages = {{"user", text}};
    request.options.max_tokens = 5;
    request.response.emplace();
    request.response->id = id;
    request.response->previous = previous;
    request.response->ttl_s = 1000;
    request.response->request = "asked for " + id;
    return request;
  }
  SinkPtr respond(GenerateRequest request, const TenantId& tenant = kTenant) {
    SinkPtr sink = generate(std::move(request), tenant);
    EXPECT_TRUE(sink->terminal);
    return sink;
  }
  static std::string session_of(const SinkPtr& sink) { return sink->begun.value().session.value; }
  Expected<ResponseDetail> get(const std::string& session, const std::string& id, const TenantId& tenant = kTenant) {
    return wait_for(sessions().get_response(tenant, session, id));
  }
  Expected<Unit> forget(const std::string& session, const std::string& id, const TenantId& tenant = kTenant) {
    return wait_for(sessions().forget_response(tenant, session, id));
  }
  static std::vector<std::string> ids(const kv::SessionRecord& record) {
    std::vector<std::string> all;
    for (const ResponsePtr& response : record.responses) all.push_back(response->id);
    return all;
  }

  Limits limits_;
  std::uint64_t lives_ = 0;
};

using Ids = std::vector<std::string>;

TEST_F(ResponsesTest, WhatIsCancelledWhileItWaitsForAReplyIsGone) {
  const std::string conversation = begin_chat();
  GenerateRequest running = request("running", conversation);
  running.options.max_tokens = 100;
  const auto reply = begin(std::move(running));
  step_until_tokens(*reply);
  const auto memory = std::make_shared<TenantBudget>(1ul << 20, "holders", "the limit");
  for (int i = 0; i < 200; ++i) {
    GenerateRequest waiting = request("waiting", conversation);
    waiting.share = memory->open(kTenant);
    ASSERT_TRUE(waiting.share->grow(1000));
    const auto sink = begin(std::move(waiting));
    router_->step();
    EXPECT_EQ(memory->bytes_used(), 1000u);
    EXPECT_TRUE(router_->cancel(last_id_));
    EXPECT_EQ(memory->bytes_used(), 0u) << "nothing of it is left";
    router_->check_invariants();
  }
  settle();
  EXPECT_EQ(get(conversation, "running")->response->completion_tokens, 100);
}

TEST_F(ResponsesTest, SoManyMayWaitForAReply) {
  const std::string conversation = begin_chat();
  GenerateRequest running = request("running", conversation);
  running.options.max_tokens = 100;
  const auto reply = begin(std::move(running));
  step_until_tokens(*reply);
  std::vector<SinkPtr> sinks;
  for (int i = 0; i < 70; ++i) {
    sinks.push_back(begin(request(std::format("r{}", i), conversation)));
    router_->step();
  }
  const auto may_not_wait = [](const SinkPtr& sink) {
    return sink->has_failed() && sink->error().code == ErrorCode::limit_wait;
  };
  EXPECT_EQ(std::ranges::count_if(sinks, may_not_wait), 6);
  EXPECT_TRUE(may_not_wait(sinks.back()));
  settle();
  EXPECT_EQ(std::ranges::count_if(sinks, may_not_wait), 6);
  for (const auto& sink : sinks) EXPECT_TRUE(sink->terminal) << "they had their turns";
}

TEST_F(ResponsesTest, EachContinuesTheLastAndComputesTheDelta) {
  const auto first = respond(request("one"));
  const std::string session = session_of(first);
  EXPECT_EQ(catalog_.commits, 1) << "input and reply together";
  const auto second = respond(request("two", session, "one", "More"));
  start();
  const auto third = respond(request("three", session, "two", "And?"));
  EXPECT_EQ(session_of(second), session);
  EXPECT_EQ(session_of(third), session);
  EXPECT_EQ(third->begun->turn, 2);
  EXPECT_EQ(third->begun->number, 1);
  EXPECT_EQ(router_->sessions_count(), 1);
  EXPECT_EQ(ids(*kept(session)), (Ids{"one", "two", "three"}));
  EXPECT_EQ(kept(session)->ttl_s, 1000);
  EXPECT_GE(second->eos().usage.reused_tokens, first->eos().usage.prompt_tokens);
  const auto middle = get(session, "two");
  ASSERT_TRUE(middle);
  EXPECT_EQ(middle->response->request, "asked for two");
  EXPECT_EQ(middle->response->reused_tokens, second->eos().usage.reused_tokens);
  EXPECT_EQ(middle->response->reason, FinishReason::length);
  ASSERT_EQ(middle->session.messages.size(), 4u);
  EXPECT_EQ(middle->session.messages[2], (ChatMessage{"user", "More"}));
  EXPECT_EQ(middle->session.turns_begin, (std::vector<std::int32_t>{0, 2}));
}

TEST_F(ResponsesTest, AnEarlierOneIsContinuedInASessionOfItsOwn) {
  const std::string session = session_of(respond(request("one")));
  const auto second = respond(request("two", session, "one", "More"));
  const kv::RecordPtr before = kept(session);
  const auto other = respond(request("other", session, "one", "More"));
  EXPECT_NE(session_of(other), session);
  EXPECT_EQ(other->tokens, second->tokens) << "of the same past";
  EXPECT_EQ(kept(session), before);
  EXPECT_EQ(ids(*kept(session_of(other))), Ids{"other"});
  EXPECT_EQ(kept(session_of(other))->chain, before->chain);
  EXPECT_EQ(other->begun->turn, 1);
}

TEST_F(ResponsesTest, OfTwoAtOnceOneGoesOnInTheSession) {
  const std::string session = session_of(respond(request("one")));
  const auto second = begin(request("two", session, "one", "More"));
  const auto other = begin(request("other", session, "one", "More"));
  settle();
  EXPECT_EQ(session_of(second), session);
  EXPECT_NE(session_of(other), session);
  EXPECT_EQ(other->tokens, second->tokens);
  EXPECT_EQ(ids(*kept(session)), (Ids{"one", "two"}));
  EXPECT_EQ(ids(*kept(session_of(other))), Ids{"other"});
}

TEST_F(ResponsesTest, WhatWasAppendedAfterItIsNotItsPast) {
  const std::string session = session_of(respond(request("one")));
  ASSERT_TRUE(append(session, "Wait"));
  const auto second = respond(request("two", session, "one", "More"));
  EXPECT_NE(session_of(second), session);
  EXPECT_EQ(kept(session_of(second))->messages.size(), 4u);
  EXPECT_EQ(kept(session)->pending_messages, (std::vector<ChatMessage>{{"user", "Wait"}}));
}

TEST_F(ResponsesTest, OneThatIsRefusedLeavesNothing) {
  EXPECT_EQ(respond(request("one", "", "", std::string(5000, 'x')))->error().code, ErrorCode::limit_prompt);
  EXPECT_EQ(router_->sessions_count(), 0);
  EXPECT_EQ(catalog_.kept.size(), 0u);
  const std::string session = session_of(respond(request("one")));
  const kv::RecordPtr before = kept(session);
  EXPECT_EQ(respond(request("two", session, "one", std::string(5000, 'x')))->error().code, ErrorCode::limit_prompt);
  EXPECT_EQ(respond(request("two", session, "zero"))->error().code, ErrorCode::session_unknown);
  EXPECT_EQ(respond(request("two", "nowhere", "one"))->error().code, ErrorCode::session_unknown);
  EXPECT_EQ(respond(request("two", session, "one"), TenantId{"another"})->error().code, ErrorCode::session_unknown);
  EXPECT_EQ(kept(session), before);
  EXPECT_EQ(session_of(respond(request("two", session, "one"))), session) << "and the session goes on";
}

TEST_F(ResponsesTest, OneThatMayBeKeptSaysSo) {
  catalog_.is_unknown = true;
  const auto lost = respond(request("one"));
  ASSERT_TRUE(lost->eos().error);
  EXPECT_EQ(lost->eos().error->code, ErrorCode::outcome_unknown);
  catalog_.is_unknown = false;
  catalog_.is_full = true;
  const auto refused = respond(request("one"));
  ASSERT_TRUE(refused->eos().error);
  EXPECT_EQ(refused->eos().error->code, ErrorCode::io_failed);
}

TEST_F(ResponsesTest, OneThatCannotBeKeptHasNotHappened) {
  const std::string session = session_of(respond(request("one")));
  const kv::RecordPtr before = kept(session);
  catalog_.is_full = true;
  const auto lost = respond(request("two", session, "one"));
  EXPECT_EQ(lost->eos().reason, FinishReason::error);
  EXPECT_EQ(respond(request("new"))->eos().reason, FinishReason::error);
  EXPECT_EQ(kept(session), before);
  EXPECT_EQ(router_->sessions_count(), 1) << "the new session is gone";
  catalog_.is_full = false;
  EXPECT_EQ(session_of(respond(request("two", session, "one"))), session);
  EXPECT_EQ(ids(*kept(session)), (Ids{"one", "two"}));
}

TEST_F(ResponsesTest, ACancelledOneIsKeptAsFarAsItCame) {
  GenerateRequest early = request("early");
  const auto never = begin(early);
  router_->step();
  EXPECT_TRUE(router_->cancel(last_id_));
  settle();
  EXPECT_EQ(never->eos().reason, FinishReason::cancelled);
  EXPECT_EQ(router_->sessions_count(), 0) << "it has no place yet";

  GenerateRequest long_one = request("long");
  long_one.options.max_tokens = 500;
  const auto begun = begin(long_one);
  step_until_tokens(*begun);
  EXPECT_TRUE(router_->cancel(last_id_));
  settle();
  const auto detail = get(session_of(begun), "long");
  ASSERT_TRUE(detail);
  EXPECT_EQ(detail->response->reason, FinishReason::cancelled);
  EXPECT_EQ(static_cast<std::size_t>(detail->response->completion_tokens), begun->tokens.size());
}

TEST_F(ResponsesTest, TheOneThatIsBeingMadeIsCancelledByItsId) {
  const auto cancel = [&](const std::string& session, const std::string& id, const TenantId& tenant = kTenant) {
    return wait_for(sessions().cancel_response(tenant, session, id));
  };
  const std::string session = session_of(respond(request("one")));
  GenerateRequest long_one = request("two", session, "one");
  long_one.options.max_tokens = 500;
  const auto begun = begin(long_one);
  step_until_tokens(*begun);
  const auto of_another = begin(sessions().cancel_response(TenantId{"another"}, session, "two"));
  EXPECT_EQ(of_another->value().error().code, ErrorCode::session_unknown);
  const auto of_the_first = begin(sessions().cancel_response(kTenant, session, "one"));
  step();  // The record is copied by the pool.
  step();
  EXPECT_EQ(of_the_first->value()->response->reason, FinishReason::length) << "it has ended already";
  EXPECT_FALSE(begun->terminal);
  const auto cancelled = cancel(session, "two");
  EXPECT_EQ(begun->eos().reason, FinishReason::cancelled);
  ASSERT_TRUE(cancelled);
  EXPECT_EQ(cancelled->response->reason, FinishReason::cancelled);
  EXPECT_EQ(cancel(session, "three").error().code, ErrorCode::session_unknown);
}

TEST_F(ResponsesTest, ABusySessionNamesTheOneThatIsBeingMade) {
  const std::string conversation = begin_chat();
  GenerateRequest long_one = request("one", conversation);
  long_one.options.max_tokens = 100;
  const auto running = begin(std::move(long_one));
  step_until_tokens(*running);
  const auto info = [&] { return begin(sessions().list(kTenant, {}))->value()->sessions.front(); };
  EXPECT_TRUE(info().busy);
  EXPECT_EQ(info().response, "one");
  settle();
  EXPECT_FALSE(info().busy);
  EXPECT_EQ(info().response, "");
  GenerateRequest plain = request("none", conversation);
  plain.response.reset();
  plain.options.max_tokens = 100;
  const auto other = begin(std::move(plain));
  step_until_tokens(*other);
  EXPECT_TRUE(info().busy);
  EXPECT_EQ(info().response, "") << "no response";
}

TEST_F(ResponsesTest, ReceiptsStayWithTheTurns) {
  const auto kept = [](Usage usage) {
    usage.cache_miss = {};
    return usage;
  };
  const std::string conversation = begin_chat();
  const auto first = respond(request("one", conversation));
  GenerateRequest plain = request("none", conversation, "", "More");
  plain.response.reset();
  const auto second = respond(std::move(plain));
  start();
  const auto receipts = wait_for(sessions().list_receipts(kTenant, conversation));
  ASSERT_TRUE(receipts);
  ASSERT_EQ(receipts->size(), 2u);
  EXPECT_EQ((*receipts)[0].turn, 0);
  EXPECT_EQ((*receipts)[0].receipt->reason, first->eos().reason);
  EXPECT_EQ((*receipts)[0].receipt->usage, kept(first->eos().usage));
  EXPECT_EQ((*receipts)[1].receipt->usage, kept(second->eos().usage)) << "of a reply that is no response, too";
  EXPECT_EQ(get(conversation, "one")->receipt->usage, kept(first->eos().usage));
  EXPECT_EQ(wait_for(sessions().list_receipts(TenantId{"another"}, conversation)).error().code, ErrorCode::session_unknown);

  const std::string copy = fork(conversation)->id.value;
  EXPECT_EQ(wait_for(sessions().list_receipts(kTenant, copy))->size(), 2u);
  ASSERT_TRUE(rewind(copy, 0));
  EXPECT_EQ(wait_for(sessions().list_receipts(kTenant, copy))->size(), 1u);
  // A continued reply has the receipt of its continuation, and the response none.
  GenerateRequest on = request("none", copy, "", "");
  on.input.messages.clear();
  on.response.reset();
  const auto continued = respond(std::move(on));
  EXPECT_EQ(wait_for(sessions().list_receipts(kTenant, copy))->front().receipt->usage, kept(continued->eos().usage));
}

TEST_F(ResponsesTest, InputThatWaitsIsAnswered) {
  const std::string conversation = begin_chat();
  const auto answer = [&](const std::string& id) {
    GenerateRequest made = request(id, conversation);
    made.input.messages.clear();
    return made;
  };
  const auto refused = respond(answer("one"));
  EXPECT_EQ(refused->error().code, ErrorCode::proto_field);
  EXPECT_EQ(refused->error().field, "input");
  ASSERT_TRUE(append(conversation, "Hello"));
  const auto cancelled = begin(answer("never"));
  router_->step();
  EXPECT_TRUE(router_->cancel(last_id_));
  settle();
  EXPECT_EQ(kept(conversation)->pending_messages.size(), 1u) << "the input still waits";
  const auto first = begin(answer("one"));
  const auto second = begin(answer("two"));
  settle();
  EXPECT_EQ(ids(*kept(conversation)), Ids{"one"});
  EXPECT_EQ(second->error().field, "input") << "the first one has answered it";
  const auto whole = respond(request("one"));
  EXPECT_EQ(first->tokens, whole->tokens) << "as if it had come with the request";

  CreateSessionRequest with_system;
  with_system.mode = SessionMode::chat;
  with_system.system = "Be brief";
  GenerateRequest empty = request("one", create(with_system)->id.value);
  empty.input.messages.clear();
  EXPECT_EQ(respond(std::move(empty))->error().field, "input") << "a system prompt is none";
}

TEST_F(ResponsesTest, TheLastInputIsAnsweredAgain) {
  const std::string conversation = begin_chat();
  const auto again = [&](const std::string& id, const std::string& session) {
    GenerateRequest made = request(id, session);
    made.input.messages.clear();
    made.regenerate = true;
    return made;
  };
  EXPECT_EQ(respond(again("none", conversation))->error().code, ErrorCode::proto_field) << "there is no reply";
  respond(request("one", conversation));
  respond(request("two", conversation, "", "More"));
  const kv::RecordPtr before = kept(conversation);
  GenerateRequest long_one = again("never", conversation);
  long_one.options.max_tokens = 100;
  const auto cancelled = begin(std::move(long_one));
  router_->step();
  EXPECT_TRUE(router_->cancel(last_id_));
  settle();
  EXPECT_EQ(kept(conversation), before) << "the reply is dropped when there is another one";
  catalog_.is_full = true;
  EXPECT_EQ(respond(again("lost", conversation))->eos().reason, FinishReason::error);
  catalog_.is_full = false;
  EXPECT_EQ(kept(conversation), before);
  respond(again("three", conversation));
  EXPECT_EQ(ids(*kept(conversation)), (Ids{"one", "three"}));
  EXPECT_EQ(kept(conversation)->turns.size(), 2u);
  EXPECT_EQ(kept(conversation)->messages[2], (ChatMessage{"user", "More"}));
  ASSERT_TRUE(append(conversation, "And?"));
  EXPECT_EQ(respond(again("four", conversation))->error().code, ErrorCode::proto_field) << "input waits";

  // Where only responses are, the first reply can still be requested.
  const std::string session = session_of(respond(request("one")));
  respond(request("two", session, "one", "More"));
  const auto aside = respond(again("again", session));
  EXPECT_NE(session_of(aside), session);
  EXPECT_EQ(ids(*kept(session)), (Ids{"one", "two"}));
  EXPECT_EQ(ids(*kept(session_of(aside))), Ids{"again"});
  EXPECT_EQ(kept(session_of(aside))->turns.size(), 2u);
}

TEST_F(ResponsesTest, ASessionThatEndsInTheMiddleTakesItsResponseAlong) {
  GenerateRequest long_one = request("long");
  long_one.options.max_tokens = 500;
  const auto begun = begin(long_one);
  step_until_tokens(*begun);
  EXPECT_TRUE(end(session_of(begun)));
  EXPECT_EQ(begun->eos().reason, FinishReason::cancelled);
  EXPECT_EQ(router_->sessions_count(), 0);
  EXPECT_EQ(catalog_.kept.size(), 0u);
}

TEST_F(ResponsesTest, ThoseOfAConversationWaitForEachOther) {
  const std::string session = begin_chat();
  const auto first = begin(request("one", session));
  const auto second = begin(request("two", session, "", "More"));
  const auto third = begin(request("three", session, "", "And?"));
  settle();
  EXPECT_EQ(ids(*kept(session)), (Ids{"one", "two", "three"}));
  EXPECT_EQ(third->begun->turn, 2);
  EXPECT_EQ(kept(session)->messages.size(), 6u);
  const auto aside = respond(request("aside", session, "three"));
  EXPECT_NE(session_of(aside), session) << "the conversation was not asked for";
}

TEST_F(ResponsesTest, OneWithAGrammarIsNotOvertaken) {
  const auto with_grammar = [](GenerateRequest request) {
    request.options.grammar = "root ::= [a-z]*";
    return request;
  };
  const std::string conversation = begin_chat();
  const auto first = begin(with_grammar(request("one", conversation)));
  const auto second = begin(request("two", conversation, "", "More"));
  const auto third = begin(with_grammar(request("three", conversation, "", "And?")));
  const auto fourth = begin(request("four", conversation, "", "So?"));
  settle();
  EXPECT_EQ(ids(*kept(conversation)), (Ids{"one", "two", "three", "four"}));

  const std::string session = session_of(respond(request("one")));
  const auto here = begin(with_grammar(request("two", session, "one")));
  const auto aside = begin(request("other", session, "one"));
  settle();
  EXPECT_EQ(session_of(here), session);
  EXPECT_NE(session_of(aside), session);

  GenerateRequest bad = request("bad", session, "two");
  bad.options.grammar = "root ::= other";
  EXPECT_EQ(respond(bad)->error().code, ErrorCode::proto_field);
  EXPECT_EQ(session_of(respond(request("three", session, "two"))), session);
}

TEST_F(ResponsesTest, TheirDeadlineEndsTheWaiting) {
  const std::string session = begin_chat();
  GenerateRequest long_one = request("one", session);
  long_one.options.max_tokens = 500;
  const auto first = begin(long_one);
  step_until_tokens(*first);
  GenerateRequest impatient = request("two", session);
  impatient.options.deadline_ms = 50;
  const auto second = begin(impatient);
  router_->step();
  EXPECT_FALSE(second->terminal);
  clock_.advance(std::chrono::milliseconds(51));
  router_->step();
  EXPECT_EQ(second->error().code, ErrorCode::limit_wait);
  settle();
  EXPECT_EQ(ids(*kept(session)), Ids{"one"});
}

TEST_F(ResponsesTest, WaitingOnesEndWithTheirConversation) {
  const std::string session = begin_chat();
  GenerateRequest long_one = request("one", session);
  long_one.options.max_tokens = 500;
  const auto first = begin(long_one);
  step_until_tokens(*first);
  const auto second = begin(request("two", session));
  const auto forgotten = begin(sessions().forget_response(kTenant, session, "none"));
  EXPECT_FALSE(forgotten->value()) << "there is no such response";
  EXPECT_TRUE(end(session));
  EXPECT_TRUE(first->terminal && second->terminal);
  EXPECT_TRUE(second->tokens.empty());
  EXPECT_EQ(router_->sessions_count(), 0);
}

TEST_F(ResponsesTest, InstructionsThatCannotFitAreRefusedBeforeTheyAreTokenized) {
  GenerateRequest lengthy = request("one");
  lengthy.response->instructions = std::string(1'000'000, 'a');
  const auto refused = respond(std::move(lengthy));
  EXPECT_EQ(refused->error().code, ErrorCode::limit_prompt);
  EXPECT_NE(refused->error().message.find("the fewest that its bytes can be"), std::string::npos) << refused->error().message;
}

TEST_F(ResponsesTest, ASessionKeepsNoMoreThanItsContextIsWorth) {
  GenerateRequest large = request("one");
  large.options.chat.template_arguments = std::format(R"({{"unused":"{}"}})", std::string(200'000, 'a'));
  const auto refused = respond(std::move(large));
  EXPECT_EQ(refused->error().code, ErrorCode::limit_prompt);
  EXPECT_NE(refused->error().message.find("template arguments"), std::string::npos) << refused->error().message;
  EXPECT_EQ(router_->sessions_count(), 0);
}

TEST_F(ResponsesTest, InstructionsAreOfOneReply) {
  GenerateRequest brief = request("one");
  brief.response->instructions = "Be brief";
  const std::string session = session_of(respond(brief));
  EXPECT_EQ(kept(session)->messages.front(), (ChatMessage{"system", "Be brief"}));

  brief = request("two", session, "one", "More");
  brief.response->instructions = "Be brief";
  EXPECT_GT(respond(brief)->eos().usage.reused_tokens, 30) << "the same ones change nothing";

  brief = request("three", session, "two", "And?");
  brief.response->instructions = "Sing";
  const auto sung = respond(brief);
  EXPECT_EQ(session_of(sung), session);
  std::vector<ChatMessage> messages = get(session, "three")->session.messages;
  EXPECT_EQ(messages.front(), (ChatMessage{"system", "Sing"}));
  messages.pop_back();
  EXPECT_EQ(static_cast<std::size_t>(sung->eos().usage.prompt_tokens), written(messages).size());

  const auto plain = respond(request("four", session, "three", "Thanks"));
  EXPECT_EQ(plain->begun->turn, 3);
  messages = get(session, "four")->session.messages;
  ASSERT_EQ(messages.size(), 8u);
  EXPECT_EQ(messages.front(), (ChatMessage{"user", "Hello"}));
  messages.pop_back();
  const std::vector<Token> prompt = written(messages);
  EXPECT_TRUE(std::ranges::equal(std::span(kept(session)->chain).first(prompt.size()), prompt));
  EXPECT_EQ(get(session, "two")->session.messages.size(), 4u) << "the turns are where they were";
  EXPECT_EQ(ids(*kept(session)), (Ids{"one", "two", "three", "four"}));
}

TEST_F(ResponsesTest, OneThatIsNotKeptIsForgotten) {
  const std::string session = session_of(respond(request("one")));
  const kv::RecordPtr before = kept(session);
  GenerateRequest secret = request("secret", session, "one", "More");
  secret.response->is_kept = false;
  const auto aside = respond(secret);
  EXPECT_EQ(aside->eos().reason, FinishReason::length);
  EXPECT_GT(aside->eos().usage.reused_tokens, 0);
  EXPECT_EQ(get(session_of(aside), "secret").error().code, ErrorCode::session_unknown);
  EXPECT_EQ(kept(session), before);
  EXPECT_EQ(router_->sessions_count(), 1);

  const std::string conversation = begin_chat();
  secret = request("secret", conversation);
  secret.response->is_kept = false;
  respond(secret);
  EXPECT_EQ(kept(conversation)->messages.size(), 2u) << "what was said in a conversation stays";
  EXPECT_TRUE(kept(conversation)->responses.empty());
}

TEST_F(ResponsesTest, AForgottenOneGoesWhenNothingStandsOnIt) {
  const std::string session = session_of(respond(request("one")));
  respond(request("two", session, "one", "More"));
  respond(request("three", session, "two", "And?"));
  EXPECT_EQ(forget(session, "two", TenantId{"another"}).error().code, ErrorCode::session_unknown);
  ASSERT_TRUE(forget(session, "two"));
  EXPECT_EQ(get(session, "two").error().code, ErrorCode::session_unknown);
  EXPECT_EQ(forget(session, "two").error().code, ErrorCode::session_unknown);
  EXPECT_EQ(get(session, "three")->session.messages.size(), 6u);
  ASSERT_TRUE(forget(session, "three"));
  EXPECT_EQ(kept(session)->turns.size(), 1u) << "both are gone now";
  EXPECT_EQ(session_of(respond(request("four", session, "one"))), session);
  ASSERT_TRUE(forget(session, "four"));
  ASSERT_TRUE(forget(session, "one"));
  EXPECT_EQ(kept(session), nullptr);

  const std::string conversation = begin_chat();
  respond(request("one", conversation));
  ASSERT_TRUE(forget(conversation, "one"));
  EXPECT_EQ(kept(conversation)->messages.size(), 2u);
}

TEST_F(ResponsesTest, ForgettingWaitsForTheReplyThatIsBeingMadeAndMetadataDoesNot) {
  const std::string session = session_of(respond(request("one")));
  GenerateRequest long_one = request("two", session, "one");
  long_one.options.max_tokens = 50;
  const auto second = begin(long_one);
  step_until_tokens(*second);
  const auto forgotten = begin(sessions().forget_response(kTenant, session, "one"));
  const auto named =
      begin(sessions().update(kTenant, {.session = session, .name = "talk", .metadata = {{R"("k")", R"("v")"}}}));
  for (int i = 0; i < 5 && !*named; ++i) router_->step();
  EXPECT_FALSE(*forgotten);
  ASSERT_TRUE(*named && named->value());
  EXPECT_TRUE(named->value()->busy);
  EXPECT_EQ(named->value()->metadata, R"({"k":"v"})");
  settle();
  ASSERT_TRUE(forgotten->value());
  EXPECT_EQ(ids(*kept(session)), Ids{"two"});
  EXPECT_EQ(kept(session)->metadata, R"({"k":"v"})") << "the reply has not taken it back";
  EXPECT_EQ(kept(session)->name, "talk");
}

TEST_F(ResponsesTest, ANewSessionIsChangedWhenItsFirstReplyHasEnded) {
  const auto first = begin(request("one"));
  step_until_tokens(*first);
  const std::string session = session_of(first);
  const auto named = begin(sessions().update(kTenant, {.session = session, .name = "talk"}));
  router_->step();
  EXPECT_FALSE(*named);
  settle();
  ASSERT_TRUE(named->value());
  EXPECT_EQ(kept(session)->name, "talk");
  EXPECT_EQ(kept(session)->turns.size(), 1u);
}

TEST_F(ResponsesTest, WhatIsSaidLastCanBeTakenBack) {
  const auto remove = [&](const std::string& session, std::int32_t turn, std::int32_t number) {
    return wait_for(sessions().remove_last_message(kTenant, session, {turn, number}));
  };
  const std::string session = begin_chat();
  respond(request("one", session));
  GenerateRequest second = request("two", session, "", "More");
  second.response->instructions = "Be brief";
  const auto before = respond(second);
  const kv::RecordPtr whole = kept(session);
  for (const auto& [turn, number] : {std::pair{1, 0}, {0, 1}, {2, 0}, {1, -1}}) {
    EXPECT_EQ(remove(session, turn, number).error().code, ErrorCode::proto_field);
  }
  EXPECT_EQ(kept(session), whole);

  catalog_.is_full = true;
  EXPECT_EQ(remove(session, 1, 1).error().code, ErrorCode::io_failed);
  catalog_.is_full = false;
  EXPECT_EQ(kept(session), whole);
  const auto left = remove(session, 1, 1);
  ASSERT_TRUE(left);
  EXPECT_EQ(left->pending_messages, (std::vector<ChatMessage>{{"user", "More"}})) << "the input of the reply waits again";
  EXPECT_EQ(ids(*kept(session)), Ids{"one"});
  EXPECT_TRUE(remove(session, 1, 0)->pending_messages.empty());
  EXPECT_EQ(kept(session)->pending.size(), 0u);
  EXPECT_EQ(kept(session)->messages.size(), 3u);
  const auto again = respond(second);
  EXPECT_EQ(again->tokens, before->tokens) << "as if it had not been there";
  EXPECT_EQ(kept(session)->chain, whole->chain);

  ASSERT_TRUE(remove(session, 1, 1) && remove(session, 1, 0) && remove(session, 0, 1));
  ASSERT_EQ(kept(session)->pending_messages.size(), 2u) << "instructions and input";
  ASSERT_TRUE(remove(session, 0, 0));
  EXPECT_TRUE(kept(session)->pending_messages.empty() && kept(session)->pending.empty());
  EXPECT_FALSE(kept(session)->has_instructions);
  EXPECT_EQ(remove(session, 0, 0).error().code, ErrorCode::proto_field) << "nothing is left";
  EXPECT_EQ(remove("nobody", 0, 0).error().code, ErrorCode::session_unknown);
}

TEST_F(ResponsesTest, WhatIsKeptOfDroppedTurnsCannotBeTakenBack) {
  kv::SessionRecord record;
  record.id.value = "a";
  record.tenant = kTenant;
  record.model = "fake";
  record.mode = SessionMode::chat;
  record.on_full = OnFull::shift;
  record.chain = {testing::kFakeBos, 'b', 'r', 'i', 'e', 'f'};
  record.n_keep = 6;
  record.turns_dropped = 3;
  record.messages = {{"system", "brief"}};
  keep(record);
  start();
  for (const std::int32_t turn : {2, 3}) {
    const auto left = wait_for(sessions().remove_last_message(kTenant, "a", {.turn = turn, .number = 0}));
    EXPECT_EQ(left.error().code, ErrorCode::proto_field);
  }
  EXPECT_EQ(*kept("a"), record);
}

TEST_F(ResponsesTest, WithShiftTheOldestOnesGo) {
  GenerateRequest first = request("0", "", "", std::string(200, 'x'));
  first.response->instructions = "Be brief";
  const std::string session = session_of(respond(first));
  int last = 0;
  for (; kept(session)->turns_dropped == 0; ++last) {
    ASSERT_LT(last, 20);
    GenerateRequest next =
        request(std::to_string(last + 1), session, std::to_string(last), std::string(200, static_cast<char>('a' + last)));
    next.response->instructions = "Be brief";
    next.response->on_full = OnFull::shift;
    ASSERT_EQ(session_of(respond(next)), session);
  }
  EXPECT_EQ(kept(session)->messages.front(), (ChatMessage{"system", "Be brief"})) << "instructions are never dropped";
  EXPECT_EQ(get(session, "0").error().code, ErrorCode::session_unknown);
  EXPECT_TRUE(get(session, std::to_string(last)));
  GenerateRequest strict = request("strict", session, std::to_string(last));
  strict.response->instructions = "Be brief";
  strict.response->on_full = OnFull::error;
  EXPECT_EQ(respond(strict)->error().code, ErrorCode::proto_field);
}

TEST_F(ResponsesTest, TheirSessionsCountForTheQuota) {
  limits_.tenant_sessions_max = 1;
  start();
  const auto first = begin(request("one"));
  const auto second = begin(request("two"));
  settle();
  EXPECT_EQ(first->eos().reason, FinishReason::length);
  EXPECT_EQ(second->error().code, ErrorCode::limit_quota);
  ASSERT_TRUE(forget(session_of(first), "one"));
  EXPECT_EQ(respond(request("three"))->eos().reason, FinishReason::length);
}

TEST_F(ResponsesTest, OfAForkOfTheSessionTheyAreNone) {
  const std::string session = session_of(respond(request("one")));
  const auto copy = fork(session);
  EXPECT_TRUE(kept(copy->id.value)->responses.empty());
  EXPECT_EQ(get(copy->id.value, "one").error().code, ErrorCode::session_unknown);
  ASSERT_TRUE(forget(session, "one"));
  EXPECT_NE(kept(copy->id.value), nullptr);
}

TEST_F(ResponsesTest, AResponseThatIsBeingDeletedIsNotContinued) {
  const std::string id = "00000000000000a1";
  const std::string session = session_of(respond(request(id)));
  // Holds the session until its input is tokenized, and found to be too long.
  const auto held =
      begin(sessions().append(kTenant, {.session = session, .input = {.text = std::string(5000, 'x'), .messages = {}}}));
  const auto deleted = begin(sessions().forget_response(kTenant, session, id));
  const SinkPtr next = begin(request("00000000000000a2", session, id));
  settle();
  EXPECT_FALSE(**held);
  EXPECT_TRUE(**deleted);
  EXPECT_TRUE(next->has_failed()) << "its session is gone";
  EXPECT_FALSE(get(session, id));
}

TEST_F(ResponsesTest, CancellingASessionEndsTheReplyInProgress) {
  const std::string conversation = begin_chat();
  GenerateRequest long_one = request("00000000000000a1", conversation);
  long_one.options.max_tokens = 400;
  const SinkPtr running = begin(std::move(long_one));
  step_until_tokens(*running);
  const SinkPtr waiting = begin(request("00000000000000a2", conversation));
  router_->step();
  EXPECT_TRUE(router_->cancel_session(kTenant, conversation));
  settle();
  EXPECT_EQ(running->eos().reason, FinishReason::cancelled);
  EXPECT_EQ(waiting->eos().reason, FinishReason::length) << "it has only waited";
}

}  // namespace
}  // namespace uma::engine
