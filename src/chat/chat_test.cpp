#include "chat/chat.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "testing/fake_model.h"

namespace uma::chat {
namespace {

using testing::FakeModel;
using testing::FakeOptions;
using testing::kFakeBos;
using testing::kFakeImEnd;
using testing::kFakeImStart;

ChatFormat format_of(const FakeOptions& options) {
  return ChatFormat(std::make_shared<const FakeModel>(options));
}

ChatFormat chat_format() {
  return format_of({.has_chat_template = true});
}

ChatFormat format_of(std::string_view chat_template) {
  return format_of({.has_chat_template = true, .chat_template = chat_template});
}

// A template that leaves out the reasoning of earlier replies, like those of Qwen3 and DeepSeek R1.
constexpr std::string_view kDropsReasoning =
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

std::vector<Token> letters(std::string_view text) {
  return {text.begin(), text.end()};
}

// A session as the engine stores it: turns of one user message and one reply.
class Talk {
 public:
  explicit Talk(const ChatFormat& format) : format_(format) {}

  ChatTokens ask(const std::string& text) {
    const std::vector<ChatMessage> added{{"user", text}};
    ChatTokens made =
        tokenize_chat(format_, {.messages = messages, .tokens = chain, .replies = replies, .unix_s = 0}, added).value();
    if (made.history_change == ChatTokens::History::rewritten) {
      chain = made.history;
      replies = made.replies;
    }
    messages.push_back(added.front());
    chain.insert(chain.end(), made.tokens.begin(), made.tokens.end());
    return made;
  }
  void answer(const std::string& text) {
    const std::size_t begin = chain.size();
    const std::vector<Token> tokens = letters(text);
    chain.insert(chain.end(), tokens.begin(), tokens.end());
    replies.push_back({messages.size(), begin, chain.size()});
    messages.push_back({"assistant", text});
  }

  std::vector<ChatMessage> messages;
  std::vector<Token> chain;
  std::vector<MessagePlace> replies;

 private:
  const ChatFormat& format_;
};

std::vector<Token> whole(const ChatFormat& format, std::span<const ChatMessage> messages) {
  return tokenize_chat(format, {}, messages).value().tokens;
}

std::string text_of(const ChatFormat& format, std::span<const Token> tokens) {
  std::string text;
  for (const Token token : tokens) {
    text += token == kFakeImStart ? "<" : token == kFakeImEnd ? ">" : std::string(format.model().vocab().piece(token));
  }
  return text;
}

TEST(TokenizeText, PutsBosOnlyAtTheStartOfAChain) {
  const FakeModel model({});
  EXPECT_EQ(tokenize_text(model.vocab(), "ab", true).value(), (std::vector<Token>{kFakeBos, 'a', 'b'}));
  EXPECT_EQ(tokenize_text(model.vocab(), "ab", false).value(), (std::vector<Token>{'a', 'b'}));
}

TEST(TokenizeText, MarksInAFormattedTextAreTokens) {
  const testing::FakeVocab vocab;
  const auto marked = [&](std::string_view text) { return tokenize_text(vocab, text, true, /*parse_special=*/true).value(); };
  EXPECT_EQ(marked("<|im_start|>a<|im_end|>"), (std::vector<Token>{kFakeBos, kFakeImStart, 'a', kFakeImEnd}));
  EXPECT_EQ(marked("<s>a"), (std::vector<Token>{kFakeBos, 'a'})) << "BOS appears once";
  EXPECT_EQ(marked("<s><s>"), (std::vector<Token>{kFakeBos, kFakeBos})) << "a client that wants two gets two";
  EXPECT_EQ(tokenize_text(vocab, "<s>", false, true).value(), (std::vector<Token>{kFakeBos}));
  EXPECT_EQ(tokenize_text(vocab, "<s>", true, false).value().size(), 4U) << "letters";
}

TEST(TokenizeText, TheLeadingSpaceComesBeforeTheFirstTextAndBehindMarks) {
  const testing::FakeVocab vocab(/*adds_space_prefix=*/true);
  EXPECT_EQ(tokenize_text(vocab, "a", true, true).value(), (std::vector<Token>{kFakeBos, ' ', 'a'}));
  EXPECT_EQ(tokenize_text(vocab, "<s>a", true, true).value(), (std::vector<Token>{kFakeBos, ' ', 'a'}));
  EXPECT_EQ(tokenize_text(vocab, "<|im_start|><|im_end|>b", false, true).value(),
            (std::vector<Token>{kFakeImStart, kFakeImEnd, ' ', 'b'}));
  EXPECT_EQ(tokenize_text(vocab, "a", false, true).value(), (std::vector<Token>{'a'})) << "a continuation";
  EXPECT_EQ(tokenize_text(vocab, "", true, true).value(), (std::vector<Token>{kFakeBos}));
}

TEST(ChatFormatTemplates, AreChosenAsTransformersDoes) {
  const auto model = std::make_shared<const FakeModel>(
      FakeOptions{.has_chat_template = true,
                  .chat_template = "default",
                  .tool_template = "{% if tools %}{{ tools | length }}{% else %}no{% endif %} tools"});
  const ChatFormat format(model);
  const auto written = [&](std::string_view tools, std::string_view arguments) {
    const std::vector<ChatMessage> messages{{"user", "a"}};
    return format.chosen(tools, arguments)
        .write(messages, true, {.tools = tools, .template_arguments = arguments})
        .value()
        .bytes();
  };
  constexpr std::string_view kTools = R"([{"type":"function","function":{"name":"f"}}])";
  EXPECT_EQ(written("", ""), "default");
  EXPECT_EQ(written(kTools, ""), "1 tools");
  EXPECT_EQ(written("", R"({"chat_template":"tool_use"})"), "no tools");
  EXPECT_EQ(&format.chosen(kTools, R"({"chat_template":"default"})"), &format);
}

TEST(ChatFormatTemplates, ARequestMayNameOnlyThoseOfTheModel) {
  const auto model =
      std::make_shared<const FakeModel>(FakeOptions{.has_chat_template = true, .chat_template = "d", .tool_template = "t"});
  const ChatFormat format(model);
  EXPECT_TRUE(format.check_name(""));
  EXPECT_TRUE(format.check_name(R"({"chat_template":"default"})"));
  EXPECT_TRUE(format.check_name(R"({"chat_template":"tool_use"})"));
  const auto unknown = format.check_name(R"({"chat_template":"rag"})");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().field, "chat_template");
  EXPECT_EQ(unknown.error().message, "field \"chat_template\": the model has no template \"rag\", only default, tool_use");
  EXPECT_TRUE(format.check_name(R"({"chat_template":"{{ messages }}"})").error().message.contains("are not run"));
}

TEST(TokenizeChat, UserTextNeverBecomesSpecialTokens) {
  const ChatFormat format = chat_format();
  const std::vector<ChatMessage> messages{{"user", "<|im_end|>"}};
  const auto tokens = whole(format, messages);
  EXPECT_EQ(std::ranges::count(tokens, kFakeImEnd), 1) << "only the template's own";
  EXPECT_EQ(std::ranges::count(tokens, kFakeImStart), 2);
}

TEST(TokenizeChat, ReportsTheEndOfTheSystemPrompt) {
  const ChatFormat format = format_of("{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}");
  const std::vector<ChatMessage> messages{{"system", "be"}, {"system", "brief"}, {"user", "hi"}};
  const auto tokens = tokenize_chat(format, {}, messages).value();
  ASSERT_GT(tokens.system_tokens, 10);
  const auto system = std::span(tokens.tokens).first(static_cast<std::size_t>(tokens.system_tokens));
  EXPECT_EQ(system.back(), 'f');
  const auto alone = tokenize_chat(format, {}, std::span(messages).first(2)).value();
  EXPECT_TRUE(std::ranges::equal(std::span(alone.tokens).first(system.size()), system));
  EXPECT_EQ(alone.system_tokens, tokens.system_tokens);
  const std::vector<ChatMessage> without{{"user", "hi"}, {"system", "later"}};
  EXPECT_EQ(tokenize_chat(format, {}, without).value().system_tokens, 1) << "BOS";
  const ChatFormat own = format_of("{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}");
  EXPECT_EQ(tokenize_chat(own, {}, without).value().system_tokens, 1) << "that of the template, which must stay";
}

TEST(TokenizeChat, ReportsTheHeadThatOtherConversationsBeginWith) {
  const ChatFormat format = format_of("{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}");
  const std::string tools = R"([{"type":"function","function":{"name":"look","parameters":{}}}])";
  const auto head_of = [&](const std::vector<ChatMessage>& messages, std::string_view its_tools) {
    auto tokens = tokenize_chat(format, {.messages = {}, .tokens = {}, .replies = {}, .tools = its_tools}, messages).value();
    tokens.tokens.resize(static_cast<std::size_t>(tokens.head_tokens));
    return tokens.tokens;
  };
  const auto head = head_of({{"system", "be brief"}, {"user", "hi"}}, tools);
  const std::string text = text_of(format, head);
  EXPECT_TRUE(text.contains("<system:be brief")) << text;
  EXPECT_TRUE(text.contains("look")) << text;
  EXPECT_TRUE(text.ends_with("><user:")) << text;
  EXPECT_EQ(head_of({{"system", "be brief"}, {"user", "something else"}, {"assistant", "x"}, {"user", "y"}}, tools), head);
  EXPECT_NE(head_of({{"system", "be brief"}, {"user", "hi"}}, ""), head);
  EXPECT_EQ(head_of({{"user", "hi"}}, "").size(), 7U) << "BOS, the mark and the role";
  EXPECT_TRUE(head_of({{"system", "alone"}}, "").empty()) << "where the next message begins is not known";
}

TEST(TokenizeChat, AHeadHasNoWordsOfOtherMessages) {
  const ChatFormat format = format_of(
      "{% for m in messages if m.role != 'system' %}<|im_start|>{% if loop.last %}{{ messages[0].content }}{% endif %}{{ "
      "m.content }}<|im_end|>{% endfor %}");
  const std::vector<ChatMessage> messages{{"system", "be brief"}, {"user", "hi"}, {"assistant", "ho"}, {"user", "why"}};
  EXPECT_EQ(tokenize_chat(format, {}, messages).value().head_tokens, 0);
  EXPECT_GT(tokenize_chat(format, {}, std::span(messages).first(2)).value().head_tokens, 8);
}

TEST(TokenizeChat, UserTextThatTheTemplateWorksOnIsStillUserText) {
  const ChatFormat format = format_of(
      "{% set ns = namespace(all='') %}{% for m in messages %}{% set ns.all = ns.all ~ (m.content | trim | replace('a', "
      "'<|im_end|>')) "
      "%}{% endfor %}<|im_start|>{{ ns.all.split('|')[0] ~ ns.all[1:] | string }}");
  const std::vector<ChatMessage> messages{{"user", " b<|im_start|>cz "}};
  const auto tokens = whole(format, messages);
  EXPECT_EQ(std::ranges::count(tokens, kFakeImStart), 1) << "the user's stays text";
  EXPECT_EQ(std::ranges::count(tokens, kFakeImEnd), 1) << "what the template puts in is the template's";
}

TEST(TokenizeChat, BosIsNotThereTwice) {
  const std::vector<ChatMessage> messages{{"user", "a"}};
  EXPECT_EQ(whole(format_of("{{ bos_token }}{{ messages[0].content }}"), messages), (std::vector<Token>{kFakeBos, 'a'}));
  EXPECT_EQ(whole(format_of("{{ messages[0].content }}"), messages), (std::vector<Token>{kFakeBos, 'a'}));
}

// Appending turn by turn gives the same chain as formatting the whole conversation at once.
TEST(TokenizeChat, DeltasAddUpToTheWholeConversation) {
  const ChatFormat format = chat_format();
  Talk talk(format);
  talk.ask("hi\n");
  talk.answer("hello");
  EXPECT_EQ(talk.ask(" and now?").history_change, ChatTokens::History::stays);
  EXPECT_EQ(talk.chain, whole(format, talk.messages));
}

TEST(TokenizeChat, TheDeltaBeginsWithTheEndOfTheLastReply) {
  const ChatFormat format = chat_format();
  Talk talk(format);
  talk.ask("a");
  talk.answer("b");
  EXPECT_EQ(talk.ask("c").tokens.front(), kFakeImEnd);
}

TEST(TokenizeChat, ATemplateThatTrimsRepliesKeepsTheChain) {
  const ChatFormat format =
      format_of("{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}<|im_start|>");
  Talk talk(format);
  talk.ask("a");
  talk.answer(" b\n");
  const ChatTokens made = talk.ask("c");
  EXPECT_EQ(made.history_change, ChatTokens::History::stays);
  EXPECT_EQ(text_of(format, made.tokens), "><c><");
}

TEST(TokenizeChat, ReasoningThatTheTemplateDropsIsCutFromTheChain) {
  const ChatFormat format = format_of(kDropsReasoning);
  Talk talk(format);
  talk.ask("one");
  talk.answer("<think>hm</think>\n1");
  const std::vector<Token> before = talk.chain;
  const ChatTokens made = talk.ask("two");
  EXPECT_EQ(made.history_change, ChatTokens::History::rewritten);
  EXPECT_EQ(text_of(format, talk.chain), "<user\none>\n<assistant\n1>\n<user\ntwo>\n<assistant\n");
  const auto [in_chain, in_before] = std::ranges::mismatch(talk.chain, before);
  EXPECT_EQ(static_cast<std::size_t>(in_chain - talk.chain.begin()), talk.replies[0].begin) << "all up to the reply is kept";

  talk.answer("<think>ah</think>\n2");
  EXPECT_EQ(talk.ask("three").history_change, ChatTokens::History::rewritten);
  EXPECT_EQ(text_of(format, talk.chain),
            "<user\none>\n<assistant\n1>\n<user\ntwo>\n<assistant\n2>\n<user\nthree>\n<assistant\n");
  ASSERT_EQ(talk.replies.size(), 2u) << "the turns are still known";
  for (const auto& [place, content] : {std::pair{talk.replies[0], "1"}, {talk.replies[1], "2"}}) {
    EXPECT_EQ(text_of(format, std::span(talk.chain).subspan(place.begin, place.end - place.begin)), content);
  }
}

TEST(TokenizeChat, BlanksThatTheTemplateWritesAroundRepliesAreNotDoubled) {
  // The tools stand before the last question, so every question changes the past.
  const ChatFormat format = format_of(
      "{% for m in messages %}{{ '[tools]' if m.role == 'user' and loop.last }}<|im_start|>{{ ' ' if m.role == 'assistant' }}"
      "{{ m.content | trim }}<|im_end|>{% endfor %}<|im_start|>");
  Talk talk(format);
  talk.ask("one");
  talk.answer(" 1");
  talk.messages.back().content = "1";  // Content as the reply's reader leaves it.
  EXPECT_EQ(talk.ask("two").history_change, ChatTokens::History::rewritten);
  EXPECT_EQ(text_of(format, talk.chain), "<one>< 1>[tools]<two><");
  EXPECT_EQ(talk.chain, whole(format, talk.messages));
  talk.answer(" 2");
  EXPECT_EQ(talk.ask("three").history_change, ChatTokens::History::rewritten);
  EXPECT_EQ(talk.chain, whole(format, talk.messages));
}

TEST(TokenizeChat, TheSameInputAppendedInPartsRewritesOnce) {
  const ChatFormat format = format_of(kDropsReasoning);
  Talk talk(format);
  talk.ask("one");
  talk.answer("<think>hm</think>\n1");
  const Talk before = talk;
  talk.ask("two");
  const std::vector<Token> rewritten(talk.chain.begin(), talk.chain.begin() + static_cast<std::ptrdiff_t>(talk.replies[0].end));
  // Like the engine: the second message is written with the first, on the chain behind the first.
  const std::vector<ChatMessage> added{{"user", "two"}, {"user", "three"}};
  const auto made =
      tokenize_chat(format, {.messages = before.messages, .tokens = rewritten, .replies = talk.replies, .unix_s = 0}, added);
  ASSERT_TRUE(made);
  const std::vector<Token>& history = made->history_change == ChatTokens::History::stays ? rewritten : made->history;
  EXPECT_EQ(history, rewritten);
  EXPECT_EQ(text_of(format, made->tokens), ">\n<user\ntwo>\n<user\nthree>\n<assistant\n");
}

TEST(TokenizeChat, UnchangedRepliesKeepTheirTokens) {
  const ChatFormat format = format_of(kDropsReasoning);
  Talk talk(format);
  talk.ask("one");
  // The reply has tokens that the tokenizer would not choose: an end-of-generation token that it was told to ignore.
  const std::size_t begin = talk.chain.size();
  talk.chain.insert(talk.chain.end(), {'o', kFakeImEnd, 'k'});
  talk.replies.push_back({talk.messages.size(), begin, talk.chain.size()});
  talk.messages.push_back({"assistant", "ok"});
  EXPECT_EQ(talk.ask("two").history_change, ChatTokens::History::stays);
  talk.answer("<think>x</think>\n2");
  EXPECT_EQ(talk.ask("three").history_change, ChatTokens::History::rewritten);
  EXPECT_EQ(text_of(format, talk.chain),
            "<user\none>\n<assistant\no>k>\n<user\ntwo>\n<assistant\n2>\n<user\nthree>\n<assistant\n");
}

TEST(TokenizeChat, ATemplateThatDropsTheBeginningLosesTheTurns) {
  const ChatFormat format = format_of("{% for m in messages[-1:] %}{{ m.content }}{% endfor %}<|im_start|>");
  Talk talk(format);
  talk.ask("a");
  talk.answer("b");
  const ChatTokens made = talk.ask("c");
  EXPECT_EQ(made.history_change, ChatTokens::History::lost);
  EXPECT_EQ(made.tokens, (std::vector<Token>{kFakeBos, 'c', kFakeImStart}));
}

TEST(TokenizeChat, TheTimeIsTheConversations) {
  const ChatFormat format = format_of("{{ strftime_now('%Y') }}{{ messages[0].content }}");
  const std::vector<ChatMessage> added{{"user", "a"}};
  const auto made = tokenize_chat(format, {.messages = {}, .tokens = {}, .replies = {}, .unix_s = 86'400 * 366}, added);
  EXPECT_EQ(text_of(format, made->tokens), "1971a");
}

TEST(ChatFormat, ATemplateThatIsNotSupportedFallsBackToTheLibrarys) {
  const std::vector<ChatMessage> messages{{"user", " a<|im_end|>"}};
  const auto expected = whole(chat_format(), messages);
  EXPECT_EQ(whole(format_of("{% include 'x' %}"), messages), expected) << "it cannot be parsed";
  EXPECT_EQ(whole(format_of("{{ raise_exception('no') }}"), messages), expected) << "it refuses the conversation";
  EXPECT_EQ(whole(format_of({.has_chat_template = false}), messages), expected) << "the model has none";
}

TEST(ChatStopStrings, NoneWhereTheEndOfTurnIsAToken) {
  EXPECT_TRUE(chat_stop_strings(FakeModel({})).empty()) << "the fake vocabulary has <|im_end|> as an end token";
  EXPECT_TRUE(chat_stop_strings(FakeModel({.has_chat_template = true})).empty());
}

constexpr std::string_view kTools =
    R"([{"type":"function","function":{"name":"f","description":"does <|im_end|>","parameters":{"type":"object"}}}])";
const ChatMessage kCalling{"assistant", "",
                           R"({"tool_calls":[{"id":"abcdef123","type":"function","function":{"name":"f","arguments":)"
                           R"("{\"a\": \"<|im_end|>\"}"}}]})"};

std::string write(const ChatFormat& format, std::span<const ChatMessage> messages, std::string_view tools) {
  const auto text = format.write(messages, true, {.unix_s = 0, .tools = tools});
  return text ? text->bytes() : "error: " + text.error().message;
}

TEST(ChatFormatTools, GoToTheTemplateThatKnowsThem) {
  const ChatFormat format = format_of(
      "{{ tools[0].function.name }}[TOOL_CALLS]{% for m in messages %}{{ m.role }}{{ m.tool_call_id }}"
      "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.arguments.a }}{% endfor %}{% endfor %}");
  const std::vector<ChatMessage> messages{{"user", "go"}, kCalling, {"tool", "7", R"({"tool_call_id":"abcdef123"})"}};
  EXPECT_EQ(write(format, messages, kTools), "f[TOOL_CALLS]userassistantabcdef123<|im_end|>toolabcdef123");
  const Conversation nothing{.messages = {}, .tokens = {}, .replies = {}, .unix_s = 0, .tools = kTools};
  const auto tokens = tokenize_chat(format, nothing, messages).value().tokens;
  EXPECT_EQ(std::ranges::count(tokens, kFakeImEnd), 0) << "arguments never become special tokens";
}

TEST(ChatFormatTools, ATemplateMayInsistOnWhatIsOptional) {
  const ChatFormat format = format_of(
      "[TOOL_CALLS]{% for t in tools %}{{ '<' + t.function.name + t.function.description + '>' }}"
      "{% for name, schema in t.function.parameters.properties.items() %}{{ name + (schema.type or '') }}{% endfor %}{% endfor "
      "%}");
  const std::vector<ChatMessage> messages{{"user", "go"}};
  EXPECT_EQ(write(format, messages,
                  R"([{"type":"function","function":{"name":"f"}},)"
                  R"({"type":"function","function":{"name":"g","description":"d","parameters":)"
                  R"({"properties":{"a":{"type":"string"},"b":true}}}}])"),
            "[TOOL_CALLS]<f><gd>astringb");
  const ChatFormat other = format_of("[TOOL_CALLS]{{ tools | tojson }}");
  constexpr std::string_view kBare = R"([{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(write(other, messages, kBare), "[TOOL_CALLS]" + std::string(kBare)) << "one that does without gets nothing more";
}

TEST(ChatFormatTools, ATemplateMayWantArgumentsAsText) {
  const std::vector<ChatMessage> messages{{"user", "go"}, kCalling};
  EXPECT_EQ(write(format_of("<tool_call>{{ tools }}{% for m in messages if m.tool_calls %}"
                            "{{ 'a: ' + m.tool_calls[0].function.arguments + (m.content is none)|string }}{% endfor %}"),
                  messages, ""),
            "<tool_call>Nonea: {\"a\": \"<|im_end|>\"}False");
  EXPECT_EQ(write(format_of("<tool_call>{{ tools }}{% for m in messages %}{{ '/' + m.content }}{% endfor %}"), messages, ""),
            "<tool_call>None/go/<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"<|im_end|>\"}}\n</tool_call>");
}

TEST(ChatFormatTools, AreSpelledOutForATemplateThatDoesNotKnowThem) {
  const ChatFormat format = chat_format();
  const std::vector<ChatMessage> messages{{"system", "be brief"}, {"user", "go"}, kCalling, {"tool", "7"}, {"tool", "8"}};
  const std::string text = write(format, messages, kTools);
  EXPECT_TRUE(text.starts_with("<|im_start|>system\nbe brief\n\n")) << text;
  EXPECT_TRUE(text.contains("\"description\": \"does <|im_end|>\"")) << text;
  EXPECT_TRUE(
      text.contains("<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"<|im_end|>\"}}\n"
                    "</tool_call><|im_end|>"))
      << text;
  EXPECT_TRUE(text.contains("<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response>"))
      << text;
  const Conversation nothing{.messages = {}, .tokens = {}, .replies = {}, .unix_s = 0, .tools = kTools};
  EXPECT_EQ(std::ranges::count(tokenize_chat(format, nothing, messages)->tokens, kFakeImEnd), 4) << "the template's own";
  EXPECT_TRUE(write(format, std::span(messages).subspan(1, 1), kTools).starts_with("<|im_start|>system\nYou can call"));
}

TEST(ChatFormatTools, TheTemplateDecidesTheNotationOfCalls) {
  const auto syntax = [](std::string_view chat_template) {
    ChatOptions options;
    options.tools = kTools;
    options.tool_names = {"f"};
    const ReplyFormat format = format_of(chat_template).reply_format(options, {}, nullptr);
    return format.family->name;
  };
  EXPECT_EQ(syntax("{{ tools }}<tool_call>"), "hermes");
  EXPECT_EQ(syntax("{{ tools }}[TOOL_CALLS]"), "mistral");
  EXPECT_EQ(syntax("{{ tools }}ipython \"parameters\""), "llama3.2");
  EXPECT_EQ(syntax("{{ tools }}<｜tool▁calls▁begin｜>```json"), "deepseek");
  EXPECT_EQ(syntax("{{ tools }}<tool_call><function=f><parameter="), "qwen3-coder");
  EXPECT_EQ(syntax("{{ messages }}"), "hermes") << "spelled out";
  EXPECT_TRUE(chat_format().reply_format({}, {}, nullptr).is_plain());
}

TEST(ChatFormatTools, APromptMayHaveBegunTheReasoning) {
  const ChatOptions options;
  const ChatFormat format = format_of("{{ messages[0].content.split('</think>')[-1] }}{% if open %}<think>\n{% endif %}");
  const std::vector<ChatMessage> messages{{"user", "hi"}};
  const auto format_with = [&](std::string_view arguments) {
    const auto prompt =
        tokenize_chat(format, {.messages = {}, .tokens = {}, .replies = {}, .template_arguments = arguments}, messages);
    return format.reply_format(options, prompt.value().tokens, nullptr);
  };
  EXPECT_TRUE(format_with(R"({"open": true})").begins_with_reasoning);
  EXPECT_FALSE(format_with("").begins_with_reasoning);
  EXPECT_EQ(format_with("").thoughts.close, "</think>");
}

TEST(ChatFormatTools, TheFamilyMayBeNamed) {
  const auto named = [](std::string_view family, std::string_view chat_template) {
    ChatOptions options;
    options.tools = kTools;
    const FakeOptions fake{.has_chat_template = true, .chat_template = chat_template};
    return ChatFormat(std::make_shared<const FakeModel>(fake), nullptr, family).reply_format(options, {}, nullptr);
  };
  EXPECT_EQ(named("qwen3-coder", "{{ tools }}<tool_call>").family->name, "qwen3-coder");
  EXPECT_EQ(named("", "{{ tools }}<tool_call>").family->name, "hermes");
  const ReplyFormat without_tools = named("seed-oss", "{{ messages }}");
  EXPECT_EQ(without_tools.family->name, "hermes") << "umad describes the tools";
  EXPECT_EQ(without_tools.thoughts.close, "</seed:think>");
}

TEST(ChatFormatTools, ThoughtsEndWithTheirMarkAndWhatLeadsToTheAnswer) {
  const auto closing = [](std::string_view chat_template, const ChatOptions& options) {
    const ChatFormat format = format_of(chat_template);
    const auto limit = format.thinking_limit(options);
    return limit ? format.text_of(limit->closing) + "|" + format.text_of(limit->answer) : "none";
  };
  ChatOptions options;
  options.thinking_budget = 3;
  EXPECT_EQ(closing("{{ tools }}", options), "none");
  EXPECT_EQ(closing("{{ tools }}</think>", options), "</think>|</think>");
  const std::string_view harmony = "{{ tools }}<|channel|><|message|>";
  const std::string final = "<|end|><|start|>assistant<|channel|>final<|message|>";
  EXPECT_EQ(closing(harmony, options), final + "|" + final);
  options.tools = kTools;
  EXPECT_EQ(closing(harmony, options), "<|end|><|start|>assistant|" + final) << "it may call";
  options.tool_choice = ToolChoice::required;
  EXPECT_EQ(closing(harmony, options), "<|end|>|" + final) << "the grammar has the rest";
  const ChatFormat format = format_of("</think>");
  EXPECT_EQ(format.thinking_limit(options)->tokens_max, 3);
  options.thinking_budget = -1;
  EXPECT_EQ(format.thinking_limit(options)->tokens_max, std::numeric_limits<std::int32_t>::max());
}

TEST(ChatFormat, ThoughtsOfThePastStayWhereATemplateAsks) {
  const ChatFormat format = format_of("{{ clear_thinking }} {{ preserve_thinking }} {{ drop_thinking }}");
  const std::vector<ChatMessage> messages{{"user", "hi"}};
  EXPECT_EQ(format.write(messages, true, {})->bytes(), "False True False");
  EXPECT_EQ(format.write(messages, true, {.template_arguments = R"({"clear_thinking":true})"})->bytes(), "True True False");
}

TEST(ChatFormatTools, ControlTokensAmongTheMarksHaveTheirText) {
  ChatOptions options;
  options.tools = kTools;
  // The fake vocabulary hides <|im_start|>; a mark of several tokens is plain text.
  const ChatFormat format = format_of("{{ tools }}<tool_call>");
  EXPECT_TRUE(format.reply_format(options, {}, nullptr).marks.empty());
  EXPECT_EQ(format.text_of(letters("<tool_call>")), "<tool_call>");
}

// --- replies that a client has begun

constexpr std::string_view kPlainTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// Writes thoughts, and opens them for the next reply.
constexpr std::string_view kThinkingTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

BegunReply begun_of(std::string_view chat_template, const std::vector<ChatMessage>& messages) {
  auto begun = format_of(chat_template).write_begun(messages, {});
  EXPECT_TRUE(begun) << (begun ? "" : begun.error().message);
  return begun ? std::move(*begun) : BegunReply();
}

TEST(BegunReplies, EndBehindTheirText) {
  const BegunReply begun = begun_of(kPlainTemplate, {{"user", "hi"}, {"assistant", "The answer "}});
  EXPECT_EQ(begun.prompt.bytes(), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nThe answer ")
      << "the template trims it";
  EXPECT_EQ(begun.text, "The answer ");
  EXPECT_EQ(begun.content, "The answer ");
  EXPECT_FALSE(begun.begins_with_reasoning || begun.is_thinking);
}

TEST(BegunReplies, TheNextTurnBeginsWithTheSameTokens) {
  const ChatFormat format = format_of(kPlainTemplate);
  const std::vector<ChatMessage> messages{{"user", "hi"}, {"assistant", "The answer"}};
  auto chain =
      tokenize_chat(format, {.messages = {}, .tokens = {}, .replies = {}, .continues_reply = true}, messages).value().tokens;
  const std::vector<Token> rest = letters(" is 7.");
  chain.insert(chain.end(), rest.begin(), rest.end());
  const std::vector<ChatMessage> next{{"user", "hi"}, {"assistant", "The answer is 7."}, {"user", "sure?"}};
  const auto tokens = whole(format, next);
  ASSERT_GT(tokens.size(), chain.size());
  EXPECT_TRUE(std::ranges::equal(std::span(tokens).first(chain.size()), chain));
}

TEST(BegunReplies, ContentComesBehindThoughts) {
  const BegunReply begun =
      begun_of(kThinkingTemplate, {{"user", "hi"}, {"assistant", "The", R"({"reasoning_content":"Hm."})"}});
  EXPECT_TRUE(begun.prompt.bytes().ends_with("<|im_start|>assistant\n<think>\nHm.\n</think>\n\nThe")) << begun.prompt.bytes();
  EXPECT_EQ(begun.text, "Hm.\n</think>\n\nThe");
  EXPECT_TRUE(begun.begins_with_reasoning);
  EXPECT_FALSE(begun.is_thinking);
  EXPECT_TRUE(begun_of(kThinkingTemplate, {{"user", "hi"}, {"assistant", "The"}}).prompt.bytes().ends_with("</think>\n\nThe"));
}

TEST(BegunReplies, ThoughtsAloneGoOn) {
  const BegunReply begun = begun_of(kThinkingTemplate, {{"user", "hi"}, {"assistant", "", R"({"reasoning_content":"Hm"})"}});
  EXPECT_TRUE(begun.prompt.bytes().ends_with("<think>\nHm")) << begun.prompt.bytes();
  EXPECT_EQ(begun.text, "Hm");
  EXPECT_TRUE(begun.begins_with_reasoning && begun.is_thinking);
}

TEST(BegunReplies, AreWrittenBehindThePromptIfTheTemplateRefusesThem) {
  const BegunReply begun =
      begun_of("{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}" + std::string(kPlainTemplate),
               {{"user", "hi"}, {"assistant", "The"}});
  EXPECT_TRUE(begun.prompt.bytes().ends_with("<|im_start|>assistant\nThe")) << begun.prompt.bytes();
  EXPECT_EQ(begun.text, "The");
}

TEST(BegunReplies, MayBeTheOnlyMessage) {
  EXPECT_EQ(begun_of(kPlainTemplate, {{"assistant", "Once"}}).prompt.bytes(), "<|im_start|>assistant\nOnce");
}

TEST(BegunReplies, TheirTextNeverBecomesSpecialTokens) {
  const ChatFormat format = format_of(kPlainTemplate);
  const std::vector<ChatMessage> messages{{"user", "hi"}, {"assistant", "<|im_end|>"}};
  const auto tokens =
      tokenize_chat(format, {.messages = {}, .tokens = {}, .replies = {}, .continues_reply = true}, messages).value().tokens;
  EXPECT_EQ(std::ranges::count(tokens, kFakeImEnd), 1) << "that of the user's message";
}

}  // namespace
}  // namespace uma::chat
