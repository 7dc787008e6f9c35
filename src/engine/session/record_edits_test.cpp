#include "engine/session/record_edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/catalog/record_check.h"

namespace uma::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kNow = 1000;

ResponsePtr response(std::int32_t turn, std::string id) {
  return std::make_shared<const ResponseRecord>(ResponseRecord{.turn = turn, .id = std::move(id)});
}

// A chat of three turns of four tokens each, of which the second and third are responses, with input pending.
kv::SessionRecord chat() {
  kv::SessionRecord record;
  record.id = SessionId{"0123456789abcdef0123456789abcdef"};
  record.name = "tale";
  record.mode = SessionMode::chat;
  record.metadata = "{}";
  for (std::int32_t turn = 0; turn < 3; ++turn) {
    record.turns.push_back({.tokens_begin = 4 * turn, .reply_begin = 4 * turn + 3, .messages_begin = 2 * turn});
    for (std::int32_t i = 0; i < 4; ++i) record.chain.push_back(4 * turn + i);
    record.messages.push_back({"user", "question " + std::to_string(turn)});
    record.messages.push_back({"assistant", "answer " + std::to_string(turn)});
  }
  record.responses = {response(1, "b"), response(2, "c")};
  record.pending = {100, 101};
  record.pending_messages = {{"user", "and"}};
  return record;
}

TEST(RecordEdits, RewindingDropsLaterTurnsTheirResponsesAndThePendingInput) {
  const kv::SessionRecord record = chat();
  const kv::SessionRecord left = rewound(record, 2, kNow);
  EXPECT_THAT(left.chain, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(left.turns.size(), 2U);
  EXPECT_EQ(left.messages.size(), 4U);
  EXPECT_THAT(left.responses, ElementsAre(record.responses[0]));
  EXPECT_THAT(left.pending, IsEmpty());
  EXPECT_THAT(left.pending_messages, IsEmpty());
  EXPECT_EQ(left.last_used_s, kNow);
  EXPECT_THAT(kv::impossible_part(left), IsEmpty());
}

TEST(RecordEdits, RewindingCountsTheTurnsThatAreLeftOfAFullContext) {
  kv::SessionRecord record = chat();
  record.on_full = OnFull::shift;
  record.turns_dropped = 5;
  record.responses = {response(6, "b"), response(7, "c")};
  const kv::SessionRecord left = rewound(record, 2, kNow);
  ASSERT_EQ(left.responses.size(), 1U);
  EXPECT_EQ(left.responses[0]->id, "b");
  EXPECT_EQ(turns_through(record, *record.responses[0]), 2U);
}

TEST(RecordEdits, AForkHasEverythingButTheResponses) {
  const kv::SessionRecord copy = forked(chat(), SessionId{"new"}, "other", kNow);
  EXPECT_EQ(copy.chain, chat().chain);
  EXPECT_EQ(copy.pending, chat().pending);
  EXPECT_EQ(copy.metadata, "{}");
  EXPECT_EQ(copy.id.value, "new");
  EXPECT_EQ(copy.name, "other");
  EXPECT_EQ(copy.created_s, kNow);
  EXPECT_THAT(copy.responses, IsEmpty());
  EXPECT_EQ(copy.parent, chat().id);
  EXPECT_EQ(copy.fork_turn, 3);
}

TEST(RecordEdits, AForkDiffersFromTheFirstTurnThatItDropsOrGoesOnWriting) {
  const kv::SessionRecord fork = forked(chat(), SessionId{"new"}, "", kNow);
  FinishedTurn more;
  more.reply = "more";
  EXPECT_EQ(rewound(fork, 1, kNow).fork_turn, 1);
  EXPECT_EQ(rewound(fork, fork.turns.size(), kNow).fork_turn, 3) << "nothing is dropped";
  EXPECT_EQ(with_turn(fork, more, kNow).fork_turn, 3) << "another turn";
  kv::SessionRecord answered = fork;
  answered.pending.clear();
  answered.pending_messages.clear();
  EXPECT_EQ(with_turn(answered, more, kNow).fork_turn, 2) << "the last turn goes on";
}

TEST(RecordEdits, TheSystemMessageAloneIsPendingAgain) {
  kv::SessionRecord record = chat();
  record.messages.insert(record.messages.begin(), {"system", "Be brief"});
  for (kv::Turn& turn : record.turns) turn.messages_begin += turn.messages_begin > 0 ? 1 : 0;
  const kv::SessionRecord left = with_system_only(record, kNow);
  EXPECT_THAT(left.pending_messages, ElementsAre(ChatMessage{"system", "Be brief"}));
  EXPECT_THAT(left.pending, IsEmpty());
  EXPECT_THAT(left.chain, IsEmpty());
  EXPECT_THAT(left.messages, IsEmpty());
  EXPECT_THAT(left.turns, IsEmpty());
  EXPECT_THAT(left.responses, IsEmpty());
  EXPECT_THAT(kv::impossible_part(left), IsEmpty());

  // After turns were dropped, and without the instructions of a response.
  record.messages.insert(record.messages.begin(), {"system", "Sing"});
  record.has_instructions = true;
  record.on_full = OnFull::shift;
  record.n_keep = 2;
  record.turns_dropped = 1;
  record.turns = {{.tokens_begin = 2, .reply_begin = 3, .messages_begin = 2}};
  const kv::SessionRecord cut = with_system_only(record, kNow);
  EXPECT_THAT(cut.pending_messages, ElementsAre(ChatMessage{"system", "Be brief"}));
  EXPECT_FALSE(cut.has_instructions);
  EXPECT_THAT(kv::impossible_part(cut), IsEmpty());
  EXPECT_EQ(forked(cut, SessionId{"new"}, "", kNow).fork_turn, 0);

  kv::SessionRecord waiting;
  waiting.mode = SessionMode::chat;
  waiting.pending_messages = {{"system", "Be brief"}, {"user", "a"}};
  waiting.pending = {1, 2};
  EXPECT_THAT(with_system_only(waiting, kNow).pending_messages, ElementsAre(ChatMessage{"system", "Be brief"}));
}

TEST(RecordEdits, AForkForResponsesHasTheFirstTurnsAndNoName) {
  kv::SessionRecord original = chat();
  original.is_public = true;
  const kv::SessionRecord copy = forked_for_responses(original, 1, SessionId{"new"}, kNow);
  EXPECT_EQ(copy.turns.size(), 1U);
  EXPECT_THAT(copy.pending, IsEmpty());
  EXPECT_TRUE(copy.is_of_responses);
  EXPECT_FALSE(copy.is_public);
  EXPECT_EQ(copy.name, "");
  EXPECT_EQ(copy.metadata, "");
  EXPECT_EQ(copy.parent, original.id);
  EXPECT_EQ(copy.fork_turn, 1);
}

TEST(RecordEdits, AConversationKeepsItsTurnsWhenAResponseIsForgotten) {
  const kv::SessionRecord left = without_response(chat(), "c", kNow);
  EXPECT_EQ(left.turns.size(), 3U);
  ASSERT_EQ(left.responses.size(), 1U);
  EXPECT_EQ(left.responses[0]->id, "b");
}

TEST(RecordEdits, ASessionOfResponsesLosesTheTurnsThatNoResponseNeeds) {
  kv::SessionRecord record = chat();
  record.is_of_responses = true;
  EXPECT_EQ(without_response(record, "c", kNow).turns.size(), 2U);
  EXPECT_EQ(without_response(record, "b", kNow).turns.size(), 3U) << "the later response goes on from it";
}

TEST(RecordEdits, TheLastMessageIsTheReplyOrThePendingInput) {
  kv::SessionRecord record = chat();
  EXPECT_EQ(last_message_position(record), (MessagePosition{.turn = 3, .number = 0}));
  record.pending_messages.clear();
  EXPECT_EQ(last_message_position(record), (MessagePosition{.turn = 2, .number = 1}));
  record.turns_dropped = 4;
  EXPECT_EQ(last_message_position(record), (MessagePosition{.turn = 6, .number = 1}));
  EXPECT_EQ(last_message_position(kv::SessionRecord()), std::nullopt);
}

TEST(RecordEdits, InstructionsAreNotCountedAmongTheMessagesOfATurn) {
  kv::SessionRecord record;
  record.mode = SessionMode::chat;
  record.has_instructions = true;
  record.pending_messages = {{"system", "be brief"}, {"user", "hello"}};
  EXPECT_EQ(last_message_position(record), (MessagePosition{.turn = 0, .number = 0}));
}

TEST(RecordEdits, AReplyMakesATurnOfThePendingInput) {
  const kv::SessionRecord next = with_turn(chat(), {.generated = {7, 8, 9}, .reply = "yes", .reply_extra = "{}"}, kNow);
  ASSERT_EQ(next.turns.size(), 4U);
  EXPECT_EQ(next.turns[3], (kv::Turn{.tokens_begin = 12, .reply_begin = 14, .messages_begin = 6}));
  EXPECT_EQ(next.chain.size(), 17U);
  EXPECT_THAT(next.pending, IsEmpty());
  EXPECT_EQ(next.messages[6], (ChatMessage{"user", "and"}));
  EXPECT_EQ(next.messages[7], (ChatMessage{"assistant", "yes", "{}"}));
  EXPECT_EQ(next.last_used_s, kNow);
}

TEST(RecordEdits, AReplyWithoutInputContinuesTheLastTurn) {
  kv::SessionRecord record = rewound(chat(), 3, kNow);
  const kv::SessionRecord next = with_turn(record, {.generated = {7}, .reply = " and more", .reply_extra = ""}, kNow);
  EXPECT_EQ(next.turns, record.turns);
  EXPECT_EQ(next.chain.size(), 13U);
  EXPECT_EQ(next.messages.back().content, "answer 2 and more");
}

TEST(RecordEdits, TheFirstReplyOfATextSessionIsATurnWithoutMessages) {
  kv::SessionRecord record;
  record.mode = SessionMode::text;
  record.pending = {1, 2};
  const kv::SessionRecord next = with_turn(record, {.generated = {3}, .reply = "c", .reply_extra = ""}, kNow);
  EXPECT_EQ(next.turns, (std::vector<kv::Turn>{{.tokens_begin = 0, .reply_begin = 2, .messages_begin = 0}}));
  EXPECT_THAT(next.messages, IsEmpty());
}

}  // namespace
}  // namespace uma::engine
