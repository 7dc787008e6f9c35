#include "engine/session/record_input.h"

#include <memory>

#include <gtest/gtest.h>

#include "kv/catalog/record_check.h"
#include "testing/fake_model.h"

namespace uma::engine {
namespace {

using testing::FakeModel;
using testing::FakeOptions;

chat::ChatFormat format_of(std::string_view chat_template) {
  return chat::ChatFormat(
      std::make_shared<const FakeModel>(FakeOptions{.has_chat_template = true, .chat_template = chat_template}));
}

// A session whose turns were all dropped: it has only the kept tokens, BOS and then others than the template writes.
kv::SessionRecord with_all_turns_dropped(SessionMode mode, std::int32_t n_keep) {
  kv::SessionRecord record;
  record.id = SessionId{"0123456789abcdef0123456789abcdef"};
  record.mode = mode;
  record.metadata = "{}";
  record.on_full = OnFull::shift;
  record.turns_dropped = 3;
  record.n_keep = n_keep;
  record.chain.resize(static_cast<std::size_t>(n_keep), 'k');
  if (n_keep > 0) record.chain.front() = testing::kFakeBos;
  return record;
}

TEST(RecordInput, ASystemMessageAfterTurnsWereDroppedLeavesWhatIsKept) {
  for (const std::int32_t n_keep : {0, 1}) {
    const kv::SessionRecord record = with_all_turns_dropped(SessionMode::chat, n_keep);
    ASSERT_EQ(kv::impossible_part(record), "");
    const auto next =
        append_to_record(format_of({}), record, {.text = {}, .messages = {{"system", "be brief"}, {"user", "go"}}});
    ASSERT_TRUE(next);
    EXPECT_EQ(kv::impossible_part(*next), "");
    EXPECT_EQ(next->n_keep, n_keep);
    EXPECT_EQ(next->turns_dropped, 3);
    EXPECT_FALSE(next->pending.empty());
  }
}

TEST(RecordInput, KeptTokensThatTheConversationDoesNotBeginWithAreDropped) {
  const auto next =
      append_to_record(format_of({}), with_all_turns_dropped(SessionMode::chat, 9), {.text = {}, .messages = {{"user", "go"}}});
  ASSERT_TRUE(next);
  EXPECT_EQ(kv::impossible_part(*next), "");
  EXPECT_TRUE(next->chain.empty());
  EXPECT_EQ(next->turns_dropped, 0);
  EXPECT_EQ(next->pending.front(), testing::kFakeBos);
}

TEST(RecordInput, ATextAfterTurnsWereDroppedLeavesWhatIsKept) {
  const auto next =
      append_to_record(format_of({}), with_all_turns_dropped(SessionMode::text, 0), {.text = "go", .messages = {}});
  ASSERT_TRUE(next);
  EXPECT_EQ(kv::impossible_part(*next), "");
  EXPECT_EQ(next->n_keep, 0);
}

TEST(RecordInput, InstructionsThatTheTemplateDoesNotWriteLeaveWhatIsKept) {
  const chat::ChatFormat format =
      format_of("{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}");
  kv::SessionRecord record = with_all_turns_dropped(SessionMode::chat, 5);
  ResponseRequest response;
  response.instructions = "be brief";
  const auto next = begin_response(format, record, {.text = {}, .messages = {{"user", "go"}}}, response, {});
  ASSERT_TRUE(next);
  EXPECT_EQ(kv::impossible_part(*next), "");
  EXPECT_TRUE(next->has_instructions);
}

}  // namespace
}  // namespace uma::engine
