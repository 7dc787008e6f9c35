#include "wire/openai_codec.h"

#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"hi"}])";

// Decodes {FIELDS} as a chat request, which must be one.
CompletionRequest chat(const std::string& fields) {
  auto request = decode_completion(CompletionKind::chat, "{" + fields + "}");
  if (!request) {
    ADD_FAILURE() << fields << ": " << request.error().error.message;
    return {};
  }
  return std::move(*request);
}

RejectedBody rejected(CompletionKind kind, const std::string& body) {
  auto request = decode_completion(kind, body);
  if (request) {
    ADD_FAILURE() << body << " was accepted";
    return {.error = {ErrorCode::auth, ""}, .field = ""};
  }
  return std::move(request.error());
}

// The objects of a stream of server-sent events; [DONE] is a string.
std::vector<json::value> events_of(std::string_view stream) {
  std::vector<json::value> events;
  while (!stream.empty()) {
    const std::size_t end = stream.find("\n\n");
    EXPECT_NE(end, std::string_view::npos) << "an event without its end: " << stream;
    if (end == std::string_view::npos) break;
    const std::string_view event = stream.substr(0, end);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    const std::string data(event.substr(6));
    events.push_back(data == "[DONE]" ? json::value("[DONE]") : json::parse(data));
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

CompletionHead head(CompletionKind kind, bool includes_usage = false) {
  return {kind, "abc", 1'700'000'000, "tiny", includes_usage};
}

// --- requests

TEST(DecodeCompletion, TakesOpenAisDefaults) {
  const CompletionRequest request = chat(kMessages);
  EXPECT_EQ(request.generate.input.messages, (std::vector<ChatMessage>{{"user", "hi"}}));
  EXPECT_EQ(request.generate.options.sampling.temperature, 1);
  EXPECT_EQ(request.generate.options.sampling.top_p, 1);
  EXPECT_FALSE(request.generate.options.stream);
  EXPECT_FALSE(request.includes_usage);
  EXPECT_EQ(request.generate.options.max_tokens, std::nullopt);
}

TEST(DecodeCompletion, ReadsEveryOption) {
  const CompletionRequest request =
      chat(std::string(kMessages) +
           R"(,"model":"tiny","temperature":0.5,"top_p":0.9,"presence_penalty":1,"frequency_penalty":-1,"seed":7,)"
           R"("stop":["a","b"],"max_tokens":5,"stream":true,"stream_options":{"include_usage":true},"logit_bias":{"3":-100},)"
           R"("n":1,"user":"somebody","tools":[],"response_format":{"type":"text"},"logprobs":false,)"
           R"("uma":{"top_k":40,"min_p":0.1,"repeat_penalty":1.1,"ignore_eos":true,"class":"background","deadline_ms":9})");
  const GenerateOptions& options = request.generate.options;
  EXPECT_EQ(request.generate.model, "tiny");
  EXPECT_EQ(options.sampling.temperature, 0.5);
  EXPECT_EQ(options.sampling.top_p, 0.9);
  EXPECT_EQ(options.sampling.presence_penalty, 1);
  EXPECT_EQ(options.sampling.frequency_penalty, -1);
  EXPECT_EQ(options.sampling.seed, 7U);
  EXPECT_EQ(options.sampling.logit_bias.size(), 1U);
  EXPECT_EQ(options.sampling.top_k, 40);
  EXPECT_EQ(options.sampling.min_p, 0.1);
  EXPECT_EQ(options.sampling.repeat_penalty, 1.1);
  EXPECT_TRUE(options.sampling.ignore_eos);
  EXPECT_THAT(options.stop, ElementsAre("a", "b"));
  EXPECT_EQ(options.max_tokens, 5);
  EXPECT_TRUE(options.stream);
  EXPECT_EQ(options.request_class, RequestClass::background);
  EXPECT_EQ(options.deadline_ms, 9);
  EXPECT_TRUE(request.includes_usage);
}

TEST(DecodeCompletion, TakesAGrammarAtTheTopOrAmongOurs) {
  EXPECT_EQ(chat(std::string(kMessages) + R"(,"grammar":"root ::= [a]")").generate.options.grammar, "root ::= [a]");
  EXPECT_EQ(chat(std::string(kMessages) + R"(,"uma":{"grammar":"root ::= [b]"})").generate.options.grammar, "root ::= [b]");
}

TEST(DecodeCompletion, PrefersTheNewerNameOfMaxTokens) {
  EXPECT_EQ(chat(std::string(kMessages) + R"(,"max_tokens":5,"max_completion_tokens":6)").generate.options.max_tokens, 6);
}

TEST(DecodeCompletion, TakesAPromptAsAStringOrAnArrayOfOne) {
  for (const char* body : {R"({"prompt":"once"})", R"({"prompt":["once"]})"}) {
    const auto request = decode_completion(CompletionKind::text, body);
    ASSERT_TRUE(request.has_value()) << body;
    EXPECT_EQ(request->generate.input.text, "once");
  }
}

TEST(DecodeCompletion, NamesTheFieldThatIsWrong) {
  const std::string messages = kMessages;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "messages"},
      {R"("messages":[])", "messages"},
      {R"("messages":[{"role":"user","content":"a"},{"role":"wizard","content":"b"}])", "messages[1].role"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"detail":"x"}}]}])",
       "messages[0].content[0].image_url.url"},
      {R"("messages":[{"role":"assistant","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}])",
       "messages[0].content"},
      {messages + R"(,"temperature":"hot")", "temperature"},
      {messages + R"(,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {messages + R"(,"uma":{"top_k":-1})", "uma.top_k"},
      {messages + R"(,"uma":{"session_id":"s"})", "uma.session_id"},
      {messages + R"(,"grammar":"a","uma":{"grammar":"b"})", "uma.grammar"},
      {messages + R"(,"n":2)", "n"},
      {messages + R"(,"logprobs":true)", "logprobs"},
      {messages + R"(,"tools":[{"type":"function"}])", "tools[0].function"},
      {messages + R"(,"tools":[{"type":"web_search"}])", "tools[0].type"},
      {messages + R"(,"tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name"},
      {messages + R"(,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])",
       "tools[1].function.name"},
      {messages + R"(,"tools":[{"type":"function","function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters"},
      {messages + ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"\xff\"}}]",
       "tools[0].function.description"},
      {messages + ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"x\":\"\xff\"}}]", "tools"},
      {messages + R"(,"tools":{})", "tools"},
      {messages + R"(,"tool_choice":"required")", "tool_choice"},
      {messages + R"(,"tool_choice":"sometimes")", "tool_choice"},
      {messages + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})", "tool_choice.function.name"},
      {messages + R"(,"tool_choice":{"type":"allowed_tools"})", "tool_choice"},
      {messages + R"(,"parallel_tool_calls":1)", "parallel_tool_calls"},
      {messages + R"(,"chat_template_kwargs":{"messages":[]})", "chat_template_kwargs.messages"},
      {messages + R"(,"chat_template_kwargs":[])", "chat_template_kwargs"},
      {R"("messages":[{"role":"assistant"}])", "messages[0].content"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}])", "messages[0].tool_calls[0].function"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])", "messages[0].tool_calls[0].id"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":{}}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"("messages":[{"role":"tool","content":"7","tool_call_id":7}])", "messages[0].tool_call_id"},
      {messages + R"(,"response_format":{"type":"yaml"})", "response_format.type"},
      {messages + R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x"}})",
       "response_format.json_schema.schema"},
      {messages + R"(,"response_format":{"type":"json_object"},"uma":{"grammar":"root ::= [a]"})", "response_format"},
      {messages + R"(,"max_tokens":0)", "max_tokens"},
  };
  for (const auto& [fields, field] : cases) {
    const RejectedBody refusal = rejected(CompletionKind::chat, "{" + fields + "}");
    EXPECT_EQ(refusal.error.code, ErrorCode::proto_field) << fields;
    EXPECT_EQ(refusal.field, field) << fields << ": " << refusal.error.message;
    EXPECT_THAT(refusal.error.message, HasSubstr(field));
  }
  for (const char* field :
       {R"("suffix":"x")", R"("echo":true)", R"("logprobs":0)", R"("best_of":2)", R"("prompt":["a","b"])"}) {
    const RejectedBody refusal = rejected(CompletionKind::text, std::string(field).starts_with("\"prompt")
                                                                    ? "{" + std::string(field) + "}"
                                                                    : R"({"prompt":"a",)" + std::string(field) + "}");
    EXPECT_EQ(refusal.error.code, ErrorCode::proto_field) << field;
  }
}

TEST(DecodeCompletion, RefusesWhatIsNoObject) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  for (const std::string& body : {std::string(), std::string("nonsense"), std::string("[]"), std::string("{} {}"), deep}) {
    const RejectedBody refusal = rejected(CompletionKind::chat, body);
    EXPECT_EQ(refusal.error.code, ErrorCode::proto_json);
    EXPECT_EQ(refusal.field, "");
  }
}

constexpr const char* kTools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}},"x":1.5}])";

TEST(DecodeCompletion, TakesToolsAsTheyAre) {
  const ChatOptions options =
      chat(std::string(kMessages) + R"(,"parallel_tool_calls":false,"tools":)" + kTools).generate.options.chat;
  EXPECT_EQ(json::parse(options.tools), json::parse(kTools));
  EXPECT_THAT(options.tool_names, ElementsAre("f"));
  EXPECT_EQ(options.tool_choice, ToolChoice::automatic);
  EXPECT_FALSE(options.has_parallel_calls);
  EXPECT_TRUE(options.splits_reasoning) << "as clients of OpenAI expect";
}

TEST(DecodeCompletion, TheChoiceOfATool) {
  const auto choice = [](const std::string& value) {
    return chat(std::string(kMessages) + R"(,"tools":)" + kTools + R"(,"tool_choice":)" + value).generate.options.chat;
  };
  EXPECT_EQ(choice(R"("auto")").tool_choice, ToolChoice::automatic);
  EXPECT_EQ(choice(R"("required")").tool_choice, ToolChoice::required);
  EXPECT_EQ(choice(R"({"type":"function","function":{"name":"f"}})").tool_choice, ToolChoice::named);
  EXPECT_EQ(choice(R"({"type":"function","function":{"name":"f"}})").tool_name, "f");
  EXPECT_EQ(choice(R"("none")").tools, "") << "the model does not hear of them";
}

TEST(DecodeCompletion, MessagesKeepCallsResultsAndThoughts) {
  const CompletionRequest request =
      chat(R"("messages":[{"role":"assistant","content":null,"reasoning_content":"hm","x":1,"tool_calls":[)"
           R"({"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": \"b\"}"},"x":1}]},)"
           R"({"role":"tool","tool_call_id":"1","content":"7"},{"role":"user","content":"hi","name":"Ada","tool_calls":[]}])");
  const std::vector<ChatMessage>& messages = request.generate.input.messages;
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[0].content, "");
  EXPECT_EQ(messages[0].extra, R"({"reasoning_content":"hm","tool_calls":[{"id":"1","type":"function","function":)"
                               R"({"name":"f","arguments":"{\"a\": \"b\"}"}}]})");
  EXPECT_EQ(messages[1], (ChatMessage{"tool", "7", R"({"tool_call_id":"1"})"}));
  EXPECT_EQ(messages[2], (ChatMessage{"user", "hi"}));
}

TEST(DecodeCompletion, SwitchesOfTheTemplate) {
  const auto arguments = [](const std::string& fields) {
    return chat(std::string(kMessages) + "," + fields).generate.options.chat.template_arguments;
  };
  EXPECT_EQ(arguments(R"("chat_template_kwargs":{"enable_thinking":false})"), R"({"enable_thinking":false})");
  EXPECT_EQ(arguments(R"("reasoning_effort":"low")"), R"({"reasoning_effort":"low"})");
  EXPECT_EQ(arguments(R"("reasoning_effort":"none")"), R"({"reasoning_effort":"none","enable_thinking":false})");
  EXPECT_EQ(arguments(R"("reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"high"})"),
            R"({"reasoning_effort":"high"})");
  EXPECT_EQ(arguments(R"("chat_template_kwargs":{})"), "");
  EXPECT_FALSE(chat(std::string(kMessages) + R"(,"uma":{"split_reasoning":false})").generate.options.chat.splits_reasoning);
}

TEST(DecodeCompletion, ToolsBelongToChats) {
  EXPECT_EQ(rejected(CompletionKind::text, std::string(R"({"prompt":"a","tools":)") + kTools + "}").field, "tools");
}

// --- answers

TEST(CompletionJson, HasTheTextTheUsageAndTheReceipt) {
  const json::value answer = json::parse(completion_json(head(CompletionKind::chat), eos("hello", FinishReason::length)));
  EXPECT_EQ(answer.at("id"), "chatcmpl-abc");
  EXPECT_EQ(answer.at("object"), "chat.completion");
  EXPECT_EQ(answer.at("created"), 1'700'000'000);
  EXPECT_EQ(answer.at("model"), "tiny");
  const json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "hello");
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_EQ(answer.at("usage"), json::parse(R"({"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,)"
                                            R"("prompt_tokens_details":{"cached_tokens":8},)"
                                            R"("completion_tokens_details":{"reasoning_tokens":0}})"));
  EXPECT_EQ(answer.at("uma").at("usage").at("tier"), "hot");
  EXPECT_EQ(answer.at("uma").at("usage").at("recomputed_tokens"), 2);
}

TEST(CompletionJson, OfATextHasNoMessage) {
  const json::value answer = json::parse(completion_json(head(CompletionKind::text), eos("hello")));
  EXPECT_EQ(answer.at("id"), "cmpl-abc");
  EXPECT_EQ(answer.at("object"), "text_completion");
  EXPECT_EQ(answer.at("choices").at(0).at("text"), "hello");
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "stop");
}

TEST(CompletionChunks, AreOpenAis) {
  std::string stream;
  const CompletionHead chat_head = head(CompletionKind::chat, true);
  append_first_chunk(stream, chat_head);
  append_text_chunk(stream, chat_head, "one\n");
  append_last_chunks(stream, chat_head, eos("two"));
  const std::vector<json::value> events = events_of(stream);
  ASSERT_EQ(events.size(), 6U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(events[i].at("object"), "chat.completion.chunk");
    EXPECT_TRUE(events[i].at("usage").is_null());
  }
  const auto delta = [&](std::size_t i) { return json::serialize(events[i].at("choices").at(0).at("delta")); };
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

TEST(CompletionChunks, OfATextHaveNoRoleAndNoUsageThatNobodyAskedFor) {
  std::string stream;
  const CompletionHead text_head = head(CompletionKind::text);
  append_first_chunk(stream, text_head);
  EXPECT_EQ(stream, "");
  append_text_chunk(stream, text_head, "one");
  append_last_chunks(stream, text_head, eos(""));
  const std::vector<json::value> events = events_of(stream);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].at("choices").at(0).at("text"), "one");
  EXPECT_EQ(events[0].as_object().if_contains("usage"), nullptr);
  EXPECT_EQ(events[1].at("choices").at(0).at("finish_reason"), "stop");
}

TEST(CompletionChunks, SayAnErrorInTheMiddle) {
  std::string stream;
  EosEvent event = eos("rest", FinishReason::error);
  event.error = Error{ErrorCode::runtime_decode, "broken"};
  append_last_chunks(stream, head(CompletionKind::chat), event);
  const std::vector<json::value> events = events_of(stream);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1].at("error").at("code"), "E_RUNTIME_001");
  EXPECT_EQ(events[2], "[DONE]");
}

TEST(ErrorJson, IsOpenAis) {
  EXPECT_EQ(error_json({ErrorCode::proto_field, "no \"x\""}, 400, "x"),
            R"({"error":{"message":"no \"x\"","type":"invalid_request_error","param":"x","code":"E_PROTO_003"}})");
  EXPECT_THAT(error_json({ErrorCode::io_short_write, ""}, 500, ""), HasSubstr(R"("type":"server_error","param":null)"));
}

std::vector<ReplyPart> reply_parts() {
  using enum ReplyPart::Kind;
  return {{.kind = reasoning, .text = "hm"},
          {.kind = tool_call, .text = "{\"a\": 1}", .call = 0, .id = "x1", .name = "f"},
          {.kind = tool_call, .text = "{}", .call = 1, .id = "x2", .name = "g"}};
}

TEST(CompletionJson, CallsAndThoughts) {
  EosEvent event = eos("", FinishReason::tool_calls);
  event.usage.reasoning_tokens = 2;
  event.parts = reply_parts();
  const json::value answer = json::parse(completion_json(head(CompletionKind::chat), event));
  const json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_TRUE(choice.at("message").at("content").is_null());
  EXPECT_EQ(choice.at("message").at("reasoning_content"), "hm");
  EXPECT_EQ(choice.at("message").at("tool_calls"),
            json::parse(R"([{"id":"x1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},
                            {"id":"x2","type":"function","function":{"name":"g","arguments":"{}"}}])"));
  EXPECT_EQ(answer.at("usage").at("completion_tokens_details").at("reasoning_tokens"), 2);
  event.parts.clear();
  EXPECT_EQ(json::parse(completion_json(head(CompletionKind::chat), event)).at("choices").at(0).at("message").at("content"),
            "");
}

TEST(CompletionStream, CallsAndThoughtsAreDeltas) {
  std::string stream;
  const std::vector<ReplyPart> parts = reply_parts();
  append_part_chunk(stream, head(CompletionKind::chat), parts[0]);
  append_part_chunk(stream, head(CompletionKind::chat), parts[1]);
  EosEvent event = eos("", FinishReason::tool_calls);
  event.parts = {{.kind = ReplyPart::Kind::tool_call, .text = "}", .call = 0}};
  append_last_chunks(stream, head(CompletionKind::chat), event);
  const std::vector<json::value> events = events_of(stream);
  ASSERT_EQ(events.size(), 5U);
  const auto delta = [&](std::size_t i) { return events[i].at("choices").at(0).at("delta"); };
  EXPECT_EQ(delta(0), json::parse(R"({"reasoning_content":"hm"})"));
  EXPECT_EQ(delta(1), json::parse(R"({"tool_calls":[{"index":0,"id":"x1","type":"function",
                                      "function":{"name":"f","arguments":"{\"a\": 1}"}}]})"));
  EXPECT_EQ(delta(2), json::parse(R"({"tool_calls":[{"index":0,"function":{"arguments":"}"}}]})"));
  EXPECT_EQ(events[3].at("choices").at(0).at("finish_reason"), "tool_calls");
}

}  // namespace
}  // namespace uma::wire
