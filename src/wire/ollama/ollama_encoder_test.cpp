#include "wire/ollama/ollama_encoder.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

constexpr std::int64_t kCreated_s = 1'767'268'800;  // 2026-01-01T12:00:00Z

std::vector<boost::json::value> lines_of(std::string_view stream) {
  std::vector<boost::json::value> lines;
  while (!stream.empty()) {
    const std::size_t end = stream.find('\n');
    EXPECT_NE(end, std::string_view::npos) << "a line without its end: " << stream;
    if (end == std::string_view::npos) break;
    lines.push_back(boost::json::parse(stream.substr(0, end)));
    stream.remove_prefix(end + 1);
  }
  return lines;
}

EosEvent ollama_eos(std::string text, FinishReason reason = FinishReason::stop) {
  EosEvent event{.reason = reason, .usage = {}, .text = std::move(text), .error = std::nullopt};
  event.usage.prompt_tokens = 10;
  event.usage.completion_tokens = 3;
  event.usage.queue_ms = 1;
  event.usage.ttft_ms = 5;
  event.usage.tokens_per_s = 100;
  return event;
}

OllamaAnswer answer_of(OllamaKind kind) {
  return {kind, "tiny:latest", kCreated_s};
}

ReplyPart call_piece(std::string text, std::int32_t call, std::string id = "", std::string name = "") {
  return {
      .kind = ReplyPart::Kind::tool_call, .text = std::move(text), .call = call, .id = std::move(id), .name = std::move(name)};
}

TEST(OllamaAnswer, IsAStreamOfLines) {
  std::string out;
  OllamaAnswer answer = answer_of(OllamaKind::chat);
  answer.append_empty(out);
  answer.append_part(out, {.kind = ReplyPart::Kind::reasoning, .text = "so\n"});
  answer.append_text(out, "hel", {});
  answer.append_last(out, ollama_eos("lo"));
  const auto lines = lines_of(out);
  ASSERT_EQ(lines.size(), 5U);
  for (const boost::json::value& line : lines) {
    EXPECT_EQ(line.at("model"), "tiny:latest");
    EXPECT_EQ(line.at("created_at"), "2026-01-01T12:00:00Z");
    EXPECT_EQ(line.at("message").at("role"), "assistant");
    EXPECT_EQ(line.at("done"), &line == &lines.back());
  }
  EXPECT_EQ(lines[0].at("message").at("content"), "");
  EXPECT_EQ(lines[1].at("message").at("thinking"), "so\n");
  EXPECT_EQ(lines[2].at("message").at("content"), "hel");
  EXPECT_EQ(lines[3].at("message").at("content"), "lo");
  EXPECT_EQ(lines[4].at("message").at("content"), "");
  EXPECT_EQ(lines[4].at("done_reason"), "stop");
}

TEST(OllamaAnswer, HasNoLineEndsInItsLines) {
  std::string out;
  OllamaAnswer answer = answer_of(OllamaKind::chat);
  const std::string text = "a\n\x0b\xC2\x85\xC2\x86\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xA8";
  answer.append_text(out, text, {});
  answer.append_text(out, text, {});
  EXPECT_EQ(std::ranges::count(out, '\n'), 2);
  EXPECT_FALSE(out.contains("\xC2\x85") || out.contains("\xE2\x80\xA8") || out.contains("\xE2\x80\xA9") ||
               out.contains('\x0b'));
  EXPECT_TRUE(out.contains("\xC2\x86"));
  for (const boost::json::value& line : lines_of(out)) EXPECT_EQ(line.at("message").at("content").as_string(), text);
}

TEST(OllamaAnswer, CountsInNanoseconds) {
  const boost::json::value answer = boost::json::parse(answer_of(OllamaKind::chat).whole(ollama_eos("a")));
  EXPECT_EQ(answer.at("prompt_eval_count"), 10);
  EXPECT_EQ(answer.at("eval_count"), 3);
  EXPECT_EQ(answer.at("load_duration"), 1'000'000);
  EXPECT_EQ(answer.at("prompt_eval_duration"), 4'000'000);
  EXPECT_EQ(answer.at("eval_duration"), 20'000'000);
  EXPECT_EQ(answer.at("total_duration"), 25'000'000);
}

TEST(OllamaAnswer, OfACutReplyIsTooLong) {
  for (const auto reason : {FinishReason::length, FinishReason::timeout, FinishReason::slow_consumer}) {
    const boost::json::value answer = boost::json::parse(answer_of(OllamaKind::chat).whole(ollama_eos("a", reason)));
    EXPECT_EQ(answer.at("done_reason"), "length");
  }
  const auto called = answer_of(OllamaKind::chat).whole(ollama_eos("", FinishReason::tool_calls));
  EXPECT_EQ(boost::json::parse(called).at("done_reason"), "stop");
}

TEST(OllamaAnswer, HasEveryCallInOneLineWithItsArgumentsAsAnObject) {
  std::string out;
  OllamaAnswer answer = answer_of(OllamaKind::chat);
  answer.append_text(out, "I ask.", {});
  answer.append_part(out, call_piece("", 0, "a1", "weather"));
  answer.append_part(out, call_piece("{\"city\":\n", 0));
  answer.append_part(out, call_piece("\"Köln\"}", 0));
  answer.append_part(out, call_piece("", 1, "b2", "clock"));
  answer.append_last(out, ollama_eos("", FinishReason::tool_calls));
  const auto lines = lines_of(out);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[1].at("message").at("tool_calls"),
            boost::json::parse(R"([{"id":"a1","function":{"index":0,"name":"weather","arguments":{"city":"Köln"}}}])"));
  EXPECT_EQ(lines[1].at("message").at("content"), "");
  EXPECT_EQ(lines[2].at("message").at("tool_calls"),
            boost::json::parse(R"([{"id":"b2","function":{"index":1,"name":"clock","arguments":{}}}])"));
}

TEST(OllamaAnswer, OfACallThatWasCutIsText) {
  std::string out;
  OllamaAnswer answer = answer_of(OllamaKind::chat);
  answer.append_part(out, call_piece("{\"city\":\"K", 0, "a1", "weather"));
  answer.append_last(out, ollama_eos("", FinishReason::length));
  const auto lines = lines_of(out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("message").at("content"), "{\"city\":\"K");
  EXPECT_FALSE(lines[0].at("message").as_object().contains("tool_calls"));
}

TEST(OllamaAnswer, AsOneObjectHasEverything) {
  EosEvent eos = ollama_eos("text");
  eos.parts = {{.kind = ReplyPart::Kind::reasoning, .text = "thought"},
               call_piece("{\"a\":1}", 0, "a1", "f"),
               call_piece("{\"b", 1, "b2", "g")};
  const boost::json::value answer = boost::json::parse(answer_of(OllamaKind::chat).whole(eos));
  EXPECT_EQ(answer.at("message"),
            boost::json::parse(R"({"role":"assistant","content":"text{\"b","thinking":"thought",)"
                               R"("tool_calls":[{"id":"a1","function":{"index":0,"name":"f","arguments":{"a":1}}}]})"));
  EXPECT_EQ(answer.at("done"), true);
}

TEST(OllamaAnswer, ToAPromptIsAResponse) {
  std::string out;
  OllamaAnswer answer = answer_of(OllamaKind::generate);
  answer.append_text(out, "a", {});
  answer.append_part(out, {.kind = ReplyPart::Kind::reasoning, .text = "b"});
  answer.append_last(out, ollama_eos(""));
  const auto lines = lines_of(out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].at("response"), "a");
  EXPECT_FALSE(lines[0].as_object().contains("message"));
  EXPECT_EQ(lines[1].at("thinking"), "b");
  EXPECT_EQ(lines[2].at("response"), "");
  EXPECT_TRUE(lines[2].at("context").as_array().empty());
}

TEST(OllamaAnswer, EndsWithTheErrorAsText) {
  std::string out;
  EosEvent eos = ollama_eos("rest", FinishReason::error);
  eos.error = Error{ErrorCode::runtime_decode, "broken"};
  answer_of(OllamaKind::chat).append_last(out, eos);
  const auto lines = lines_of(out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1], boost::json::parse(R"({"error":"broken"})"));
  const boost::json::value unknown = boost::json::parse(ollama_error_json({ErrorCode::model_unknown, "no model \"x\""}));
  EXPECT_EQ(unknown.at("error"), "model not found: no model \"x\"");
}

TEST(OllamaAnswer, WithoutAReplySaysWhatWasDone) {
  const boost::json::value chat = boost::json::parse(answer_of(OllamaKind::chat).without_reply("load"));
  EXPECT_EQ(chat.at("done_reason"), "load");
  EXPECT_EQ(chat.at("message").at("content"), "");
  const boost::json::value generate = boost::json::parse(answer_of(OllamaKind::generate).without_reply("unload"));
  EXPECT_EQ(generate.at("done_reason"), "unload");
  EXPECT_EQ(generate.at("response"), "");
}

TEST(OllamaAnswer, HasLogprobsInTheirLine) {
  std::string out;
  const std::vector<TokenLogprobs> logprobs = {{.chosen = {.token = 1, .logprob = -0.5, .bytes = "a"}}};
  answer_of(OllamaKind::chat).append_text(out, "a", logprobs);
  EXPECT_EQ(lines_of(out)[0].at("logprobs").at(0).at("token"), "a");
}

TEST(OllamaEmbeddings, AreVectors) {
  EmbedResult result;
  result.dimensions = 2;
  result.values = {0.5F, 1, 0, -1};
  result.tokens = 7;
  const boost::json::value made = boost::json::parse(ollama_embed_json(result, "e", std::chrono::milliseconds(2)));
  EXPECT_EQ(made.at("embeddings"), boost::json::parse("[[0.5,1],[0,-1]]"));
  EXPECT_EQ(made.at("prompt_eval_count"), 7);
  EXPECT_EQ(made.at("total_duration"), 2'000'000);
  EXPECT_EQ(made.at("model"), "e");
  EXPECT_EQ(ollama_embeddings_json(result, "e", {}), R"({"embedding":[0.5,1]})");
  EXPECT_EQ(ollama_embeddings_json({}, "e", {}), R"({"embedding":[]})");
  EXPECT_EQ(boost::json::parse(ollama_embed_json({}, "e", {})).at("embeddings"), boost::json::array());
}

}  // namespace
}  // namespace uma::wire
