#include "chat/reply/written_replies.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "chat/chat.h"
#include "testing/fake_model.h"

namespace uma::chat {
namespace {

constexpr std::string_view kCallTemplate =
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const TenantId kWriter{"a"};

std::vector<Token> letters_of(std::string_view text) {
  return {text.begin(), text.end()};
}

ChatMessage call_of(std::string_view arguments, std::string_view id = "c1") {
  std::string quoted;
  for (const char c : arguments) quoted += c == '"' ? std::string("\\\"") : std::string(1, c);
  return {"assistant", "",
          std::string(R"({"tool_calls":[{"id":")") + std::string(id) +
              R"(","type":"function","function":{"name":"f","arguments":")" + quoted + R"("}}]})"};
}

// A model whose replies are noted, and a client that sends them back.
class WrittenRepliesTest : public ::testing::Test {
 protected:
  WrittenRepliesTest()
      : format_(std::make_shared<const testing::FakeModel>(
            testing::FakeOptions{.has_chat_template = true, .chat_template = kCallTemplate})) {}

  std::vector<Token> tokens_of(const std::vector<ChatMessage>& messages, const TenantId& tenant = kWriter) const {
    return tokenize_chat(format_, {.messages = {}, .tokens = {}, .replies = {}, .written = {.all = replies_, .tenant = tenant}},
                         messages)
        .value()
        .tokens;
  }
  // The reply to `messages`, written as `text`. Returns the chain with it.
  std::vector<Token> reply(const std::vector<ChatMessage>& messages, const ChatMessage& message, std::string_view text) {
    std::vector<Token> chain = tokens_of(messages);
    replies_->note(kWriter, message, written_behind(format_.model().vocab(), chain, letters_of(text)));
    const std::vector<Token> written = letters_of(text);
    chain.insert(chain.end(), written.begin(), written.end());
    return chain;
  }
  static bool begins_with(const std::vector<Token>& tokens, const std::vector<Token>& chain) {
    return tokens.size() > chain.size() && std::equal(chain.begin(), chain.end(), tokens.begin());
  }

  const ChatFormat format_;
  const std::shared_ptr<WrittenReplies> replies_ = std::make_shared<WrittenReplies>(1 << 20);
  const std::vector<ChatMessage> question_{{"user", "q"}};
};

TEST_F(WrittenRepliesTest, AReplyThatComesBackHasTheTokensThatTheModelWrote) {
  const std::vector<Token> chain = reply(question_, {"assistant", "hello"}, "hello ");
  const std::vector<Token> next = tokens_of({question_[0], {"assistant", "hello"}, {"user", "r"}});
  ASSERT_TRUE(begins_with(next, chain));
  EXPECT_EQ(next[chain.size()], testing::kFakeImEnd) << "the template goes on behind it";
}

constexpr std::string_view kWrittenCall =
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": [1,2], \"a\": \"x\"}}\n</tool_call>";

TEST_F(WrittenRepliesTest, AnAgentsCallsMayComeBackInAnotherOrderAndSpacing) {
  std::vector<ChatMessage> history = question_;
  for (int step = 0; step < 3; ++step) {
    const std::vector<Token> chain = reply(history, call_of(R"({"b": [1, 2],  "a": "x"})"), kWrittenCall);
    history.push_back(call_of(R"({"a":"x","b":[1,2]})"));
    history.push_back({"tool", "result", R"({"tool_call_id":"c1"})"});
    ASSERT_TRUE(begins_with(tokens_of(history), chain)) << step;
  }
}

TEST_F(WrittenRepliesTest, QuotesAndCaseAreTheModels) {
  const ChatMessage said = call_of(R"({"a": true})");
  const std::vector<Token> chain = reply(question_, said, "<tool_call>\n{'name': 'f', 'arguments': {'a': True}}\n</tool_call>");
  EXPECT_TRUE(begins_with(tokens_of({question_[0], said, {"user", "r"}}), chain));
}

TEST_F(WrittenRepliesTest, OnlyTheSameReplyBehindTheSameTokensOfTheSameTenantCounts) {
  const std::vector<Token> chain = reply(question_, {"assistant", "hello"}, "hello ");
  const auto has_it = [&](const std::vector<ChatMessage>& messages, const TenantId& tenant = kWriter) {
    const std::vector<Token> tokens = tokens_of(messages, tenant);
    const bool is_plain = tokens == tokenize_chat(format_, {}, messages).value().tokens;
    EXPECT_TRUE(is_plain || begins_with(tokens, chain));
    return !is_plain;
  };
  EXPECT_TRUE(has_it({{"user", "q"}, {"assistant", "hello"}, {"user", "r"}}));
  EXPECT_FALSE(has_it({{"user", "p"}, {"assistant", "hello"}, {"user", "r"}}));
  EXPECT_FALSE(has_it({{"user", "q"}, {"assistant", "hello!"}, {"user", "r"}}));
  EXPECT_FALSE(has_it({{"user", "q"}, {"assistant", "hello"}, {"user", "r"}}, TenantId{"b"}));
  EXPECT_FALSE(has_it({{"system", "s"}, {"user", "q"}, {"assistant", "hello"}, {"user", "r"}}));
}

TEST_F(WrittenRepliesTest, NothingBetweenIsLost) {
  (void)reply(question_, {"assistant", "yes"}, "yes ");
  const std::vector<std::vector<ChatMessage>> histories{
      {{"user", "q"}, {"assistant", "no"}, {"user", "second"}, {"assistant", "yes"}, {"user", "r"}},
      {{"user", "q"}, {"user", "second"}, {"assistant", "yes"}, {"user", "r"}},
      {{"user", "q"}, {"assistant", ""}, {"user", ""}, {"assistant", "yes"}, {"user", "r"}},
      {{"user", "q"}, {"assistant", ""}, {"assistant", "yes"}, {"user", "r"}}};
  for (const auto& history : histories) {
    EXPECT_EQ(tokens_of(history), tokenize_chat(format_, {}, history).value().tokens) << "the reply belongs to another place";
  }
  const std::vector<ChatMessage> twice{
      {"user", "q"}, {"assistant", "yes"}, {"user", "second"}, {"assistant", "yes"}, {"user", "r"}};
  std::vector<Token> without = tokens_of(twice);
  std::erase(without, ' ');
  EXPECT_EQ(without, tokenize_chat(format_, {}, twice).value().tokens);
}

TEST_F(WrittenRepliesTest, AReplyThatEndsWithAControlTokenIsNotEndedTwice) {
  std::vector<Token> chain = tokens_of(question_);
  std::vector<Token> written = letters_of("hello ");
  written.push_back(testing::kFakeImEnd);
  replies_->note(kWriter, {"assistant", "hello"}, written_behind(format_.model().vocab(), chain, written));
  const std::vector<Token> next = tokens_of({question_[0], {"assistant", "hello"}, {"user", "r"}});
  chain.insert(chain.end(), written.begin(), written.end());
  ASSERT_TRUE(begins_with(next, chain));
  EXPECT_EQ(next[chain.size()], '\n');
}

TEST_F(WrittenRepliesTest, WhatTheTemplateAddsOrLeavesOutStaysSo) {
  const std::vector<ChatMessage> next{question_[0], call_of("{}"), {"user", "r"}};
  // The token that ended the reply is the template's next word.
  (void)reply(question_, call_of("{}"), "<tool_call>\n{\"name\": \"f\", \"arguments\":  {}}");
  EXPECT_EQ(tokens_of(next), tokenize_chat(format_, {}, next).value().tokens) << "</tool_call> is not lost";
  const ChatMessage thought{"assistant", "hello", R"({"reasoning_content":"hmm"})"};
  (void)reply(question_, thought, "<think>hmm</think>hello ");
  const std::vector<ChatMessage> later{question_[0], thought, {"user", "r"}};
  EXPECT_EQ(tokens_of(later), tokenize_chat(format_, {}, later).value().tokens) << "the template leaves thoughts out";
}

TEST_F(WrittenRepliesTest, EachTokenKeepsItsPartOfTheMessage) {
  ChatMessage message = call_of(R"({"b":[1,2],"a":"x"})");
  message.content = "Let me look.";
  const std::string text = " Let me look." + std::string(kWrittenCall);
  const std::vector<Token> chain = reply(question_, message, text);
  const auto next =
      tokenize_chat(format_, {.messages = {}, .tokens = {}, .replies = {}, .written = {.all = replies_, .tenant = kWriter}},
                    std::vector<ChatMessage>{question_[0], message, {"user", "r"}})
          .value();
  ASSERT_TRUE(begins_with(next.tokens, chain));
  const auto place_at = [&](std::string_view word) {
    const std::size_t in_reply = text.find(word);
    return next.outline.input_at(static_cast<std::int32_t>(chain.size() - text.size() + in_reply))->place;
  };
  EXPECT_EQ(place_at("me look"), (PromptPlace{PromptPart::text, 1, "assistant"}));
  EXPECT_EQ(place_at("look."), (PromptPlace{PromptPart::text, 1, "assistant"}));
  EXPECT_EQ(place_at("\"b\""), (PromptPlace{PromptPart::call, 1, "assistant"}));
  EXPECT_EQ(place_at("\"x\""), (PromptPlace{PromptPart::call, 1, "assistant"}));
  EXPECT_EQ(next.outline.input_at(static_cast<std::int32_t>(chain.size()))->place, (PromptPlace{PromptPart::text, 2, "user"}));
}

TEST_F(WrittenRepliesTest, BlanksThatTheClientCutsOffStayOff) {
  (void)reply(question_, {"assistant", "hello"}, "hello" + std::string(2000, ' '));
  const std::vector<ChatMessage> next{question_[0], {"assistant", "hello"}, {"user", "r"}};
  EXPECT_EQ(tokens_of(next), tokenize_chat(format_, {}, next).value().tokens);
}

TEST_F(WrittenRepliesTest, SignsOfATextCount) {
  (void)reply(question_, {"assistant", "hello"}, "hello - ");
  const std::vector<ChatMessage> next{question_[0], {"assistant", "hello"}, {"user", "r"}};
  EXPECT_EQ(tokens_of(next), tokenize_chat(format_, {}, next).value().tokens);
}

// Vocabularies have tokens over the border of a prompt and its reply, such as two line ends in one.
TEST_F(WrittenRepliesTest, ATokenOverTheBorderOfThePromptIsTwoAgain) {
  const llm::Vocab& vocab = format_.model().vocab();
  const std::vector<Token> prompt{testing::kFakeImStart, 'a', 'b', '\n'};
  replies_->note(kWriter, {"assistant", "hello"}, written_behind(vocab, prompt, letters_of("\nhello")));
  const auto returned = [&](std::string_view head) {
    const std::string mark = "<|im_start|>";
    const std::string text = mark + std::string(head) + "\n\nhello<|im_end|>";
    PlacedTokens placed;
    placed.push_back(testing::kFakeImStart, mark.size());
    placed.push_back(head[0], mark.size() + 1);
    placed.push_back(head[1], mark.size() + 2);
    placed.push_back('N', mark.size() + 4);  // Stands for a token of two line ends.
    for (std::size_t i = 0; i < 5; ++i) placed.push_back("hello"[i], mark.size() + 5 + i);
    placed.push_back(testing::kFakeImEnd, text.size());
    const std::vector<ChatMessage> messages{{"assistant", "hello"}};
    return with_written_replies(vocab, jinja::Text(text), placed, messages, {replies_, kWriter});
  };
  const PlacedTokens found = returned("ab");
  std::vector<Token> written = letters_of("ab\n\nhello");
  written.insert(written.begin(), testing::kFakeImStart);
  written.push_back(testing::kFakeImEnd);
  EXPECT_EQ(found.tokens, written);
  EXPECT_EQ(found.ends[3], 15u) << "the line end of the prompt";
  EXPECT_EQ(found.ends[4], 16u);
  EXPECT_EQ(returned("ba").tokens[3], 'N') << "another prompt";
}

TEST_F(WrittenRepliesTest, TheOldestOfATenantAreForgotten) {
  WrittenReplies few(3000);
  const auto note = [&](const TenantId& tenant, int i) {
    few.note(tenant, {"assistant", std::to_string(i)},
             written_behind(format_.model().vocab(), letters_of("p"), letters_of("t")));
  };
  const auto is_known = [&](const TenantId& tenant, int i) {
    return !few.find(tenant, {"assistant", std::to_string(i)}).empty();
  };
  note(TenantId{"other"}, 0);
  for (int i = 0; i < 100; ++i) note(kWriter, i);
  EXPECT_TRUE(is_known(kWriter, 99));
  EXPECT_TRUE(is_known(kWriter, 95));
  EXPECT_FALSE(is_known(kWriter, 50));
  EXPECT_TRUE(is_known(TenantId{"other"}, 0));
  EXPECT_FALSE(is_known(TenantId{"nobody"}, 0));
}

TEST(MeaningOf, IsWhatAReplySays) {
  EXPECT_EQ(meaning_of({"assistant", "a"}), meaning_of({"assistant", " a\n"}));
  EXPECT_NE(meaning_of({"assistant", "a"}), meaning_of({"assistant", "b"}));
  EXPECT_EQ(meaning_of(call_of(R"({"a":1,"b":{"d":2,"c":3}})")), meaning_of(call_of(R"({"b": {"c": 3, "d": 2}, "a": 1})")));
  EXPECT_NE(meaning_of(call_of(R"({"a":[1,2]})")), meaning_of(call_of(R"({"a":[2,1]})")));
  EXPECT_EQ(meaning_of(call_of("{}", "c1")), meaning_of(call_of("{}", "c2"))) << "an id may not be the model's";
  EXPECT_EQ(meaning_of(call_of("not JSON ")), meaning_of(call_of("not JSON")));
  EXPECT_EQ(meaning_of({"assistant", "a", R"({"tool_calls":[]})"}), meaning_of({"assistant", "a"}));
  EXPECT_NE(meaning_of({"assistant", "", R"({"reasoning_content":"a"})"}), meaning_of({"assistant", "a"}));
}

}  // namespace
}  // namespace uma::chat
