#include "wire/openai/completion_answer.h"

#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

using ::testing::ElementsAre;

// The objects of a stream of server-sent events; [DONE] is a string.
std::vector<boost::json::value> events_of(std::string_view stream) {
  std::vector<boost::json::value> events;
  while (!stream.empty()) {
    const std::size_t end = stream.find("\n\n");
    EXPECT_NE(end, std::string_view::npos) << "an event without its end: " << stream;
    if (end == std::string_view::npos) break;
    const std::string_view event = stream.substr(0, end);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    const std::string data(event.substr(6));
    events.push_back(data == "[DONE]" ? boost::json::value("[DONE]") : boost::json::parse(data));
    stream.remove_prefix(end + 2);
  }
  return events;
}

EosEvent eos(std::string text, FinishReason reason = FinishReason::stop) {
  EosEvent event{.reason = reason, .usage = {}, .text = std::move(text), .error = std::nullopt};
  event.usage.prompt_tokens = 10;
  event.usage.reused_tokens = 8;
  event.usage.recomputed_tokens = 2;
  event.usage.completion_tokens = 3;
  event.usage.tier = Tier::hot;
  return event;
}

AnswerForm form(CompletionKind kind) {
  return {.kind = kind, .id = "abc", .created_s = 1'700'000'000, .model = "tiny"};
}

TEST(CompletionAnswer, HasTheTextTheUsageAndTheReceipt) {
  const boost::json::value answer =
      boost::json::parse(CompletionAnswer(form(CompletionKind::chat)).whole(0, eos("hello", FinishReason::length)));
  EXPECT_EQ(answer.at("id"), "chatcmpl-abc");
  EXPECT_EQ(answer.at("object"), "chat.completion");
  EXPECT_EQ(answer.at("created"), 1'700'000'000);
  EXPECT_EQ(answer.at("model"), "tiny");
  const boost::json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "hello");
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_EQ(answer.at("usage"), boost::json::parse(R"({"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,)"
                                                   R"("prompt_tokens_details":{"cached_tokens":8},)"
                                                   R"("completion_tokens_details":{"reasoning_tokens":0}})"));
  EXPECT_EQ(answer.at("uma").at("usage").at("tier"), "hot");
  EXPECT_EQ(answer.at("uma").at("usage").at("recomputed_tokens"), 2);
}

TEST(CompletionAnswer, OfATextHasNoMessage) {
  const boost::json::value answer = boost::json::parse(CompletionAnswer(form(CompletionKind::text)).whole(0, eos("hello")));
  EXPECT_EQ(answer.at("id"), "cmpl-abc");
  EXPECT_EQ(answer.at("object"), "text_completion");
  EXPECT_EQ(answer.at("choices").at(0).at("text"), "hello");
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "stop");
}

TEST(CompletionStream, AreOpenAis) {
  std::string stream;
  AnswerForm with_usage = form(CompletionKind::chat);
  with_usage.includes_usage = true;
  CompletionAnswer answer(with_usage);
  answer.append_first(stream, 0);
  answer.append_text(stream, 0, "one\n", {});
  answer.append_last(stream, 0, eos("two"));
  const std::vector<boost::json::value> events = events_of(stream);
  ASSERT_EQ(events.size(), 6U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(events[i].at("object"), "chat.completion.chunk");
    EXPECT_TRUE(events[i].at("usage").is_null());
  }
  const auto delta = [&](std::size_t i) { return boost::json::serialize(events[i].at("choices").at(0).at("delta")); };
  EXPECT_EQ(delta(0), R"({"role":"assistant","content":""})");
  EXPECT_EQ(delta(1), R"({"content":"one\n"})");
  EXPECT_TRUE(events[1].at("choices").at(0).at("finish_reason").is_null());
  EXPECT_EQ(delta(2), R"({"content":"two"})");
  EXPECT_EQ(delta(3), "{}");
  EXPECT_EQ(events[3].at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(events[3].at("uma").at("reason"), "stop");
  EXPECT_TRUE(events[4].at("choices").get_array().empty());
  EXPECT_EQ(events[4].at("usage").at("total_tokens"), 13);
  EXPECT_EQ(events[5], "[DONE]");
}

TEST(CompletionStream, OfATextHaveNoRoleAndNoUsageThatNobodyAskedFor) {
  std::string stream;
  CompletionAnswer answer(form(CompletionKind::text));
  answer.append_first(stream, 0);
  EXPECT_EQ(stream, "");
  answer.append_text(stream, 0, "one", {});
  answer.append_last(stream, 0, eos(""));
  const std::vector<boost::json::value> events = events_of(stream);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].at("choices").at(0).at("text"), "one");
  EXPECT_EQ(events[0].as_object().if_contains("usage"), nullptr);
  EXPECT_EQ(events[1].at("choices").at(0).at("finish_reason"), "stop");
}

TEST(CompletionStream, SayAnErrorInTheMiddle) {
  std::string stream;
  EosEvent event = eos("rest", FinishReason::error);
  event.error = Error{ErrorCode::runtime_decode, "broken"};
  CompletionAnswer(form(CompletionKind::chat)).append_last(stream, 0, event);
  const std::vector<boost::json::value> events = events_of(stream);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1].at("error").at("code"), "E_RUNTIME_001");
  EXPECT_EQ(events[2], "[DONE]");
}

std::vector<ReplyPart> reply_parts() {
  using enum ReplyPart::Kind;
  return {{.kind = reasoning, .text = "hm"},
          {.kind = tool_call, .text = "{\"a\": 1}", .call = 0, .id = "x1", .name = "f"},
          {.kind = tool_call, .text = "{}", .call = 1, .id = "x2", .name = "g"}};
}

TEST(CompletionAnswer, CallsAndThoughts) {
  EosEvent event = eos("", FinishReason::tool_calls);
  event.usage.reasoning_tokens = 2;
  event.parts = reply_parts();
  const boost::json::value answer = boost::json::parse(CompletionAnswer(form(CompletionKind::chat)).whole(0, event));
  const boost::json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_TRUE(choice.at("message").at("content").is_null());
  EXPECT_EQ(choice.at("message").at("reasoning_content"), "hm");
  EXPECT_EQ(choice.at("message").at("tool_calls"),
            boost::json::parse(R"([{"id":"x1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},
                            {"id":"x2","type":"function","function":{"name":"g","arguments":"{}"}}])"));
  EXPECT_EQ(answer.at("usage").at("completion_tokens_details").at("reasoning_tokens"), 2);
  event.parts.clear();
  EXPECT_EQ(boost::json::parse(CompletionAnswer(form(CompletionKind::chat)).whole(0, event))
                .at("choices")
                .at(0)
                .at("message")
                .at("content"),
            "");
}

TEST(CompletionStream, CallsAndThoughtsAreDeltas) {
  std::string stream;
  const std::vector<ReplyPart> parts = reply_parts();
  CompletionAnswer answer(form(CompletionKind::chat));
  answer.append_part(stream, 0, parts[0]);
  answer.append_part(stream, 0, parts[1]);
  EosEvent event = eos("", FinishReason::tool_calls);
  event.parts = {{.kind = ReplyPart::Kind::tool_call, .text = "}", .call = 0}};
  answer.append_last(stream, 0, event);
  const std::vector<boost::json::value> events = events_of(stream);
  ASSERT_EQ(events.size(), 5U);
  const auto delta = [&](std::size_t i) { return events[i].at("choices").at(0).at("delta"); };
  EXPECT_EQ(delta(0), boost::json::parse(R"({"reasoning_content":"hm"})"));
  EXPECT_EQ(delta(1), boost::json::parse(R"({"tool_calls":[{"index":0,"id":"x1","type":"function",
                                      "function":{"name":"f","arguments":"{\"a\": 1}"}}]})"));
  EXPECT_EQ(delta(2), boost::json::parse(R"({"tool_calls":[{"index":0,"function":{"arguments":"}"}}]})"));
  EXPECT_EQ(events[3].at("choices").at(0).at("finish_reason"), "tool_calls");
}

// --- several choices

TEST(CompletionAnswer, OfSeveralChoicesIsTheirsTogether) {
  AnswerForm several = form(CompletionKind::chat);
  several.n = 3;
  CompletionAnswer answer(several);
  EosEvent first = eos("one");
  first.usage.reused_tokens = 2;  // It has computed what the others reuse.
  EXPECT_EQ(answer.whole(2, eos("three", FinishReason::length)), "");
  EXPECT_EQ(answer.whole(0, first), "");
  const boost::json::value made = boost::json::parse(answer.whole(1, eos("two")));
  ASSERT_EQ(made.at("choices").as_array().size(), 3U);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(made.at("choices").at(static_cast<std::size_t>(i)).at("index"), i);
  EXPECT_EQ(made.at("choices").at(1).at("message").at("content"), "two");
  EXPECT_EQ(made.at("choices").at(2).at("finish_reason"), "length");
  EXPECT_EQ(made.at("choices").at(2).at("uma").at("reason"), "length");
  EXPECT_EQ(made.as_object().if_contains("uma"), nullptr) << "each choice has its own";
  EXPECT_EQ(made.at("usage").at("prompt_tokens"), 10) << "the prompt is one";
  EXPECT_EQ(made.at("usage").at("completion_tokens"), 9);
  EXPECT_EQ(made.at("usage").at("prompt_tokens_details").at("cached_tokens"), 2);
}

TEST(CompletionAnswer, CountsEachPromptOnce) {
  AnswerForm several = form(CompletionKind::text);
  several.prompts = 2;
  several.n = 2;
  several.echoes = {"A", "B"};
  CompletionAnswer answer(several);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(answer.whole(i, eos("x")), "");
  const boost::json::value made = boost::json::parse(answer.whole(3, eos("y")));
  EXPECT_EQ(made.at("usage").at("prompt_tokens"), 20);
  EXPECT_EQ(made.at("usage").at("completion_tokens"), 12);
  EXPECT_EQ(made.at("choices").at(1).at("text"), "Ax");
  EXPECT_EQ(made.at("choices").at(3).at("text"), "By");
}

TEST(CompletionStream, OfSeveralChoicesEndsOnce) {
  AnswerForm several = form(CompletionKind::text);
  several.n = 2;
  several.includes_usage = true;
  several.echoes = {"A"};
  CompletionAnswer answer(several);
  std::string stream;
  answer.append_first(stream, 1);
  answer.append_text(stream, 1, "one", {});
  answer.append_last(stream, 1, eos(""));
  answer.append_first(stream, 0);
  answer.append_last(stream, 0, eos("zero"));
  const std::vector<boost::json::value> events = events_of(stream);
  ASSERT_EQ(events.size(), 8U);
  std::vector<std::int64_t> order;
  std::vector<std::string> texts(2);
  for (std::size_t i = 0; i < 6; ++i) {
    const boost::json::value& choice = events[i].at("choices").at(0);
    order.push_back(choice.at("index").as_int64());
    texts[static_cast<std::size_t>(order.back())] += choice.at("text").as_string();
  }
  EXPECT_THAT(order, ElementsAre(1, 1, 1, 0, 0, 0));
  EXPECT_THAT(texts, ElementsAre("Azero", "Aone"));
  EXPECT_EQ(events[6].at("usage").at("completion_tokens"), 6);
  EXPECT_EQ(events[7], "[DONE]");
}

// --- how likely the tokens were

std::vector<TokenLogprobs> likely_tokens() {
  // "é" comes in two tokens.
  return {{.chosen = {.token = 1, .logprob = -0.25, .bytes = " h"},
           .top = {{.token = 1, .logprob = -0.25, .bytes = " h"}, {.token = 2, .logprob = -1.5, .bytes = "x"}}},
          {.chosen = {.token = 3, .logprob = -2, .bytes = "\xc3"}, .top = {{.token = 4, .logprob = -0.1, .bytes = ""}}},
          {.chosen = {.token = 5, .logprob = kLogprobMin, .bytes = "\xa9"}, .top = {}}};
}

TEST(CompletionAnswer, TellsHowLikelyTheTokensOfAChatWere) {
  AnswerForm wanted = form(CompletionKind::chat);
  wanted.has_logprobs = true;
  EosEvent event = eos(" h\u00e9");
  event.logprobs = likely_tokens();
  const boost::json::value made = boost::json::parse(CompletionAnswer(wanted).whole(0, event));
  EXPECT_EQ(made.at("choices").at(0).at("logprobs"), boost::json::parse(R"({"content":[
      {"token":" h","logprob":-0.25,"bytes":[32,104],"top_logprobs":[
        {"token":" h","logprob":-0.25,"bytes":[32,104]},{"token":"x","logprob":-1.5,"bytes":[120]}]},
      {"token":"\ufffd","logprob":-2,"bytes":[195],"top_logprobs":[{"token":"","logprob":-0.1,"bytes":null}]},
      {"token":"\ufffd","logprob":-9999,"bytes":[169],"top_logprobs":[]}],"refusal":null})"));
  EXPECT_TRUE(boost::json::parse(CompletionAnswer(form(CompletionKind::chat)).whole(0, eos("a")))
                  .at("choices")
                  .at(0)
                  .at("logprobs")
                  .is_null());
}

TEST(CompletionAnswer, TellsHowLikelyTheTokensOfATextWere) {
  AnswerForm wanted = form(CompletionKind::text);
  wanted.has_logprobs = true;
  EosEvent event = eos(" h\u00e9");
  event.logprobs = likely_tokens();
  const boost::json::value made = boost::json::parse(CompletionAnswer(wanted).whole(0, event));
  EXPECT_EQ(made.at("choices").at(0).at("logprobs"),
            boost::json::parse(R"({"tokens":[" h","bytes:\\xc3","bytes:\\xa9"],"token_logprobs":[-0.25,-2,-9999],
                            "top_logprobs":[{" h":-0.25,"x":-1.5},{"":-0.1,"bytes:\\xc3":-2},{"bytes:\\xa9":-9999}],
                            "text_offset":[0,2,3]})"));
}

// The form that harnesses read which compute the likelihood of a text (lm-eval).
TEST(CompletionAnswer, TellsHowLikelyAnEchoedPromptWas) {
  AnswerForm wanted = form(CompletionKind::text);
  wanted.has_logprobs = true;
  wanted.echoes = {"ab"};
  EosEvent event = eos("");
  event.prompt_logprobs = {
      {.chosen = {.token = 1, .bytes = "a"}},
      {.chosen = {.token = 2, .logprob = -3, .bytes = "b"}, .top = {{.token = 1, .logprob = -1, .bytes = "a"}}}};
  event.end_logprobs = TokenLogprobs{.chosen = {.token = 9, .logprob = -0.5}};
  const boost::json::value made = boost::json::parse(CompletionAnswer(wanted).whole(0, event));
  EXPECT_EQ(made.at("choices").at(0).at("text"), "ab");
  EXPECT_EQ(made.at("choices").at(0).at("logprobs"),
            boost::json::parse(R"({"tokens":["a","b",""],"token_logprobs":[null,-3,-0.5],
                            "top_logprobs":[null,{"a":-1,"b":-3},{"":-0.5}],"text_offset":[0,1,2]})"));
}

TEST(CompletionAnswer, OffsetsDoNotCountABlankThatTheTokenizerHasInserted) {
  AnswerForm wanted = form(CompletionKind::text);
  wanted.has_logprobs = true;
  wanted.echoes = {"ab c"};
  EosEvent event = eos("d");
  event.prompt_logprobs = {{.chosen = {.token = 1, .bytes = ""}},  // BOS.
                           {.chosen = {.token = 2, .bytes = " ab"}},
                           {.chosen = {.token = 3, .bytes = " c"}}};
  event.logprobs = {{.chosen = {.token = 4, .bytes = "d"}}};
  const boost::json::value made = boost::json::parse(CompletionAnswer(wanted).whole(0, event));
  EXPECT_EQ(made.at("choices").at(0).at("logprobs").at("text_offset"), boost::json::parse("[0,0,2,4]"));
}

TEST(CompletionStream, TellsHowLikelyTheTokensWereWithTheirText) {
  AnswerForm wanted = form(CompletionKind::text);
  wanted.has_logprobs = true;
  CompletionAnswer answer(wanted);
  std::string stream;
  const std::vector<TokenLogprobs> tokens = likely_tokens();
  answer.append_text(stream, 0, " h", std::span(tokens).first(1));
  EosEvent event = eos("\u00e9");
  event.logprobs.assign(tokens.begin() + 1, tokens.end());
  answer.append_last(stream, 0, event);
  const std::vector<boost::json::value> events = events_of(stream);
  ASSERT_EQ(events.size(), 4U);
  const auto offsets = [&](std::size_t i) {
    return boost::json::serialize(events[i].at("choices").at(0).at("logprobs").at("text_offset"));
  };
  EXPECT_EQ(offsets(0), "[0]");
  EXPECT_EQ(offsets(1), "[2,3]") << "offsets go on from the chunk before";
  EXPECT_TRUE(events[2].at("choices").at(0).at("logprobs").is_null());
}

}  // namespace
}  // namespace uma::wire
