// Replies whose text follows a grammar, byte by byte: what the grammar allows, and what the client gets of it.
#include "chat/calls/answer_grammar.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "chat/calls/call_grammar.h"
#include "chat/family_test_support.h"
#include "chat/reply/reply_stream.h"
#include "core/request.h"
#include "testing/fake_model.h"

namespace uma::chat {
namespace {

struct AnswerClient final : EventSink {
  [[nodiscard]] bool deliver(const Event& event) override {
    if (const auto* token = std::get_if<TokenEvent>(&event)) reply.content += token->text;
    const auto* part = std::get_if<ReplyPart>(&event);
    if (part == nullptr) return true;
    if (part->kind == ReplyPart::Kind::reasoning) {
      reply.thoughts += part->text;
    } else {
      if (!part->name.empty()) reply.calls.push_back(part->name);
      reply.calls.back() += part->text;
    }
    return true;
  }
  FamilyReply reply;
};

constexpr std::string_view kAnswerGrammar = R"(root ::= "{\"a\": " [0-9]{1,3} "}" | "{\"s\": \"" [^"]* "\"}")";

struct ReplyKind {
  bool has_tools = false;
  bool opens_thoughts = false;  // The prompt does.
  bool may_think = true;
};

class Answering {
 public:
  Answering(std::string_view family, const ReplyKind& kind) {
    format_ = family_format(family, kind.opens_thoughts);
    format_.has_answer = true;
    format_.begins_with_blanks = true;
    const auto answer = grammar::Grammar::parse(kAnswerGrammar).value();
    ChatOptions options;
    options.tools = kFamilyTools;
    const auto calls = begun_call_grammar(format_, options).value();
    if (!kind.has_tools) format_.tools = nullptr;
    grammar_ = answer_grammar(format_, {.answer = *answer,
                                        .calls = calls.get(),
                                        .may_call = kind.has_tools,
                                        .may_think = kind.may_think,
                                        .may_begin_with_blanks = true})
                   .grammar;
  }

  // Writes the text and, if it is the whole reply, ends it. Returns how much of it the grammar allows.
  std::size_t write(std::string_view text) {
    stream_ = std::make_unique<ReplyStream>(
        ReplyOptions{.format = format_,
                     .answer_grammar = grammar_,
                     .thinking = ThinkingLimit{.tokens_max = 1000, .closing = testing::fake_tokens(format_.thoughts.close)}},
        vocab_, true);
    client_ = {};
    sampler_.constrain(nullptr);
    stream_->constrain_begin("", sampler_);
    for (std::size_t i = 0; i < text.size(); ++i) {
      const Token token = static_cast<unsigned char>(text[i]);
      if (sampler_.constraint() != nullptr && !sampler_.constraint()->allows(token)) return i;
      sampler_.accept(token);
      if (stream_->push(token, {}, sampler_, client_) != ReplyStream::Next::more || sampler_.is_complete()) return i + 1;
    }
    return text.size();
  }
  [[nodiscard]] bool may_end() { return sampler_.constraint() == nullptr || sampler_.constraint()->can_end(); }
  FamilyReply finish() {
    const ReplyStream::End end = stream_->finish();
    client_.reply.content += end.text;
    for (const ReplyPart& part : end.parts) (void)client_.deliver(part);
    return client_.reply;
  }

 private:
  const testing::FakeVocab vocab_;
  ReplyFormat format_;
  std::shared_ptr<const grammar::Grammar> grammar_;
  llm::Sampler sampler_{SamplingParams{}, 1, {}};
  AnswerClient client_;
  std::unique_ptr<ReplyStream> stream_;
};

struct AnswerNotation {
  std::string_view family;
  std::string_view thoughts{};  // Empty: the family does not think.
  std::string_view before_answer{};
  std::string_view call{};
  bool opens_thoughts = false;
};

std::ostream& operator<<(std::ostream& out, const AnswerNotation& notation) {
  return out << notation.family;
}

constexpr AnswerNotation kAnswerNotations[] = {
    {.family = "gpt-oss",
     .thoughts = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
     .before_answer = "<|channel|>final<|message|>",
     .call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}"},
    {.family = "gpt-oss",
     .thoughts = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
     .before_answer = "<|channel|>final <|constrain|>json<|message|>",
     .call = " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}"},
    {.family = "hermes",
     .thoughts = "<think>\nHm.\n</think>\n\n",
     .call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"},
    {.family = "hermes",
     .thoughts = "\nHm.\n</think>\n\n",
     .call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     .opens_thoughts = true},
    {.family = "glm",
     .thoughts = "\n<think>Hm.</think>\n",
     .call = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"},
    {.family = "qwen3-coder", .call = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"},
    {.family = "seed-oss",
     .thoughts = "<seed:think>Hm.</seed:think>",
     .call = "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>"},
    {.family = "command",
     .thoughts = "<|START_THINKING|>Hm.<|END_THINKING|>",
     .before_answer = "<|START_RESPONSE|>",
     .call = "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": 1}}\n]"
             "<|END_ACTION|>"},
    {.family = "kimi",
     .thoughts = "<think>Hm.</think>",
     .call = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}"
             "<|tool_call_end|>"},
    {.family = "kimi-k3",
     .thoughts = "<|open|>think<|sep|>Hm.<|close|>think<|sep|>",
     .before_answer = "<|open|>response<|sep|>",
     .call = "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"number\""
             "<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"},
    {.family = "apriel",
     .thoughts = "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\n",
     .call = "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]</tool_calls>"},
    {.family = "granite-3",
     .thoughts = "<think>Hm.</think>",
     .before_answer = "<response>",
     .call = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]"},
    {.family = "hunyuan",
     .thoughts = "<think>\nHm.\n</think>\n",
     .before_answer = "<answer>\n",
     .call = "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]</tool_calls>"},
    {.family = "apertus",
     .thoughts = "<|inner_prefix|>Hm.<|inner_suffix|>",
     .call = "<|tools_prefix|>[{\"f\": {\"a\": 1}}]<|tools_suffix|>"},
    {.family = "gemma4", .thoughts = "<|channel>thought\nHm.\n<channel|>", .call = "<|tool_call>call:f{a:1}<tool_call|>"},
    {.family = "mistral-args", .thoughts = "<think>Hm.</think>", .call = "[TOOL_CALLS]f[ARGS]{\"a\": 1}"},
    {.family = "lfm2.5", .thoughts = "<think>Hm.</think>", .call = "[f(a=1)]"},
    {.family = "functionary-3.2", .before_answer = "all\n", .call = "f\n{\"a\": 1}"},
    {.family = "llama3.2", .call = "{\"name\": \"f\", \"parameters\": {\"a\": 1}}"},
    {.family = "xlam-2", .call = "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]"},
};

class Answers : public ::testing::TestWithParam<AnswerNotation> {
 protected:
  [[nodiscard]] const AnswerNotation& notation() const { return GetParam(); }
  [[nodiscard]] std::string thoughts() const { return std::string(notation().thoughts); }
  [[nodiscard]] std::string hm() const { return notation().thoughts.empty() ? "" : "Hm."; }
};

TEST_P(Answers, ComeBehindThoughtsAndMarks) {
  for (const bool has_tools : {false, true}) {
    Answering reply(notation().family, {.has_tools = has_tools, .opens_thoughts = notation().opens_thoughts});
    for (const std::string_view answer : {R"({"a": 391})", R"({"s": "<tool_call> [TOOL_CALLS] </think> <|end|>"})"}) {
      for (const std::string_view marks : {notation().before_answer, std::string_view()}) {
        const std::string text = thoughts() + std::string(marks) + std::string(answer);
        EXPECT_EQ(reply.write(text + "more"), text.size()) << "the answer ends the reply: " << text;
        EXPECT_EQ(reply.finish(), (FamilyReply{hm(), std::string(answer), {}})) << text;
      }
    }
    const std::string wrong = thoughts() + std::string(notation().before_answer) + "The answer";
    EXPECT_EQ(reply.write(wrong), wrong.size() - std::string_view("The answer").size());
    EXPECT_FALSE(reply.may_end()) << "there is no answer yet";
  }
}

TEST_P(Answers, MayBeCallsInstead) {
  Answering reply(notation().family, {.has_tools = true, .opens_thoughts = notation().opens_thoughts});
  const std::string text = thoughts() + std::string(notation().call);
  EXPECT_EQ(reply.write(text), text.size());
  EXPECT_TRUE(reply.may_end());
  FamilyReply got = reply.finish();
  for (std::string& call : got.calls) std::erase(call, ' ');
  EXPECT_EQ(got, (FamilyReply{hm(), "", {R"(f{"a":1})"}})) << text;
  const std::string_view answer = R"({"a": 391})";  // Its first characters may begin another call.
  EXPECT_LT(reply.write(text + std::string(answer)), text.size() + answer.size() / 2) << "an answer behind a call";
}

TEST_P(Answers, HaveNoThoughtsThatAreOff) {
  if (notation().thoughts.empty() || notation().opens_thoughts) GTEST_SKIP() << "the prompt has no place for them";
  Answering reply(notation().family, {.may_think = false});
  EXPECT_LT(reply.write(thoughts()), std::min(thoughts().size(), thoughts().find("Hm.") + 1));
  const std::string text = std::string(notation().before_answer) + R"({"a": 391})";
  EXPECT_EQ(reply.write(text), text.size());
  EXPECT_EQ(reply.finish(), (FamilyReply{"", R"({"a": 391})", {}}));
}

INSTANTIATE_TEST_SUITE_P(, Answers, ::testing::ValuesIn(kAnswerNotations), [](const auto& one) {
  std::string name(one.param.family);
  std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
  return name + std::to_string(one.index);
});

TEST(AnswerGrammar, SeveralCallsAndThoughtsBetweenThem) {
  Answering reply("hermes", {.has_tools = true});
  const std::string call = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
  const std::string text = "<think>One.</think>\n" + call + "\n" + call + "\n<think>Two.</think>" + call;
  EXPECT_EQ(reply.write(text), text.size());
  EXPECT_TRUE(reply.may_end());
  EXPECT_EQ(reply.finish(), (FamilyReply{"One.Two.", "", {"g{}", "g{}", "g{}"}}));
}

TEST(AnswerGrammar, ACallInThoughtsIsFollowedByTheirEndOrByCalls) {
  Answering reply("hermes", {.has_tools = true});
  const std::string call = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
  const std::string text = "<think>One." + call + "\n</think>\n" + call;
  EXPECT_EQ(reply.write(text), text.size());
  EXPECT_TRUE(reply.may_end());
  EXPECT_EQ(reply.finish(), (FamilyReply{"One.", "", {"g{}", "g{}"}}));
}

TEST(AnswerGrammar, ToolsWithoutAGrammarAreKnownByTheirMarks) {
  const ReplyFormat format = family_format("hermes", false);
  const auto answer = grammar::Grammar::parse(kAnswerGrammar).value();
  const auto grammar = answer_grammar(format, {.answer = *answer, .calls = nullptr, .may_call = true}).grammar;
  grammar::GrammarReader reader(grammar);
  const auto allows = [&](std::string_view text) {
    return reader.next(grammar::GrammarReader::kStart, text_at(ReplyPlace::begin, text)) != grammar::GrammarReader::kNowhere;
  };
  EXPECT_TRUE(allows("<tool_call>anything"));
  EXPECT_TRUE(allows("{\"a\": 1}"));
  EXPECT_FALSE(allows("anything"));
}

TEST(AnswerGrammar, KnowsWhetherTheAnswerHasThoughtsItself) {
  const ReplyFormat format = family_format("hermes", false);
  EXPECT_FALSE(has_thoughts(format, grammar::Grammar::parse(kAnswerGrammar).value()));
  EXPECT_TRUE(has_thoughts(format, grammar::Grammar::parse(R"(root ::= "<think>" [a-z]* "</think>" [0-9])").value()));
  EXPECT_TRUE(has_thoughts(format, grammar::Grammar::parse("root ::= .*").value()));
}

}  // namespace
}  // namespace uma::chat
