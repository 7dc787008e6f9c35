#include "chat/reply/reply_stream.h"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chat/calls/answer_grammar.h"
#include "grammar/grammar.h"
#include "testing/fake_model.h"

namespace uma::chat {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Next = ReplyStream::Next;

struct Client final : EventSink {
  [[nodiscard]] bool deliver(const Event& event) override {
    if (takes == 0) return false;
    --takes;
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      text += token->text;
      for (const TokenLogprobs& each : token->logprobs) logprobs.push_back(each.chosen.token);
    }
    if (const auto* part = std::get_if<ReplyPart>(&event)) parts.push_back(*part);
    return true;
  }

  int takes = 1000;  // Events until the client counts as too slow.
  std::string text;
  std::vector<Token> logprobs;
  std::vector<ReplyPart> parts;
};

class ReplyStreamTest : public ::testing::Test {
 protected:
  // Pushes the bytes of `text`, which are the fake vocabulary's tokens, until the reply stops.
  Next push(ReplyStream& reply, std::string_view text) {
    const std::vector<float> logits(testing::kFakeVocabularySize, 0.0f);
    Next next = Next::more;
    for (const Token token : testing::fake_tokens(text)) {
      next = reply.push(token, logits, sampler_, client_);
      if (next != Next::more) break;
    }
    return next;
  }

  // The grammar of a reply with thoughts and an answer.
  std::shared_ptr<const grammar::Grammar> answering(std::string_view gbnf) const {
    const auto answer = grammar::Grammar::parse(gbnf).value();
    return answer_grammar(reasoning_and_calls_, {.answer = *answer, .may_think = true}).grammar;
  }

  const testing::FakeVocab vocab_;
  llm::Sampler sampler_{SamplingParams{}, 1, {}};
  Client client_;
  const ReplyFormat reasoning_and_calls_{.family = family_named("hermes"),
                                         .tools = std::make_shared<const Tools>(Tools{{"look", {}}}),
                                         .thoughts = {"<think>", "</think>"}};
  static constexpr std::string_view kReply =
      R"(<think>hm</think>yes <tool_call>{"name":"look","arguments":{"a":1}}</tool_call>)";
};

TEST_F(ReplyStreamTest, DeliversTheTextOfEachTokenAndTheRestAtTheEnd) {
  ReplyStream reply({.stop = {"END"}}, vocab_, false);
  EXPECT_EQ(push(reply, "some texE"), Next::more);
  EXPECT_EQ(client_.text, "some tex") << "the E may begin the stop string";
  const ReplyStream::End end = reply.finish();
  EXPECT_EQ(end.text, "E");
  EXPECT_EQ(end.content, "") << "the content is not kept";
}

// A client would run the call with what is left of its arguments.
TEST_F(ReplyStreamTest, AStopStringCutsNoCall) {
  for (const std::string_view stop : {"\"a\"", "name", "1}}", "{", "}<"}) {
    for (const bool stream : {true, false}) {
      client_ = {};
      ReplyStream reply({.format = reasoning_and_calls_, .stop = {std::string(stop), "END"}, .stream = stream}, vocab_, true);
      EXPECT_EQ(push(reply, std::string(kReply) + "END"), Next::stop) << stop;
      const ReplyStream::End end = reply.finish();
      EXPECT_TRUE(end.has_tool_calls) << stop;
      EXPECT_EQ(end.content, "yes") << stop;
      EXPECT_THAT(end.message_extra, ::testing::HasSubstr(R"("arguments":"{\"a\":1}")")) << stop;
    }
  }
}

TEST_F(ReplyStreamTest, AnEndOfTurnThatIsTextCutsACall) {
  ReplyStream reply({.format = reasoning_and_calls_, .stop = {"1"}, .ends = {"<|im_end|>"}}, vocab_, true);
  EXPECT_EQ(push(reply, R"(<tool_call>{"name":"look","arguments":{"a":1<|im_end|>)"), Next::stop);
  EXPECT_EQ(reply.finish().stop_string, "<|im_end|>");
}

// Models of some families begin calls as any JSON begins.
TEST_F(ReplyStreamTest, AStopStringCutsJsonThatIsNoCall) {
  ReplyFormat format = reasoning_and_calls_;
  format.family = family_named("llama3.2");
  ASSERT_NE(format.family, nullptr);
  ReplyStream reply({.format = format, .stop = {"b"}}, vocab_, true);
  EXPECT_EQ(push(reply, R"({"answer":1,"b":2})"), Next::stop);
  EXPECT_FALSE(reply.finish().has_tool_calls);
}

TEST_F(ReplyStreamTest, TheBeginOfAMarkBeforeAStopStringIsNoContent) {
  ReplyStream reply({.format = reasoning_and_calls_, .stop = {"call>"}}, vocab_, true);
  EXPECT_EQ(push(reply, kReply), Next::stop);
  const ReplyStream::End end = reply.finish();
  EXPECT_FALSE(end.has_tool_calls);
  EXPECT_EQ(end.content, "yes");
  EXPECT_EQ(end.stop_string, "call>");
}

TEST_F(ReplyStreamTest, ClosesThoughtsWhoseBudgetIsUsedUp) {
  for (const bool splits : {true, false}) {
    client_ = {};
    ReplyFormat format = reasoning_and_calls_;
    format.keeps_thoughts = !splits;
    ReplyStream reply(
        {.format = format, .thinking = ThinkingLimit{.tokens_max = 2, .closing = testing::fake_tokens("</think>")}}, vocab_,
        true);
    EXPECT_EQ(push(reply, "<think>hm"), Next::more);
    std::string forced;
    for (auto token = reply.forced_token(); token; token = reply.forced_token()) {
      forced += static_cast<char>(*token);
      EXPECT_EQ(push(reply, forced.substr(forced.size() - 1)), Next::more);
    }
    EXPECT_EQ(forced, "</think>");
    EXPECT_EQ(push(reply, "yes"), Next::more);
    EXPECT_EQ(reply.forced_token(), std::nullopt);
    EXPECT_EQ(client_.text, splits ? "yes" : "<think>hm</think>yes");
    EXPECT_EQ(reply.reasoning_tokens(), 11);
    EXPECT_EQ(reply.finish().message_extra, splits ? R"({"reasoning_content":"hm"})" : "");
  }
}

TEST_F(ReplyStreamTest, ACharacterIsWholeBeforeThoughtsAreClosed) {
  ReplyFormat format = reasoning_and_calls_;
  format.begins_with_reasoning = true;
  ReplyStream reply({.format = format, .thinking = ThinkingLimit{.tokens_max = 1, .closing = testing::fake_tokens("</think>")}},
                    vocab_, true);
  EXPECT_EQ(push(reply, "\xc3"), Next::more);
  EXPECT_EQ(reply.forced_token(), std::nullopt);
  EXPECT_EQ(push(reply, "\xa4"), Next::more);
  EXPECT_EQ(reply.forced_token(), Token{'<'});
}

TEST_F(ReplyStreamTest, TheGrammarOfAnAnswerBeginsBehindItsThoughts) {
  ReplyFormat format = reasoning_and_calls_;
  format.tools = nullptr;
  format.begins_with_reasoning = true;
  ReplyStream reply({.format = format,
                     .answer_grammar = answering(R"(root ::= "{}")"),
                     .thinking = ThinkingLimit{.tokens_max = 100, .closing = testing::fake_tokens("</think>")}},
                    vocab_, true);
  EXPECT_EQ(push(reply, "hm"), Next::more);
  EXPECT_EQ(sampler_.constraint(), nullptr);
  std::string closing;
  for (auto token = reply.instead_of_end(); token; token = reply.forced_token()) {
    closing += static_cast<char>(*token);
    EXPECT_EQ(push(reply, closing.substr(closing.size() - 1)), Next::more);
  }
  EXPECT_EQ(closing, "</think>") << "the model has ended its reply too early";
  ASSERT_NE(sampler_.constraint(), nullptr);
  EXPECT_TRUE(sampler_.constraint()->allows('{'));
  EXPECT_TRUE(sampler_.constraint()->allows('\n')) << "before the answer";
  EXPECT_FALSE(sampler_.constraint()->allows('x'));
  EXPECT_EQ(reply.instead_of_end(), std::nullopt);
}

// Whose thoughts are closed by the model, or by their budget.
TEST_F(ReplyStreamTest, AStopStringDoesNotMoveTheGrammarOfAnAnswer) {
  ReplyFormat format = reasoning_and_calls_;
  format.tools = nullptr;
  format.begins_with_reasoning = true;
  // Each may begin with the end of the mark, with a blank behind it, or with the answer.
  for (const std::string_view stop : {">>", ">{!", "> ", "</think>\n\n!", "\n!", "{!", "{ !", "\"END\""}) {
    for (const std::int32_t budget : {2, 100}) {
      sampler_.constrain(nullptr);
      client_ = {};
      ReplyStream reply({.format = format,
                         .stop = {std::string(stop)},
                         .answer_grammar = answering(R"(root ::= "{" " "? "\"END" "\""? "}")"),
                         .thinking = ThinkingLimit{.tokens_max = budget, .closing = testing::fake_tokens("</think>")}},
                        vocab_, true);
      EXPECT_EQ(push(reply, "hm"), Next::more);
      for (const char c : std::string_view("</think>")) {
        ASSERT_EQ(sampler_.constraint(), nullptr);
        EXPECT_EQ(reply.forced_token(), budget == 2 ? std::optional<Token>(c) : std::nullopt) << stop;
        EXPECT_EQ(push(reply, std::string(1, c)), Next::more);
      }
      ASSERT_NE(sampler_.constraint(), nullptr) << stop;
      EXPECT_EQ(reply.forced_token(), std::nullopt) << stop;
      EXPECT_EQ(reply.instead_of_end(), std::nullopt) << stop;
      Next next = Next::more;
      for (const char c : std::string_view("{ \"END\"}")) {
        ASSERT_TRUE(sampler_.constraint()->allows(c)) << stop << " at " << c;
        EXPECT_FALSE(sampler_.constraint()->allows('x')) << stop;
        sampler_.accept(c);
        next = push(reply, std::string(1, c));
        if (next != Next::more) break;
      }
      const bool is_in_answer = stop == "\"END\"";
      EXPECT_EQ(next, is_in_answer ? Next::stop : Next::more);
      EXPECT_EQ(reply.finish().content, is_in_answer ? "{ " : "{ \"END\"}") << stop;
      EXPECT_EQ(reply.reasoning_tokens(), std::ssize(std::string_view("hm</think>"))) << stop;
    }
  }
}

TEST_F(ReplyStreamTest, TheAnswersGrammarKnowsWhatCameWithTheEndOfTheThoughts) {
  ReplyFormat format = reasoning_and_calls_;
  format.tools = nullptr;
  format.begins_with_reasoning = true;
  // Held back by the stop string, or as a blank that may stand before a mark.
  for (const auto& [mark, stop] : {std::pair("</think>\n{", "{!"), {"</think>{ ", "!"}, {"</think>\n", "\n\n"}}) {
    sampler_.constrain(nullptr);
    format.marks = {{testing::kFakeImStart, mark}};
    ReplyStream reply({.format = format,
                       .stop = {stop},
                       .answer_grammar = answering(R"(root ::= "{" " "? "}")"),
                       .thinking = ThinkingLimit{.tokens_max = 100, .closing = testing::fake_tokens("</think>")}},
                      vocab_, true);
    EXPECT_EQ(push(reply, "hm"), Next::more);
    EXPECT_EQ(reply.push(testing::kFakeImStart, {}, sampler_, client_), Next::more);
    ASSERT_NE(sampler_.constraint(), nullptr);
    const bool has_brace = std::string_view(mark).contains('{');
    const bool has_blank = std::string_view(mark).ends_with(' ');
    EXPECT_EQ(sampler_.constraint()->allows('{'), !has_brace) << mark;
    EXPECT_EQ(sampler_.constraint()->allows(' '), !has_blank) << mark;
    EXPECT_EQ(sampler_.constraint()->allows('}'), has_brace) << mark;
  }
}

TEST_F(ReplyStreamTest, AStopStringInThoughtsEndsTheReply) {
  ReplyFormat format = reasoning_and_calls_;
  format.tools = nullptr;
  format.begins_with_reasoning = true;
  for (const bool has_grammar : {false, true}) {
    client_ = {};
    ReplyStream reply({.format = format,
                       .stop = {"END"},
                       .answer_grammar = has_grammar ? answering(R"(root ::= "{}")") : nullptr,
                       .thinking = ThinkingLimit{.tokens_max = 100, .closing = testing::fake_tokens("</think>")}},
                      vocab_, true);
    EXPECT_EQ(push(reply, "hm END</think>{}"), Next::stop);
    const ReplyStream::End end = reply.finish();
    EXPECT_EQ(end.content, "");
    EXPECT_EQ(end.stop_string, "END");
    EXPECT_EQ(end.message_extra, R"({"reasoning_content":"hm"})");
  }
}

TEST_F(ReplyStreamTest, StopsBeforeAStopString) {
  ReplyStream reply({.stop = {"END"}}, vocab_, true);
  EXPECT_EQ(push(reply, "some text END more"), Next::stop);
  EXPECT_EQ(client_.text, "some text ");
  const ReplyStream::End end = reply.finish();
  EXPECT_EQ(end.text, "");
  EXPECT_EQ(end.content, "some text ");
}

TEST_F(ReplyStreamTest, DeliversReasoningAndToolCallsApartFromTheContent) {
  ReplyStream reply({.format = reasoning_and_calls_}, vocab_, true);
  EXPECT_EQ(push(reply, kReply), Next::more);
  const ReplyStream::End end = reply.finish();
  EXPECT_EQ(end.content, "yes");
  EXPECT_TRUE(end.has_tool_calls);
  EXPECT_NE(end.message_extra.find("\"look\""), std::string::npos);
  EXPECT_EQ(reply.reasoning_tokens(), std::ssize(std::string_view(">hm</think>")));
  std::string reasoning;
  std::string arguments;
  for (const ReplyPart& part : client_.parts) (part.kind == ReplyPart::Kind::reasoning ? reasoning : arguments) += part.text;
  EXPECT_EQ(reasoning, "hm");
  EXPECT_EQ(arguments, R"({"a":1})");
  EXPECT_THAT(end.parts, IsEmpty());
}

TEST_F(ReplyStreamTest, ReportsEverythingAtTheEndIfTheReplyIsNotStreamed) {
  ReplyStream reply({.format = reasoning_and_calls_, .logprobs = 0, .stream = false}, vocab_, false);
  EXPECT_EQ(push(reply, kReply), Next::more);
  EXPECT_EQ(client_.takes, 1000) << "nothing was delivered";
  const ReplyStream::End end = reply.finish();
  EXPECT_EQ(end.text, "yes");
  ASSERT_EQ(end.parts.size(), 2U);
  EXPECT_EQ(end.parts[0].text, "hm");
  EXPECT_EQ(end.parts[1].name, "look");
  EXPECT_EQ(end.parts[1].text, R"({"a":1})");
  std::vector<Token> likely;
  for (const TokenLogprobs& each : end.logprobs) likely.push_back(each.chosen.token);
  EXPECT_EQ(likely, testing::fake_tokens("yes")) << "of the content alone";
}

TEST_F(ReplyStreamTest, ReportsLogProbabilitiesWithTheContentThatTheyBelongTo) {
  ReplyStream reply({.stop = {"END"}, .logprobs = 0}, vocab_, false);
  EXPECT_EQ(push(reply, "aEb"), Next::more);
  EXPECT_THAT(client_.logprobs, ElementsAre('a', 'E', 'b'));
}

TEST_F(ReplyStreamTest, StopsAfterTheOnlyToolCallThatIsAllowed) {
  ReplyFormat format = reasoning_and_calls_;
  format.has_parallel_calls = false;
  ReplyStream reply({.format = format}, vocab_, false);
  EXPECT_EQ(push(reply, std::string(kReply) + "never read"), Next::stop);
  EXPECT_EQ(client_.text, "yes");
}

TEST_F(ReplyStreamTest, AToolCallFollowsItsGrammarFromItsMarkToItsEnd) {
  auto grammar =
      grammar::Grammar::parse(R"(root ::= "<tool_call>" "{\"name\":\"look\",\"arguments\":{\"a\":1}}" "</tool_call>")");
  ASSERT_TRUE(grammar.has_value());
  ReplyStream reply({.format = reasoning_and_calls_, .call_grammar = *grammar}, vocab_, false);
  EXPECT_EQ(push(reply, "yes <tool_call>"), Next::more);
  ASSERT_NE(sampler_.constraint(), nullptr);
  EXPECT_TRUE(sampler_.constraint()->allows('{'));
  EXPECT_FALSE(sampler_.constraint()->allows('['));
}

TEST_F(ReplyStreamTest, AToolCallThatBeginsOtherwiseIsOnlyParsed) {
  auto grammar = grammar::Grammar::parse(R"(root ::= "[1]")");
  ASSERT_TRUE(grammar.has_value());
  ReplyFormat format = reasoning_and_calls_;
  format.marks = {{testing::kFakeImStart, "<tool_call>{"}};
  ReplyStream reply({.format = format, .call_grammar = *grammar}, vocab_, false);
  EXPECT_EQ(reply.push(testing::kFakeImStart, {}, sampler_, client_), Next::more);
  EXPECT_EQ(push(reply, R"("name":"look","arguments":{}}</tool_call>)"), Next::more);
  EXPECT_EQ(sampler_.constraint(), nullptr);
  EXPECT_TRUE(reply.finish().has_tool_calls);
}

TEST_F(ReplyStreamTest, AToolCallThatTheParserEndsEarlierIsNotHeldByItsGrammar) {
  auto grammar = grammar::Grammar::parse(R"(root ::= "<tool_call>" [^#]* "#")");
  ASSERT_TRUE(grammar.has_value());
  ReplyStream reply({.format = reasoning_and_calls_, .call_grammar = *grammar}, vocab_, false);
  EXPECT_EQ(push(reply, R"(<tool_call>{"name":"look","arguments":{}})"), Next::more);
  ASSERT_NE(sampler_.constraint(), nullptr);
  EXPECT_EQ(push(reply, "</tool_call> y"), Next::more);
  EXPECT_EQ(sampler_.constraint(), nullptr);
}

TEST_F(ReplyStreamTest, ReportsASlowClient) {
  ReplyStream reply({}, vocab_, false);
  client_.takes = 2;
  EXPECT_EQ(push(reply, "abc"), Next::slow_client);
}

}  // namespace
}  // namespace uma::chat
