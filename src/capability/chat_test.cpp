#include "capability/chat.h"

#include <algorithm>
#include <span>

#include <gtest/gtest.h>

#include "testing/fake_model.h"

namespace uma::capability {
namespace {

using testing::FakeModel;
using testing::kFakeBos;
using testing::kFakeImEnd;
using testing::kFakeImStart;

FakeModel chat_model() {
  return FakeModel({.has_chat_template = true});
}

TEST(TokenizeText, PutsBosOnlyAtTheStartOfAChain) {
  const FakeModel model({});
  EXPECT_EQ(tokenize_text(model.vocab(), "ab", true).value(), (std::vector<Token>{kFakeBos, 'a', 'b'}));
  EXPECT_EQ(tokenize_text(model.vocab(), "ab", false).value(), (std::vector<Token>{'a', 'b'}));
}

TEST(TokenizeChat, UserTextNeverBecomesSpecialTokens) {
  const FakeModel model = chat_model();
  const std::vector<ChatMessage> messages{{"user", "<|im_end|>"}};
  const auto tokens = tokenize_chat(model, {}, messages).value().tokens;
  EXPECT_EQ(std::ranges::count(tokens, kFakeImEnd), 1) << "only the template's own";
  EXPECT_EQ(std::ranges::count(tokens, kFakeImStart), 2);
}

TEST(TokenizeChat, SaysWhereTheSystemPromptEnds) {
  const FakeModel model = chat_model();
  const auto tokens =
      tokenize_chat(model, {}, std::vector<ChatMessage>{{"system", "be"}, {"system", "brief"}, {"user", "hi"}}).value();
  const auto alone = tokenize_chat(model, {}, std::vector<ChatMessage>{{"system", "be"}, {"system", "brief"}}).value();
  ASSERT_GT(tokens.system_tokens, 10);
  const auto system = std::span(tokens.tokens).first(static_cast<std::size_t>(tokens.system_tokens));
  EXPECT_EQ(system.back(), 'f');
  EXPECT_TRUE(std::ranges::equal(std::span(alone.tokens).first(system.size()), system));
  EXPECT_EQ(alone.system_tokens, tokens.system_tokens);
  const std::vector<ChatMessage> without{{"user", "hi"}, {"system", "later"}};
  EXPECT_EQ(tokenize_chat(model, {}, without).value().system_tokens, 1) << "BOS";
}

// Appending turn by turn gives the same chain as formatting the whole conversation at once.
TEST(TokenizeChat, DeltasAddUpToTheWholeConversation) {
  const FakeModel model = chat_model();
  const std::vector<ChatMessage> messages{
      {"system", "be brief"}, {"user", "hi\n"}, {"assistant", "hello"}, {"user", " and now?"}};
  const auto whole = tokenize_chat(model, {}, messages).value().tokens;

  const std::span all(messages);
  auto chain = tokenize_chat(model, {}, all.first(2)).value().tokens;
  for (const char c : messages[2].content) chain.push_back(c);
  const auto delta = tokenize_chat(model, all.first(3), all.subspan(3)).value();
  EXPECT_FALSE(delta.replaces_chain);
  chain.insert(chain.end(), delta.tokens.begin(), delta.tokens.end());
  EXPECT_EQ(chain, whole);
}

TEST(TokenizeChat, TheDeltaBeginsWithTheEndOfTheLastReply) {
  const FakeModel model = chat_model();
  const std::vector<ChatMessage> messages{{"user", "a"}, {"assistant", "b"}, {"user", "c"}};
  const std::span all(messages);
  EXPECT_EQ(tokenize_chat(model, all.first(2), all.subspan(2)).value().tokens.front(), kFakeImEnd);
}

TEST(ChatStopStrings, NoneWhereTheEndOfTurnIsAToken) {
  EXPECT_TRUE(chat_stop_strings(FakeModel({})).empty()) << "the fake vocabulary has <|im_end|> as an end token";
  EXPECT_TRUE(chat_stop_strings(chat_model()).empty());
}

}  // namespace
}  // namespace uma::capability
