#include "wire/ollama/ollama_decoder.h"

#include <format>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

OllamaCall chat_of(std::string_view body) {
  auto call = decode_ollama(OllamaKind::chat, body);
  EXPECT_TRUE(call.has_value()) << body << ": " << (call ? "" : call.error().error.message);
  return call ? *std::move(call) : OllamaCall();
}
OllamaCall generate_of(std::string_view body) {
  auto call = decode_ollama(OllamaKind::generate, body);
  EXPECT_TRUE(call.has_value()) << body << ": " << (call ? "" : call.error().error.message);
  return call ? *std::move(call) : OllamaCall();
}
// The field that a body is refused for.
std::string refused_field(OllamaKind kind, std::string_view body) {
  const auto call = decode_ollama(kind, body);
  EXPECT_FALSE(call.has_value()) << body;
  return call ? "" : call.error().field;
}
boost::json::value extra_of(const ChatMessage& message) {
  return boost::json::parse(message.extra);
}

TEST(OllamaChat, IsAStreamWithOllamasDefaults) {
  const OllamaCall call = chat_of(R"({"model":"m:latest","messages":[{"role":"user","content":"hi"}]})");
  const GenerateRequest& generate = call.generate;
  EXPECT_EQ(generate.model, "m:latest");
  EXPECT_EQ(generate.input.messages, (std::vector<ChatMessage>{{"user", "hi"}}));
  EXPECT_TRUE(generate.options.stream);
  EXPECT_TRUE(generate.options.chat.splits_reasoning);
  EXPECT_EQ(generate.options.chat.template_arguments, "");
  EXPECT_DOUBLE_EQ(generate.options.sampling.temperature, 0.8);
  EXPECT_EQ(generate.options.sampling.top_k, 40);
  EXPECT_DOUBLE_EQ(generate.options.sampling.top_p, 0.9);
  EXPECT_DOUBLE_EQ(generate.options.sampling.repeat_penalty, 1);
  EXPECT_FALSE(generate.options.max_tokens.has_value());
  EXPECT_FALSE(call.is_empty);
  EXPECT_FALSE(call.keep_alive_s.has_value());
  EXPECT_EQ(call.context_wanted, 0);
}

TEST(OllamaChat, TakesTheOlderNameOfTheModel) {
  EXPECT_EQ(chat_of(R"({"name":"old"})").generate.model, "old");
  EXPECT_EQ(chat_of(R"({"model":"","name":"old"})").generate.model, "old");
  EXPECT_EQ(chat_of(R"({"model":"new","name":"old"})").generate.model, "new");
  EXPECT_EQ(decode_ollama_show(R"({"name":"old"})"), "old");
  EXPECT_EQ(decode_ollama_show("{}"), "");
  EXPECT_FALSE(decode_ollama_show("[]").has_value());
}

TEST(OllamaChat, ReadsTheOptions) {
  const OllamaCall call = chat_of(R"({"messages":[{"role":"user","content":"hi"}],"stream":false,"options":{"num_ctx":8192,
    "num_predict":12,"temperature":0,"top_k":5,"top_p":0.5,"min_p":0.25,"repeat_penalty":1.5,"repeat_last_n":33,
    "presence_penalty":0.5,"frequency_penalty":-1,"seed":42,"stop":["a","b"],"num_keep":5,"num_gpu":"x","mirostat":2,"mirostat_tau":3,
    "typical_p":0.9}})");
  const GenerateOptions& options = call.generate.options;
  EXPECT_FALSE(options.stream);
  EXPECT_EQ(call.context_wanted, 8192);
  EXPECT_EQ(options.max_tokens, 12);
  EXPECT_EQ(options.sampling.temperature, 0);
  EXPECT_EQ(options.sampling.top_k, 5);
  EXPECT_EQ(options.sampling.top_p, 0.5);
  EXPECT_EQ(options.sampling.min_p, 0.25);
  EXPECT_EQ(options.sampling.repeat_penalty, 1.5);
  EXPECT_EQ(options.sampling.repeat_last_n, 33);
  EXPECT_EQ(options.sampling.mirostat, 2);
  EXPECT_EQ(options.sampling.mirostat_tau, 3);
  EXPECT_EQ(options.sampling.typical_p, 0.9);
  EXPECT_EQ(options.sampling.presence_penalty, 0.5);
  EXPECT_EQ(options.sampling.frequency_penalty, -1);
  EXPECT_EQ(options.sampling.seed, 42U);
  EXPECT_THAT(options.stop, ElementsAre("a", "b"));
}

TEST(OllamaChat, OptionsMayStandBesideTheirObject) {
  const auto call = decode_ollama(
      OllamaKind::chat, R"({"messages":[{"role":"user","content":"a"}],"temperature":0.1,"top_k":3,"options":{"top_k":7}})");
  EXPECT_EQ(call.value().generate.options.sampling.temperature, 0.1);
  EXPECT_EQ(call->generate.options.sampling.top_k, 7);
}

TEST(OllamaChat, NegativeNumbersMeanNoLimitAndNoSeed) {
  const OllamaCall call = chat_of(R"({"messages":[],"options":{"num_predict":-1,"seed":-1,"top_k":-1}})");
  EXPECT_FALSE(call.generate.options.max_tokens.has_value());
  EXPECT_FALSE(call.generate.options.sampling.seed.has_value());
  EXPECT_EQ(call.generate.options.sampling.top_k, 0);
}

TEST(OllamaChat, RefusesWrongFieldsByName) {
  for (const auto& [body, field] : std::vector<std::pair<std::string_view, std::string_view>>{
           {R"({"messages":1})", "messages"},
           {R"({"messages":[1]})", "messages[0]"},
           {R"({"messages":[{"content":"hi"}]})", "messages[0].role"},
           {R"({"messages":[{"role":"robot","content":"hi"}]})", "messages[0].role"},
           {R"({"messages":[{"role":"user","content":[]}]})", "messages[0].content"},
           {R"({"messages":[{"role":"user","content":"","images":[1]}]})", "messages[0].images[0]"},
           {R"({"messages":[{"role":"system","content":"","images":["aaaa"]}]})", "messages[0].images"},
           {R"({"messages":[{"role":"assistant","tool_calls":[{"id":[]}]}]})", "messages[0].tool_calls[0].id"},
           {R"({"temperature":"hot"})", "temperature"},
           {R"({"options":{"temperature":"hot"}})", "options.temperature"},
           {R"({"options":{"stop":[1]}})", "options.stop"},
           {R"({"format":"yaml"})", "format"},
           {R"({"format":[]})", "format"},
           {R"({"think":1})", "think"},
           {R"({"keep_alive":"soon"})", "keep_alive"},
           {R"({"keep_alive":[]})", "keep_alive"},
           {R"({"stream":"yes"})", "stream"},
           {R"({"tools":[{"type":"function","function":{"name":"a<b"}}]})", "tools[0].function.name"},
           {R"({"model":7})", "model"}}) {
    EXPECT_EQ(refused_field(OllamaKind::chat, body), field) << body;
  }
}

TEST(OllamaChat, CallsGetIdsAndResultsFindThem) {
  const OllamaCall call = chat_of(R"({"messages":[
    {"role":"user","content":"?"},
    {"role":"assistant","thinking":"I ask.","content":"","tool_calls":[
      {"function":{"name":"weather","arguments":{"city":"Köln"}}}, {"id":"mine","function":{"name":"clock"}}]},
    {"role":"tool","tool_name":"clock","content":"12"},
    {"role":"tool","content":"rain"},
    {"role":"tool","tool_call_id":"other","content":"x"}]})");
  const std::vector<ChatMessage>& messages = call.generate.input.messages;
  ASSERT_EQ(messages.size(), 5U);
  EXPECT_EQ(extra_of(messages[1]), boost::json::parse(R"({"reasoning_content":"I ask.","tool_calls":[
    {"id":"call00000","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Köln\"}"}},
    {"id":"mine","type":"function","function":{"name":"clock","arguments":"{}"}}]})"));
  EXPECT_EQ(extra_of(messages[2]), boost::json::parse(R"({"tool_call_id":"mine","name":"clock"})"));
  EXPECT_EQ(extra_of(messages[3]), boost::json::parse(R"({"tool_call_id":"call00000","name":"weather"})"));
  EXPECT_EQ(extra_of(messages[4]), boost::json::parse(R"({"tool_call_id":"other"})"));
}

TEST(OllamaChat, ImagesPrecedeTheText) {
  const OllamaCall call = chat_of(R"({"messages":[{"role":"system","content":"s"},
    {"role":"user","content":"what?","images":["aGk=","aG8="]}]})");
  const std::vector<InputImage>& images = call.generate.input.images;
  ASSERT_EQ(images.size(), 2U);
  EXPECT_EQ(images[1].message, 1U);
  EXPECT_EQ(images[1].at, 0U);
  EXPECT_EQ(images[1].source.kind, ImageSource::Kind::data);
  EXPECT_EQ(images[1].source.text, "aG8=");
  EXPECT_EQ(images[1].field, "messages[1].images[1]");
}

TEST(OllamaChat, ResultsOfToolsHaveImages) {
  const OllamaCall call = chat_of(R"({"messages":[{"role":"user","content":"look"},
    {"role":"tool","tool_name":"f","content":"a","images":["aGk="]}]})");
  ASSERT_EQ(call.generate.input.images.size(), 1U);
  EXPECT_EQ(call.generate.input.images[0].message, 1U);
  EXPECT_EQ(call.generate.input.messages[1].content, "a");
}

TEST(OllamaChat, HasToolsAndFormats) {
  const OllamaCall call = chat_of(R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function",
    "function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"required"})");
  EXPECT_THAT(call.generate.options.chat.tool_names, ElementsAre("f"));
  EXPECT_EQ(call.generate.options.chat.tool_choice, ToolChoice::required);
  EXPECT_EQ(chat_of(R"({"format":"json"})").generate.options.json_schema, R"({"type":"object"})");
  EXPECT_EQ(chat_of(R"({"format":{"type":"string"}})").generate.options.json_schema, R"({"type":"string"})");
  EXPECT_EQ(chat_of(R"({"format":""})").generate.options.json_schema, "");
  EXPECT_TRUE(chat_of(R"({"format":{},"uma":{"strict_schema":true}})").generate.options.strict_schema);
  EXPECT_EQ(chat_of(R"({"logprobs":true,"top_logprobs":3})").generate.options.logprobs, 3);
  EXPECT_EQ(chat_of(R"({"top_logprobs":3})").generate.options.logprobs, std::nullopt);
}

TEST(OllamaChat, ThinksAsItIsTold) {
  const auto arguments = [](std::string_view think) {
    return boost::json::parse(chat_of(std::format(R"({{"think":{}}})", think)).generate.options.chat.template_arguments);
  };
  EXPECT_EQ(arguments("true"), boost::json::parse(R"({"enable_thinking":true})"));
  EXPECT_EQ(arguments("false"), boost::json::parse(R"({"reasoning_effort":"none","enable_thinking":false})"));
  EXPECT_EQ(arguments(R"("none")"), boost::json::parse(R"({"reasoning_effort":"none","enable_thinking":false})"));
  EXPECT_EQ(arguments(R"("high")"), boost::json::parse(R"({"reasoning_effort":"high","enable_thinking":true})"));
  EXPECT_EQ(chat_of(R"({"think":""})").generate.options.chat.template_arguments, "");
  EXPECT_EQ(chat_of(R"({"think":null})").generate.options.chat.template_arguments, "");
}

TEST(OllamaChat, WithoutMessagesLoadsOrUnloads) {
  EXPECT_TRUE(chat_of(R"({"model":"m"})").is_empty);
  EXPECT_TRUE(chat_of(R"({"model":"m","messages":[]})").is_empty);
  EXPECT_EQ(chat_of(R"({"model":"m","keep_alive":0})").keep_alive_s, 0);
  EXPECT_EQ(chat_of(R"({"model":"m","keep_alive":-1})").keep_alive_s, -1);
  EXPECT_EQ(chat_of(R"({"model":"m","keep_alive":2.5})").keep_alive_s, 2.5);
  EXPECT_EQ(chat_of(R"({"model":"m","keep_alive":"5m"})").keep_alive_s, 300);
}

TEST(OllamaGenerate, WritesAPromptAsAMessage) {
  const OllamaCall call = generate_of(R"({"model":"m","prompt":"why?","system":"be brief","images":["aGk="],"suffix":"",
    "context":[],"tools":[1]})");
  EXPECT_EQ(call.generate.input.messages, (std::vector<ChatMessage>{{"system", "be brief"}, {"user", "why?"}}));
  ASSERT_EQ(call.generate.input.images.size(), 1U);
  EXPECT_EQ(call.generate.input.images[0].message, 1U);
  EXPECT_EQ(call.generate.input.images[0].field, "images[0]");
  EXPECT_EQ(call.generate.input.text, "");
  EXPECT_FALSE(call.is_empty);
}

TEST(OllamaGenerate, RawIsTheTextItself) {
  const OllamaCall call = generate_of(R"({"prompt":"once","raw":true,"system":"ignored"})");
  EXPECT_EQ(call.generate.input.text, "once");
  EXPECT_THAT(call.generate.input.messages, IsEmpty());
}

TEST(OllamaGenerate, ASuffixMakesAGap) {
  const OllamaCall call = generate_of(R"({"prompt":"int a","suffix":"return a;"})");
  EXPECT_EQ(call.generate.input.text, "int a");
  EXPECT_EQ(call.generate.input.infill->suffix, "return a;");
  EXPECT_THAT(call.generate.input.messages, IsEmpty());
  EXPECT_FALSE(generate_of(R"({"suffix":"return a;"})").is_empty);
}

TEST(OllamaGenerate, WithoutAPromptLoads) {
  EXPECT_TRUE(generate_of(R"({"model":"m"})").is_empty);
  EXPECT_TRUE(generate_of(R"({"model":"m","prompt":"","raw":true})").is_empty);
  EXPECT_FALSE(generate_of(R"({"model":"m","images":["aGk="]})").is_empty);
}

TEST(OllamaGenerate, RefusesWhatItCannotDo) {
  for (const auto& [body, field] :
       std::vector<std::pair<std::string_view, std::string_view>>{{R"({"prompt":"a","suffix":"b","system":"c"})", "system"},
                                                                  {R"({"prompt":"a","template":"{{ .Prompt }}"})", "template"},
                                                                  {R"({"prompt":"a","context":[1,2]})", "context"},
                                                                  {R"({"prompt":"a","raw":true,"images":["aGk="]})", "images"},
                                                                  {R"({"prompt":["a"]})", "prompt"}}) {
    EXPECT_EQ(refused_field(OllamaKind::generate, body), field) << body;
  }
}

TEST(OllamaEmbed, TakesOneTextOrMany) {
  const auto one = decode_ollama_embed(R"({"model":"e","input":"a","dimensions":8})");
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->embed.options.model, "e");
  EXPECT_THAT(one->embed.inputs, ElementsAre(EmbedInput("a")));
  EXPECT_EQ(one->embed.options.long_input, LongInput::truncate);
  EXPECT_EQ(one->embed.dimensions, 8);
  const auto many = decode_ollama_embed(R"({"input":["a","b"],"truncate":false,"options":{},"keep_alive":"5m"})");
  ASSERT_TRUE(many.has_value());
  EXPECT_THAT(many->embed.inputs, ElementsAre(EmbedInput("a"), EmbedInput("b")));
  EXPECT_EQ(many->embed.options.long_input, LongInput::refuse);
}

TEST(OllamaEmbed, WithoutATextLoads) {
  for (const char* body : {"{}", R"({"input":""})", R"({"input":[]})"}) {
    const auto call = decode_ollama_embed(body);
    ASSERT_TRUE(call.has_value()) << body;
    EXPECT_TRUE(call->is_empty) << body;
  }
  EXPECT_TRUE(decode_ollama_embeddings("{}")->is_empty);
  EXPECT_EQ(decode_ollama_embed(R"({"input":["a",""]})").error().field, "input[1]");
  EXPECT_EQ(decode_ollama_embed(R"({"input":7})").error().field, "input");
}

TEST(OllamaEmbed, HasAnOlderForm) {
  const auto call = decode_ollama_embeddings(R"({"model":"e","prompt":"a"})");
  ASSERT_TRUE(call.has_value());
  EXPECT_THAT(call->embed.inputs, ElementsAre(EmbedInput("a")));
  EXPECT_FALSE(call->is_empty);
}

TEST(GoDuration, HasUnitsInAnyNumber) {
  EXPECT_EQ(parse_go_duration("5m"), 300);
  EXPECT_EQ(parse_go_duration("1h30m"), 5400);
  EXPECT_EQ(parse_go_duration("1.5s"), 1.5);
  EXPECT_EQ(parse_go_duration("250ms"), 0.25);
  EXPECT_EQ(parse_go_duration("0"), 0);
  EXPECT_EQ(parse_go_duration("-1"), -1);
  EXPECT_EQ(parse_go_duration("-1m"), -60);
  EXPECT_EQ(parse_go_duration("3600"), 3600);
  for (const char* wrong : {"", "-", "m", "5 m", "5x", "inf", "nan", "--1", "1e400", "5m-1s"}) {
    EXPECT_EQ(parse_go_duration(wrong), std::nullopt) << wrong;
  }
}

TEST(OllamaPrompt, MarksInARawPromptAreTokens) {
  const auto input_of = [](std::string_view body) { return decode_ollama(OllamaKind::generate, body).value().generate.input; };
  EXPECT_TRUE(input_of(R"({"prompt":"a","raw":true})").parses_special);
  EXPECT_FALSE(input_of(R"({"prompt":"a","raw":true,"parse_special":false})").parses_special);
  EXPECT_FALSE(input_of(R"({"prompt":"a","suffix":"b"})").parses_special);
}

TEST(OllamaPrompt, WithoutATemplateTheMessagesAreOneText) {
  Input input = decode_ollama(OllamaKind::generate, R"({"prompt":"a","system":"s"})").value().generate.input;
  EXPECT_EQ(input.messages.size(), 2U);
  write_as_text(input);
  EXPECT_TRUE(input.messages.empty());
  EXPECT_EQ(input.text, "s\n\na");
  EXPECT_TRUE(input.parses_special);
}

}  // namespace
}  // namespace uma::wire
