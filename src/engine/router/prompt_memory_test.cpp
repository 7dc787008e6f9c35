#include "engine/router/prompt_memory.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "chat/chat.h"
#include "testing/fake_model.h"

namespace uma::engine {
namespace {

constexpr std::string_view kTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.first and tools %}{% if m.role == 'system' %}{{ m.content }}{% endif %}\n<tools>{% for tool in tools %}\n"
    "{{ tool | tojson }}{% endfor %}</tools>{{ effort }}{% endif %}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.role != 'system' or not tools %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const std::string kRest = " and this is the same in all of the prompts of the test, which is why it counts as lost";

// A conversation with every part that a prompt can have.
struct Chat {
  std::string tools =
      R"([{"type":"function","function":{"name":"look","description":"Looks.","parameters":{"type":"object"}}},)"
      R"({"type":"function","function":{"name":"listen","description":"Listens.","parameters":{"type":"object"}}}])";
  std::string arguments = "{}";  // Arguments of the template.
  std::vector<ChatMessage> messages = {
      {"system", "It is 10:15." + kRest},
      {"user", "What is there?" + kRest},
      {"assistant", "Wait." + kRest,
       R"({"reasoning_content":"I look first.","tool_calls":[{"id":"a","type":"function","function":{"name":"look","arguments":)"
       R"("{\"at\":\"the door\"}"}}]})"},
      {"tool", "A dog." + kRest, R"({"tool_call_id":"a"})"},
      {"user", "And now?" + kRest},
  };
};

struct Prompt {
  std::vector<Token> tokens;
  PromptOutline outline;
};

class PromptMemoryTest : public ::testing::Test {
 protected:
  Prompt prompt_of(const Chat& chat) {
    auto written = chat::tokenize_chat(
        format_, {.messages = {}, .tokens = {}, .replies = {}, .tools = chat.tools, .template_arguments = chat.arguments},
        chat.messages);
    EXPECT_TRUE(written) << written.error().message;
    return {std::move(written->tokens), std::move(written->outline)};
  }
  PromptFacts facts(const Prompt& prompt, std::string_view model = "a") {
    return {.model = model, .tokens = prompt.tokens, .vocab = model_->vocab()};
  }
  PromptComparison compare(const Prompt& prompt, std::string_view with = "", const TenantId& tenant = {"t"},
                           std::string_view model = "a") {
    return memory_.compare(tenant, facts(prompt, model), prompt.outline, with);
  }
  void note(const Prompt& prompt, std::string id, std::string_view reply = "", std::int32_t reasoning = 0,
            const TenantId& tenant = {"t"}) {
    const std::vector<Token> generated(reply.begin(), reply.end());
    memory_.note(tenant, facts(prompt), compare(prompt, "", tenant).outline,
                 {.id = std::move(id), .generated = generated, .reasoning_tokens = reasoning, .message = 5, .usage = {}});
  }
  std::string text_from(const Prompt& prompt, std::int32_t token) {
    std::string text;
    for (const Token each : std::span(prompt.tokens).subspan(static_cast<std::size_t>(token)))
      text += model_->vocab().piece(each);
    return text;
  }

  const std::shared_ptr<const testing::FakeModel> model_ =
      std::make_shared<const testing::FakeModel>(testing::FakeOptions{.has_chat_template = true, .chat_template = kTemplate});
  const chat::ChatFormat format_{model_, nullptr, "hermes"};
  PromptMemory memory_;
};

TEST_F(PromptMemoryTest, NamesThePlaceOfTheFirstDifference) {
  struct Case {
    std::string_view what;
    std::function<void(Chat&)> change;
    CacheMissKind kind;
    std::int32_t message;
    std::string_view role;
    std::string_view begins;  // The text from the first token that differs.
  };
  const auto replace = [](std::string& text, std::string_view old, std::string_view by) {
    ASSERT_TRUE(text.contains(old)) << old;
    text.replace(text.find(old), old.size(), by);
  };
  const Case cases[] = {
      {"a clock", [&](Chat& chat) { replace(chat.messages[0].content, "10:15", "10:17"); }, CacheMissKind::system, 0, "system",
       "7."},
      {"a description", [&](Chat& chat) { replace(chat.tools, "Listens.", "Lists."); }, CacheMissKind::tools, -1, "", "s."},
      {"the order of tools",
       [](Chat& chat) {
         const std::size_t second = chat.tools.find(",{\"type\":\"function\"");
         chat.tools =
             "[" + chat.tools.substr(second + 1, chat.tools.size() - second - 2) + "," + chat.tools.substr(1, second - 1) + "]";
       },
       CacheMissKind::tools, -1, "", "isten"},
      {"no tools", [](Chat& chat) { chat.tools = ""; }, CacheMissKind::tools, -1, "", ""},
      {"an edited question", [&](Chat& chat) { replace(chat.messages[1].content, "there", "new"); }, CacheMissKind::text, 1,
       "user", "new?"},
      {"no thoughts", [&](Chat& chat) { replace(chat.messages[2].extra, R"("reasoning_content":"I look first.",)", ""); },
       CacheMissKind::reasoning, 2, "assistant", "Wait."},
      {"other thoughts", [&](Chat& chat) { replace(chat.messages[2].extra, "first", "again"); }, CacheMissKind::reasoning, 2,
       "assistant", "again."},
      {"other arguments", [&](Chat& chat) { replace(chat.messages[2].extra, "the door", "the cat"); }, CacheMissKind::call, 2,
       "assistant", "cat"},
      {"another result", [&](Chat& chat) { replace(chat.messages[3].content, "dog", "cat"); }, CacheMissKind::result, 3, "tool",
       "cat."},
      {"no result", [](Chat& chat) { chat.messages.erase(chat.messages.begin() + 3); }, CacheMissKind::text, 3, "user", ""},
      {"an option of the template", [](Chat& chat) { chat.arguments = R"({"effort":"high"})"; }, CacheMissKind::template_text,
       -1, "", "high"},
  };
  const Prompt first = prompt_of({});
  note(first, "one", "Nothing.");
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    Chat chat;
    each.change(chat);
    const Prompt prompt = prompt_of(chat);
    for (const std::string_view with : {"", "one"}) {
      const CacheMiss miss = compare(prompt, with).miss;
      EXPECT_EQ(cache_miss_name(miss.kind), cache_miss_name(each.kind));
      EXPECT_EQ(miss.message, each.message);
      EXPECT_EQ(miss.role, each.role);
      EXPECT_EQ(miss.compared_with, "one");
      EXPECT_EQ(miss.known_tokens, static_cast<std::int32_t>(first.tokens.size()) + 8);
      EXPECT_TRUE(text_from(prompt, miss.token).starts_with(each.begins)) << text_from(prompt, miss.token);
      EXPECT_GT(miss.lost_tokens, static_cast<std::int32_t>(kRest.size())) << "the last message is always the same";
      EXPECT_LE(miss.lost_tokens, static_cast<std::int32_t>(prompt.tokens.size()) - miss.token);
    }
  }
}

TEST_F(PromptMemoryTest, WhatContinuesAPromptDiffersInNothing) {
  Chat chat;
  const Prompt first = prompt_of(chat);
  EXPECT_EQ(compare(first).miss.kind, CacheMissKind::none) << "nothing is known";
  note(first, "one", "A cat.");
  EXPECT_EQ(compare(first).known_prefix, static_cast<std::int32_t>(first.tokens.size()));
  chat.messages.push_back({"assistant", "A cat."});
  chat.messages.push_back({"user", "Well."});
  const Prompt second = prompt_of(chat);
  EXPECT_EQ(compare(second).miss.kind, CacheMissKind::none);
  EXPECT_EQ(compare(second).known_prefix, static_cast<std::int32_t>(first.tokens.size()) + 6);
  note(second, "two", "Yes.");
  EXPECT_EQ(compare(second, "one").miss.kind, CacheMissKind::none);
  chat.messages[1].content = "Something else";
  EXPECT_EQ(compare(prompt_of(chat), "one").miss.known_tokens, static_cast<std::int32_t>(first.tokens.size()) + 6)
      << "that of the named reply, not of the later one in the same conversation";
}

TEST_F(PromptMemoryTest, ARepliesThoughtsThatAreNotSentBackAreNamed) {
  Chat chat;
  note(prompt_of(chat), "one", "<think>I see.</think>A cat.", 21);
  chat.messages.push_back({"assistant", "A cat."});
  chat.messages.push_back({"user", "Well."});
  const CacheMiss miss = compare(prompt_of(chat), "one").miss;
  EXPECT_EQ(miss.kind, CacheMissKind::reasoning);
  EXPECT_EQ(std::pair(miss.message, miss.role), std::pair(5, std::string_view("assistant")));
}

TEST_F(PromptMemoryTest, TenantsAndModelsAreApart) {
  const Prompt first = prompt_of({});
  note(first, "one");
  EXPECT_EQ(compare(first, "one", {"other"}).miss.kind, CacheMissKind::not_found);
  EXPECT_EQ(compare(first, "", {"other"}).known_prefix, 0);
  EXPECT_EQ(memory_.find({"other"}, "one"), nullptr);
  EXPECT_EQ(compare(first, "two").miss.kind, CacheMissKind::not_found);
  for (const std::string_view with : {"", "one"}) {
    const PromptComparison other = compare(first, with, {"t"}, "b");
    EXPECT_EQ(other.miss.kind, CacheMissKind::model);
    EXPECT_EQ(other.miss.lost_tokens, static_cast<std::int32_t>(first.tokens.size()));
    EXPECT_EQ(other.known_prefix, 0) << "its KV is of no use";
  }
}

TEST_F(PromptMemoryTest, AnotherConversationLosesNothing) {
  note(prompt_of({}), "one");
  Chat other;
  other.messages.resize(1);
  other.messages.push_back({"user", "Tell me a story that nobody has heard before."});
  const CacheMiss miss = compare(prompt_of(other)).miss;
  EXPECT_EQ(miss.kind, CacheMissKind::text);
  EXPECT_EQ(miss.message, 1);
  EXPECT_EQ(miss.lost_tokens, 0);
}

TEST_F(PromptMemoryTest, CountsAClockInTheHead) {
  for (int i = 0; i < 5; ++i) {
    Chat chat;
    chat.messages[0].content = "It is 10:1" + std::to_string(i) + "." + kRest;
    const Prompt prompt = prompt_of(chat);
    EXPECT_EQ(compare(prompt).miss.repeats, i);
    memory_.note({"t"}, facts(prompt), prompt.outline, {.id = "", .generated = {}, .usage = {}});
  }
}

TEST_F(PromptMemoryTest, ForgetsASessionThatHasEnded) {
  const Prompt prompt = prompt_of({});
  auto of_session = facts(prompt);
  of_session.session = {"s"};
  memory_.note({"t"}, of_session, prompt.outline, {.id = "one", .generated = {}, .usage = {}});
  EXPECT_NE(memory_.find({"t"}, "s"), nullptr);
  memory_.forget({"t"}, {"other"});
  EXPECT_NE(memory_.find({"t"}, "one"), nullptr);
  memory_.forget({"t"}, {"s"});
  EXPECT_EQ(memory_.find({"t"}, "one"), nullptr);
  EXPECT_EQ(memory_.bytes(), 0);
}

TEST_F(PromptMemoryTest, SaysThatKvIsNotHeld) {
  const Prompt first = prompt_of({});
  note(first, "one");
  const auto count = static_cast<std::int32_t>(first.tokens.size());
  Usage usage{.prompt_tokens = count, .reused_tokens = 0, .reuse_reason = "one_shot"};
  const PromptComparison found = compare(first);
  EXPECT_EQ(final_miss(found, usage, true).kind, CacheMissKind::not_held);
  EXPECT_EQ(final_miss(found, usage, true).cause, "") << "it may have made room, or be slower to read";
  EXPECT_EQ(final_miss(found, usage, true).lost_tokens, count - 1) << "the last token is always computed";
  EXPECT_EQ(final_miss(found, usage, true).message, 0);
  usage.reuse_reason = "refused";
  EXPECT_EQ(final_miss(found, usage, true).cause, "refused");
  usage.reuse_reason = "prefix";
  usage.reused_tokens = count - 10;
  EXPECT_EQ(final_miss(found, usage, true).kind, CacheMissKind::none) << "a few tokens are computed again anyway";
  Chat branch;
  branch.messages.back().content = "Something new";
  usage = {.prompt_tokens = count, .reused_tokens = 0, .reuse_reason = "one_shot"};
  EXPECT_EQ(final_miss(compare(prompt_of(branch)), usage, false).cause, "window");
  const CacheMiss named = final_miss(compare(prompt_of(branch), "one"), usage, true);
  EXPECT_EQ(named.kind, CacheMissKind::text) << "what the client asks about is the difference";
  Prompt later = prompt_of({});
  auto reloaded = facts(later);
  reloaded.loaded_at = TimePoint() + std::chrono::seconds(1);
  EXPECT_EQ(final_miss(memory_.compare({"t"}, reloaded, later.outline, ""), usage, true).cause, "unloaded");
}

TEST_F(PromptMemoryTest, WhatWasReusedIsNotLost) {
  const Prompt first = prompt_of({});
  note(first, "one");
  Chat edited;
  edited.messages[1].content = "What is new?" + kRest;
  const Prompt prompt = prompt_of(edited);
  const auto count = static_cast<std::int32_t>(prompt.tokens.size());
  const PromptComparison found = compare(prompt);
  Usage usage{.prompt_tokens = count, .reused_tokens = found.miss.token, .reuse_reason = "prefix"};
  EXPECT_EQ(final_miss(found, usage, true), found.miss);
  usage.reused_tokens = count - 20;
  EXPECT_EQ(final_miss(found, usage, true).kind, CacheMissKind::none) << "its KV was made by a prompt that is not remembered";
  const CacheMiss named = final_miss(compare(prompt, "one"), usage, true);
  EXPECT_EQ(named.kind, CacheMissKind::text);
  EXPECT_EQ(named.lost_tokens, 19) << "no more than was computed for want of it";
}

TEST_F(PromptMemoryTest, TheSameTextInOtherTokensIsNamed) {
  Chat chat;
  const Prompt prompt = prompt_of(chat);
  const std::vector<Token> generated{'A', ' ', testing::kFakeBos, 'c', 'a', 't', '.', '\n'};  // Its first token has no text.
  memory_.note({"t"}, facts(prompt), prompt.outline, {.id = "one", .generated = generated, .message = 5, .usage = {}});
  chat.messages.push_back({"assistant", "A cat."});
  chat.messages.push_back({"user", "Well."});
  EXPECT_EQ(cache_miss_name(compare(prompt_of(chat)).miss.kind), "tokens");
  chat.messages[5].content = "A car.";
  EXPECT_EQ(cache_miss_name(compare(prompt_of(chat)).miss.kind), "text");
  chat.messages.resize(5);
  Prompt cut = prompt_of(chat);
  cut.tokens.insert(cut.tokens.end(), {'A', ' ', 'c'});
  EXPECT_EQ(cache_miss_name(compare(cut).miss.kind), "text") << "the prompt ends within it";
}

// The chain of a session may continue a prompt that is not remembered any more.
TEST_F(PromptMemoryTest, AnotherConversationsOutlineIsNotTakenForTheOwn) {
  const Prompt other = prompt_of({});
  note(other, "one");
  Prompt own = other;
  own.tokens.resize(40);  // Within the system prompt.
  for (int i = 0; i < 500; ++i) own.tokens.push_back('a' + i % 25);
  own.outline = {};
  own.outline.add(500, {.part = PromptPart::text, .message = 7, .role = "user"});
  const PromptComparison found = compare(own);
  EXPECT_EQ(found.known_prefix, 40);
  ASSERT_NE(found.outline.input_at(300), nullptr);
  EXPECT_EQ(found.outline.input_at(300)->place, (PromptPlace{.part = PromptPart::text}));
  EXPECT_EQ(found.outline.input_at(510)->place.message, 7);
  EXPECT_EQ(found.outline.input_at(20)->place, other.outline.input_at(20)->place);
}

TEST_F(PromptMemoryTest, ATenantIsToldOfFewPlaces) {
  const auto repeats_of = [&](int place, int i) {
    Prompt prompt;
    for (int j = 0; j < 1000; ++j) prompt.tokens.push_back('a' + j % 25);
    if (place > 0) prompt.tokens[static_cast<std::size_t>(place) * 50] = '0' + i;
    prompt.outline.add(0, {.part = PromptPart::text, .message = 1, .role = "user"});
    const std::int32_t repeats = compare(prompt).miss.repeats;
    memory_.note({"t"}, facts(prompt), prompt.outline, {.id = "", .generated = {}, .usage = {}});
    return repeats;
  };
  (void)repeats_of(0, 0);
  for (int place = 1; place <= 12; ++place) {
    std::int32_t most = 0;
    for (int i = 0; i < 5; ++i) most = std::max(most, repeats_of(place, i));
    EXPECT_EQ(most >= kClockRepeats, place <= 8) << place;
  }
}

TEST_F(PromptMemoryTest, IsBounded) {
  PromptMemory small(64 << 10, 16 << 10);
  const auto fill = [&](const TenantId& tenant, int from, int count) {
    for (int i = from; i < from + count; ++i) {
      Prompt prompt;
      for (int j = 0; j < 1000; ++j) prompt.tokens.push_back((i * 7 + j) % 200);
      small.note(tenant, facts(prompt), prompt.outline, {.id = std::to_string(i), .generated = {}, .usage = {}});
      EXPECT_LE(small.bytes(), 64 << 10);
    }
  };
  fill({"a"}, 0, 10);
  EXPECT_LE(small.bytes(), 16 << 10);
  EXPECT_EQ(small.find({"a"}, "0"), nullptr) << "the oldest one goes first";
  EXPECT_NE(small.find({"a"}, "9"), nullptr);
  for (int tenant = 0; tenant < 30; ++tenant) fill({"b" + std::to_string(tenant)}, 0, 3);
  EXPECT_EQ(small.find({"a"}, "9"), nullptr);
  EXPECT_NE(small.find({"b29"}, "2"), nullptr);
  for (int i = 0; i < 1100; ++i) {
    const Prompt prompt{.tokens = {1, i, 2}, .outline = {}};
    memory_.note({"t"}, facts(prompt), {}, {.id = std::to_string(i), .generated = {}, .usage = {}});
  }
  EXPECT_EQ(memory_.find({"t"}, "70"), nullptr);
  EXPECT_NE(memory_.find({"t"}, "80"), nullptr);
  Prompt huge;
  huge.tokens.resize(100'000);
  small.note({"c"}, facts(huge), huge.outline, {.id = "huge", .generated = {}, .usage = {}});
  EXPECT_EQ(small.find({"c"}, "huge"), nullptr);
  EXPECT_EQ(small.find({"c"}, ""), nullptr);
}

TEST(TokensInCommon, CountsRuns) {
  std::vector<Token> known;
  for (int i = 0; i < 100; ++i) known.push_back(i);
  EXPECT_EQ(tokens_in_common(known, known), 100);
  EXPECT_EQ(tokens_in_common(known, std::span(known).subspan(30, 40)), 40);
  EXPECT_EQ(tokens_in_common(known, std::span(known).first(15)), 0) << "too short";
  std::vector<Token> edited = known;
  edited[50] = 7;
  EXPECT_EQ(tokens_in_common(known, edited), 99);
  edited.insert(edited.begin() + 20, 3, 1000);
  EXPECT_EQ(tokens_in_common(known, edited), 99);
  EXPECT_EQ(tokens_in_common({}, known), 0);
}

}  // namespace
}  // namespace uma::engine
