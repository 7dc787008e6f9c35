// Sessions with a full context of 256 cells.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/router/router_test_support.h"

namespace uma::engine {
namespace {

class FullContext : public RouterTest {
 protected:
  // A beginning of 5 tokens, three turns of 80 tokens (the letters a, b and c), and 30 tokens of input.
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
  using EngineBench::kept;
  kv::RecordPtr kept() { return kept("a"); }
};

TEST_F(FullContext, WhatAReplyWentOnWithoutIsGoneWithIt) {
  std::vector<Token> tokens = full_session().chain;
  start();
  load();
  const auto sink = generate("a", 60);
  ASSERT_EQ(sink->shifts.size(), 1u);
  EXPECT_EQ(sink->shifts[0].dropped_turns, 1);
  EXPECT_EQ(sink->shifts[0].dropped_tokens, 80) << "275 tokens become 195, which leaves room for 60";
  EXPECT_EQ(sink->eos().usage.dropped_turns, 1);
  EXPECT_EQ(sink->eos().usage.prompt_tokens, 195);
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
  EXPECT_EQ(rewind("a", 0).error().message,
            "field \"turn\" is 0, but turns 0 to 0 were dropped when the context was full: the session has turns 1 to 3");
  EXPECT_EQ(rewind("a", 4).error().message, "field \"turn\" is 4, the session has turns 1 to 3");
  const auto copy = fork("a");
  EXPECT_EQ(kept(copy->id.value)->chain, tokens);
  EXPECT_EQ(copy->dropped_turns, 1);
  EXPECT_EQ(rewind("a", 1)->turns, 2);
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
  EXPECT_EQ(sink->eos().reason, FinishReason::length);
  EXPECT_EQ(sink->eos().usage.dropped_tokens, 240);
  EXPECT_EQ(kept()->turns.size(), 1u);
  EXPECT_EQ(kept()->turns_dropped, 3);
  EXPECT_EQ(kept()->chain.size(), 256u);
  EXPECT_TRUE(std::ranges::equal(std::span(kept()->chain).last(sink->tokens.size()), sink->tokens));
  // To continue the same turn nothing can be dropped any more; with new input it can.
  EXPECT_EQ(generate("a")->error().code, ErrorCode::limit_context);
  EXPECT_TRUE(append("a"));
  EXPECT_EQ(generate("a")->shifts.size(), 1u);
  EXPECT_EQ(kept()->chain.size(), 5u + 4 + 5);
}

TEST_F(FullContext, ARequestThatNeverBeganDropsNothing) {
  full_session();
  start();
  load();
  const kv::RecordPtr before = kept();
  const auto sink = begin(request("a", std::nullopt));
  router_->step();
  lane().step();
  EXPECT_EQ(sink->shifts.size(), 1u);
  EXPECT_TRUE(router_->cancel(last_id_));
  settle();
  EXPECT_TRUE(sink->tokens.empty());
  EXPECT_EQ(sink->eos().reason, FinishReason::cancelled);
  EXPECT_EQ(*kept(), *before);
  EXPECT_EQ(generate("a")->shifts.size(), 1u);
}

TEST_F(FullContext, WithoutOnFullShiftItIsAnErrorAsIsATurnThatNeverFits) {
  full_session(OnFull::error);
  start();
  load();
  const auto sink = generate("a");
  EXPECT_EQ(sink->error().code, ErrorCode::limit_context);
  EXPECT_EQ(kept()->turns.size(), 3u);
  full_session(OnFull::shift, "b").pending.assign(252, 'd');
  start(2);
  load();
  EXPECT_EQ(generate("b")->error().code, ErrorCode::limit_context);
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
  const auto made = create(request);
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
  // The model's tokens are those of the messages.
  std::vector<ChatMessage> messages = detail.messages;
  messages.push_back({"user", "last"});
  const auto whole = written(messages);
  ASSERT_TRUE(append(id, "last"));
  EXPECT_EQ(kv::all_tokens(*kept(id)), whole);
}

TEST_F(FullContext, KeptTokensAreWrittenOnceWhenTheOnlyTurnLeftIsAnsweredAgain) {
  for (const std::string system : {"", "be brief"}) {
    for (const bool has_other_tools : {false, true}) {
      start();
      load();
      CreateSessionRequest request;
      request.mode = SessionMode::chat;
      request.system = system;
      request.on_full = OnFull::shift;
      const std::string id = create(request)->id.value;
      for (const int length : {20, 200}) {
        ASSERT_TRUE(append(id));
        generate(id, length);
      }
      ASSERT_EQ(get(id)->info.dropped_turns, 1);
      ASSERT_EQ(get(id)->info.turns, 2);
      const kv::RecordPtr before = kept(id);
      GenerateRequest again;
      again.session = id;
      again.regenerate = true;
      again.options.max_tokens = 5;
      if (has_other_tools) again.options.chat.template_arguments = R"({"a":1})";
      again.response.emplace();
      again.response->id = "again";
      again.response->ttl_s = 1000;
      const SinkPtr sink = generate(std::move(again));
      std::vector<ChatMessage> messages = get(id)->messages;
      messages.pop_back();
      // With the same tools the prompt stays as it was.
      std::vector<Token> tokens =
          has_other_tools ? written(messages)
                          : std::vector<Token>(before->chain.begin(), before->chain.begin() + before->turns.back().reply_begin);
      tokens.insert(tokens.end(), sink->tokens.begin(), sink->tokens.end());
      EXPECT_EQ(kept(id)->chain, tokens) << system;
      EXPECT_EQ(get(id)->info.dropped_turns, 1);
      // Other input, after the reply and its input were taken back.
      for (const std::int32_t number : {1, 0})
        ASSERT_TRUE(wait_for(sessions().remove_last_message(kTenant, id, {.turn = 1, .number = number})));
      ASSERT_TRUE(append(id, "other"));
      messages.back().content = "other";
      EXPECT_EQ(kv::all_tokens(*kept(id)), written(messages)) << system;
    }
  }
}

}  // namespace
}  // namespace uma::engine
