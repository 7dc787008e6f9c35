#include "engine/session/context_shift.h"

#include <gtest/gtest.h>

namespace uma::engine {
namespace {

// Turns of 10 tokens, whose values are their positions, after a system prompt of 4 tokens in the first turn.
kv::SessionRecord session(std::int32_t turns, std::int32_t pending = 5) {
  kv::SessionRecord record;
  record.mode = SessionMode::chat;
  record.on_full = OnFull::shift;
  record.n_keep = 4;
  for (std::int32_t i = 0; i < 10 * turns; ++i) record.chain.push_back(i);
  for (std::int32_t i = 0; i < pending; ++i) record.pending.push_back(1000 + i);
  record.messages.push_back({"system", "be brief"});
  for (std::int32_t turn = 0; turn < turns; ++turn) {
    record.turns.push_back(
        {.tokens_begin = 10 * turn, .reply_begin = 10 * turn + 6, .messages_begin = turn == 0 ? 0 : 1 + 2 * turn});
    record.messages.push_back({"user", std::to_string(turn)});
    record.messages.push_back({"assistant", std::to_string(turn)});
  }
  return record;
}

TEST(ContextShift, TheFewestOldestTurnsGoAndNeverTheOneUnderWay) {
  const kv::SessionRecord record = session(3);
  const Droppable chain = droppable_of(record);
  EXPECT_EQ(chain.turns_begin, (std::vector<std::int32_t>{10, 20, 30}));
  EXPECT_EQ(shortest_length(chain, 35), 9);
  const auto expect = [&](std::int32_t length_max, std::int32_t turns, std::int32_t end) {
    const auto drop = choose_drop(chain, 35, length_max);
    ASSERT_TRUE(drop);
    EXPECT_EQ(drop->turns, turns) << length_max;
    EXPECT_EQ(drop->begin, 4);
    EXPECT_EQ(drop->end, end);
  };
  expect(34, 1, 10);
  expect(29, 1, 10);
  expect(28, 2, 20);
  expect(19, 2, 20);
  expect(18, 3, 30);
  expect(2, 3, 30);
  Droppable rest = chain;
  remove_turns(rest, *choose_drop(chain, 35, 28));
  EXPECT_EQ(rest.turns_begin, (std::vector<std::int32_t>{14}));
  remove_turns(rest, *choose_drop(rest, 19, 1));
  EXPECT_FALSE(choose_drop(rest, 9, 1));
}

TEST(ContextShift, ATurnThatGoesOnStays) {
  const Droppable chain = droppable_of(session(3, 0));
  EXPECT_EQ(chain.turns_begin, (std::vector<std::int32_t>{10, 20}));
  EXPECT_FALSE(choose_drop(droppable_of(session(1, 0)), 10, 1));
  EXPECT_FALSE(choose_drop(droppable_of(session(0)), 5, 1));
}

TEST(ContextShift, SessionsThatDoNotAskForItLoseNothing) {
  kv::SessionRecord record = session(3);
  record.on_full = OnFull::error;
  EXPECT_FALSE(choose_drop(droppable_of(record), 35, 1));
  EXPECT_EQ(shortest_length(droppable_of(record), 35), 35);
}

TEST(ContextShift, ARecordKeepsItsSystemPromptItsOffsetsAndItsTurnNumbers) {
  const kv::SessionRecord record = session(4);
  const kv::SessionRecord once = without_oldest_turns(record, 2);
  EXPECT_EQ(once.chain.size(), 24u);
  EXPECT_EQ(once.chain[3], 3);
  EXPECT_EQ(once.chain[4], 20);
  EXPECT_EQ(once.pending, record.pending);
  EXPECT_EQ(once.turns, (std::vector<kv::Turn>{{.tokens_begin = 4, .reply_begin = 10, .messages_begin = 1},
                                               {.tokens_begin = 14, .reply_begin = 20, .messages_begin = 3}}));
  EXPECT_EQ(once.turns_dropped, 2);
  EXPECT_EQ(once.messages, (std::vector<ChatMessage>{
                               {"system", "be brief"}, {"user", "2"}, {"assistant", "2"}, {"user", "3"}, {"assistant", "3"}}));
  const kv::SessionRecord twice = without_oldest_turns(once, 1);
  EXPECT_EQ(twice.chain.size(), 14u);
  EXPECT_EQ(twice.chain[4], 30);
  EXPECT_EQ(twice.turns_dropped, 3);
  EXPECT_EQ(twice.messages, (std::vector<ChatMessage>{{"system", "be brief"}, {"user", "3"}, {"assistant", "3"}}));
  EXPECT_EQ(twice, without_oldest_turns(record, 3));
  const kv::SessionRecord none = without_oldest_turns(twice, 1);
  EXPECT_EQ(none.chain.size(), 4u);
  EXPECT_TRUE(none.turns.empty());
  EXPECT_EQ(none.messages.size(), 1u);
}

TEST(ContextShift, WhatNKeepCoversStays) {
  kv::SessionRecord record = session(4);
  record.n_keep = 13;
  EXPECT_EQ(choose_drop(droppable_of(record), 45, 44)->end, 20) << "the first turn has nothing to give";
  const kv::SessionRecord left = without_oldest_turns(record, 2);
  EXPECT_EQ(left.chain.size(), 33u);
  EXPECT_EQ(left.chain[12], 12);
  EXPECT_EQ(left.chain[13], 20);
  EXPECT_EQ(left.turns.front().tokens_begin, 13);
  EXPECT_EQ(left.messages.size(), 7u) << "the first turn's stay, as all of its tokens do";
  EXPECT_EQ(left.messages[2].content, "0");
  EXPECT_EQ(left.messages[3].content, "2");
  record.n_keep = 50;
  EXPECT_FALSE(choose_drop(droppable_of(record), 45, 1));
}

}  // namespace
}  // namespace uma::engine
