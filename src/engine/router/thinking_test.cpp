// Budgets of thoughts, and their place in sessions, through router and lane, on a model with scripted replies.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace uma::engine {
namespace {

// As Qwen3.5's: thoughts of earlier replies may be left out. `open` makes the prompt begin them.
constexpr std::string_view kThinkingTemplate =
    "{% if tools %}<|im_start|>system\n<tool_call> {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and (loop.last or preserve_thinking) %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if open %}<think>{% endif %}{% endif %}";
constexpr std::string_view kDropsThoughts = R"({"preserve_thinking":false})";
constexpr std::string_view kLookTools = R"([{"type":"function","function":{"name":"look"}}])";

class Thinking : public ::testing::Test, protected EngineBench {
 protected:
  Thinking() : EngineBench({.cells = 16'384, .sequences = 4, .has_chat_template = true, .chat_template = kThinkingTemplate}) {}

  void serve(std::string_view says) {
    options_.says = says;
    model_ = std::make_shared<FakeModel>(options_);
    start_router();
    load();
  }

  static GenerateRequest asking(std::optional<std::int32_t> budget = {}) {
    GenerateRequest request;
    request.input.messages = {{"user", "what?"}};
    request.options.chat.splits_reasoning = true;
    request.options.chat.thinking_budget = budget;
    return request;
  }
};

TEST_F(Thinking, EndsWithItsBudget) {
  // The forced mark takes the place of eight letters.
  serve("<think>0123456789yes");
  const auto sink = generate(asking(2));
  EXPECT_EQ(sink->reasoning, "01");
  EXPECT_EQ(sink->text, "yes");
  EXPECT_EQ(sink->eos().reason, FinishReason::stop);
  EXPECT_EQ(sink->eos().usage.reasoning_tokens, 11);
  EXPECT_EQ(sink->eos().usage.completion_tokens, 21);
  EXPECT_EQ(generate(asking())->reasoning, "0123456789yes") << "without a budget";
  EXPECT_EQ(generate(asking(-1))->reasoning, "0123456789yes");
}

TEST_F(Thinking, IsClosedAtOnceWithoutABudget) {
  serve("<think>01234567yes");
  const auto none = generate(asking(0));
  EXPECT_EQ(none->reasoning, "");
  EXPECT_EQ(none->text, "yes");
  GenerateRequest off = asking();
  off.options.chat.template_arguments = R"({"reasoning_effort":"none"})";
  EXPECT_EQ(generate(off)->text, "yes");
  off.options.chat.splits_reasoning = false;
  const auto undivided = generate(off);
  EXPECT_EQ(undivided->text, "<think></think>yes");
  EXPECT_EQ(undivided->eos().usage.reasoning_tokens, 9);
}

TEST_F(Thinking, MayBeginInThePrompt) {
  serve("<think>01</think>yes");
  GenerateRequest request = asking(2);
  request.options.chat.template_arguments = R"({"open":true})";
  const auto sink = generate(request);
  EXPECT_EQ(sink->reasoning, "01");
  EXPECT_EQ(sink->text, "yes");
}

TEST_F(Thinking, IsFollowedByACallOfATool) {
  serve("<think>0123456789<tool_call>\n{\"name\": \"look\", \"arguments\": {\"a\": 1}}\n</tool_call>");
  GenerateRequest request = asking(2);
  request.options.chat.tools = kLookTools;
  request.options.chat.tool_names = {"look"};
  const auto sink = generate(request);
  EXPECT_EQ(sink->reasoning, "01");
  ASSERT_EQ(sink->calls.size(), 1u);
  EXPECT_EQ(sink->calls[0].text, R"({"a": 1})");
  EXPECT_EQ(sink->eos().reason, FinishReason::tool_calls);
  request.options.chat.tool_choice = ToolChoice::required;
  request.options.chat.has_parallel_calls = false;
  const auto forced = generate(request);
  EXPECT_EQ(forced->reasoning, "01");
  ASSERT_EQ(forced->calls.size(), 1u);
}

TEST_F(Thinking, PrecedesAnAnswerWithAGrammar) {
  serve("<think>0123456789{}");
  GenerateRequest request = asking(2);
  request.options.grammar = R"(root ::= "{}")";
  for (const std::string_view opens : {"", R"({"open":true})"}) {
    request.options.chat.template_arguments = opens;
    const auto sink = generate(request);
    EXPECT_EQ(sink->text, "{}");
    EXPECT_EQ(sink->reasoning, "01");
    EXPECT_EQ(sink->eos().reason, FinishReason::stop);
  }
  request.options.chat.template_arguments = "";
  request.options.chat.thinking_budget = 0;
  const auto off = generate(request);
  EXPECT_EQ(off->text, "{}");
  EXPECT_EQ(off->reasoning, "");
  request.options.chat.thinking_budget = -1;
  request.options.chat.splits_reasoning = false;
  EXPECT_EQ(generate(request)->text, "{}") << "the reply is not divided, so all of it follows the grammar";
}

TEST_F(Thinking, MayBeAPartOfTheGrammar) {
  serve("<think>0123</think>45");
  GenerateRequest request = asking();
  request.options.grammar = R"(root ::= "<think>" [0-9]{2} "</think>" [a-z]{2})";
  const auto sink = generate(request);
  EXPECT_TRUE(sink->text.starts_with("<think>01</think>")) << sink->text;
  EXPECT_EQ(sink->text.size(), std::string_view("<think>01</think>xy").size());
  EXPECT_EQ(sink->reasoning, "");
}

TEST_F(Thinking, ItsSchemaCountsInASessionToo) {
  serve("<think>01</think>\n\n{\"a\": 5}");
  GenerateRequest request = asking();
  request.options.json_schema = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
  request.session = begin_chat();
  for (int turn = 0; turn < 2; ++turn) {
    const auto sink = generate(request);
    EXPECT_EQ(sink->text, R"({"a": 5})");
    EXPECT_EQ(sink->reasoning, "01");
  }
}

TEST_F(Thinking, CannotEndAReplyThatMustFollowAGrammar) {
  serve("<think>hm");  // And the model ends the reply.
  GenerateRequest request = asking();
  request.options.grammar = R"(root ::= "yes")";
  request.options.chat.template_arguments = R"({"open":true})";
  const auto sink = generate(request);
  EXPECT_EQ(sink->text, "yes");
  EXPECT_EQ(sink->reasoning, "hm");
}

TEST_F(Thinking, IsDroppedFromASessionAsItsTemplateDoes) {
  serve("<think>0123456789yes");
  const std::string session = begin_chat();
  GenerateRequest request = asking(2);
  request.session = session;
  request.options.chat.template_arguments = std::string(kDropsThoughts);
  EXPECT_EQ(generate(request)->eos().usage.reuse_reason, "not_cached");
  EXPECT_EQ(kept(session)->messages[1], (ChatMessage{"assistant", "yes", R"({"reasoning_content":"01"})"}));
  const std::size_t before = kept(session)->chain.size();
  const Usage usage = generate(request)->eos().usage;
  EXPECT_EQ(usage.reuse_reason, "rewritten");
  EXPECT_LT(usage.reused_tokens, static_cast<std::int32_t>(before));
  kv::SessionRecord asked = *kept(session);
  asked.messages.pop_back();
  const std::vector<Token> prompt =
      written(asked.messages,
              {.messages = {}, .tokens = {}, .replies = {}, .unix_s = asked.created_s, .template_arguments = kDropsThoughts});
  EXPECT_TRUE(std::ranges::equal(prompt, std::span(asked.chain).first(prompt.size()))) << "the template's view";
  EXPECT_EQ(usage.prompt_tokens, static_cast<std::int32_t>(prompt.size()));

  // Input that waits for the next reply has rewritten the past already.
  ASSERT_TRUE(append(session));
  request.input.messages.clear();
  EXPECT_EQ(generate(request)->eos().usage.reuse_reason, "rewritten");
}

TEST_F(Thinking, StaysInASessionWhoseTemplateKeepsIt) {
  serve("<think>0123456789yes");
  const std::string session = begin_chat();
  GenerateRequest request = asking(2);
  request.session = session;
  generate(request);
  const auto before = static_cast<std::int32_t>(kept(session)->chain.size());
  const Usage usage = generate(request)->eos().usage;
  EXPECT_EQ(usage.reuse_reason, "hot");
  EXPECT_GE(usage.reused_tokens, before - 1);
}

}  // namespace
}  // namespace uma::engine
