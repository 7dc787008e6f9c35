#include "wire/openai/openai_codec.h"

#include <format>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/thinking_fields.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

RejectedBody rejected_body(CompletionKind kind, const std::string& body) {
  auto request = decode_completion(kind, body);
  if (request) {
    ADD_FAILURE() << body << " was accepted";
    return {.error = {ErrorCode::auth, ""}, .field = ""};
  }
  return std::move(request.error());
}

// --- requests

TEST(DecodeCompletion, TakesOpenAisDefaults) {
  const CompletionRequest request = chat(kMessages);
  EXPECT_EQ(request.prompts.front().messages, (std::vector<ChatMessage>{{"user", "hi"}}));
  EXPECT_EQ(request.generate.options.sampling.temperature, 1);
  EXPECT_EQ(request.generate.options.sampling.top_p, 1);
  EXPECT_FALSE(request.generate.options.stream);
  EXPECT_FALSE(request.includes_usage);
  EXPECT_EQ(request.generate.options.max_tokens, std::nullopt);
}

TEST(DecodeCompletion, TakesSamplersAtTheTopLevelAndUnderUma) {
  const SamplingParams sampling =
      chat(std::string(kMessages) + R"(,"top_k":-1,"min_p":0.1,"mirostat":2,"ignore_eos":true,"xtc_probability":0.5,)"
                                    R"("uma":{"min_p":0.2})")
          .generate.options.sampling;
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_TRUE(is_given(sampling, SamplingField::top_k));
  EXPECT_EQ(sampling.min_p, 0.2);
  EXPECT_EQ(sampling.mirostat, 2);
  EXPECT_EQ(sampling.xtc_probability, 0.5);
  EXPECT_TRUE(sampling.ignore_eos);
}

TEST(DecodeCompletion, ReadsAdapters) {
  const auto of = [](const std::string& list) { return chat(kMessages + (", \"lora\":" + list)).generate.options.adapters; };
  EXPECT_TRUE(of("[]").empty());
  const auto both = of(R"([{"name":"sql","scale":0.5},{"id":2}])");
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(both[0].name, "sql");
  EXPECT_EQ(both[0].scale, 0.5);
  EXPECT_EQ(both[1].name, "");
  EXPECT_EQ(both[1].number, 2);
  EXPECT_EQ(both[1].scale, std::nullopt);
  EXPECT_EQ(chat(kMessages + std::string(R"(,"uma":{"lora":[{"name":"sql"}]})")).generate.options.adapters.size(), 1U);
  const auto field_of = [](const std::string& rest) {
    return rejected_body(CompletionKind::chat, "{" + std::string(kMessages) + "," + rest + "}").field;
  };
  EXPECT_EQ(field_of(R"("lora":{})"), "lora");
  EXPECT_EQ(field_of(R"("lora":[1])"), "lora[0]");
  EXPECT_EQ(field_of(R"("lora":[{"scale":1}])"), "lora[0].name");
  EXPECT_EQ(field_of(R"("lora":[{"name":"a","id":1}])"), "lora[0].name");
  EXPECT_EQ(field_of(R"("lora":[{"id":-1}])"), "lora[0].id");
  EXPECT_EQ(field_of(R"("lora":[{"id":0,"scale":101}])"), "lora[0].scale");
  EXPECT_EQ(field_of(R"("uma":{"lora":[{"id":0,"scale":"1"}]})"), "uma.lora[0].scale");
  EXPECT_EQ(field_of(R"("lora":[{"id":0}],"uma":{"lora":[{"id":1}]})"), "uma.lora");
  std::string many = "\"lora\":[{\"id\":0}";
  for (int i = 0; i < 16; ++i) many += ",{\"id\":0}";
  EXPECT_EQ(field_of(many + "]"), "lora");
}

TEST(ModelsJson, AnAdapterIsAModelToo) {
  ModelInfo model{.name = "base"};
  model.adapters = {{.name = "sql"}};
  const auto all = with_adapters(std::vector{model});
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].name, "base:sql");
  EXPECT_THAT(model_json(all[1], 0), HasSubstr(R"("parent":"base")"));
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
  EXPECT_TRUE(chat(std::string(kMessages) + R"(,"uma":{"strict_schema":true})").generate.options.strict_schema);
}

TEST(DecodeCompletion, PrefersTheNewerNameOfMaxTokens) {
  EXPECT_EQ(chat(std::string(kMessages) + R"(,"max_tokens":5,"max_completion_tokens":6)").generate.options.max_tokens, 6);
}

CompletionRequest text(const std::string& fields) {
  auto request = decode_completion(CompletionKind::text, "{" + fields + "}");
  if (!request) {
    ADD_FAILURE() << fields << ": " << request.error().error.message;
    return {};
  }
  return std::move(*request);
}

TEST(DecodeCompletion, TakesPromptsInEveryForm) {
  for (const char* prompt : {R"("once")", R"(["once"])"}) {
    const CompletionRequest request = text(std::string(R"("prompt":)") + prompt);
    ASSERT_EQ(request.prompts.size(), 1U) << prompt;
    EXPECT_EQ(request.prompts.front().text, "once");
  }
  const CompletionRequest texts = text(R"("prompt":["a","b"])");
  ASSERT_EQ(texts.prompts.size(), 2U);
  EXPECT_EQ(texts.prompts[1].text, "b");
  const CompletionRequest tokens = text(R"("prompt":[1,2,3])");
  ASSERT_EQ(tokens.prompts.size(), 1U);
  EXPECT_THAT(tokens.prompts.front().tokens, ElementsAre(1, 2, 3));
  const CompletionRequest mixed = text(R"("prompt":[[1,2],"b"])");
  ASSERT_EQ(mixed.prompts.size(), 2U);
  EXPECT_THAT(mixed.prompts[0].tokens, ElementsAre(1, 2));
  EXPECT_EQ(mixed.prompts[1].text, "b");
}

TEST(DecodeCompletion, ASuffixMakesAGap) {
  const CompletionRequest request =
      decode_completion(CompletionKind::text, R"({"prompt":"int a","suffix":"return a;"})").value();
  EXPECT_EQ(request.prompts.at(0).text, "int a");
  EXPECT_EQ(request.prompts.at(0).infill->suffix, "return a;");
  EXPECT_EQ(decode_completion(CompletionKind::text, R"({"prompt":"","suffix":"b"})").value().prompts.at(0).text, "");
  EXPECT_FALSE(decode_completion(CompletionKind::text, R"({"prompt":["a"],"suffix":""})").value().prompts.at(0).infill);
  EXPECT_EQ(
      decode_completion(CompletionKind::chat, R"({"messages":[{"role":"user","content":"a"}],"suffix":"b"})").error().field,
      "suffix");
}

TEST(DecodeCompletion, CountsTheChoicesOfEachPrompt) {
  const CompletionRequest request = text(R"("prompt":["a","b"],"n":2,"best_of":2,"seed":7)");
  EXPECT_EQ(request.n, 2U);
  EXPECT_EQ(request.prompts.size(), 2U);
  EXPECT_EQ(request.generate.options.sampling.seed, 7U);
  EXPECT_EQ(chat(kMessages).n, 1U);
}

TEST(DecodeCompletion, LogprobsAreAskedForInEitherWay) {
  EXPECT_EQ(chat(kMessages).generate.options.logprobs, std::nullopt);
  EXPECT_EQ(chat(std::string(kMessages) + R"(,"logprobs":false)").generate.options.logprobs, std::nullopt);
  EXPECT_EQ(chat(std::string(kMessages) + R"(,"logprobs":true)").generate.options.logprobs, 0);
  EXPECT_EQ(chat(std::string(kMessages) + R"(,"logprobs":true,"top_logprobs":20)").generate.options.logprobs, 20);
  EXPECT_EQ(text(R"("prompt":"a")").generate.options.logprobs, std::nullopt);
  EXPECT_EQ(text(R"("prompt":"a","logprobs":0)").generate.options.logprobs, 0);
  EXPECT_EQ(text(R"("prompt":"a","logprobs":5)").generate.options.logprobs, 5);
}

TEST(DecodeCompletion, NamesTheFieldThatIsWrong) {
  const std::string messages = kMessages;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "messages"},
      {R"("messages":[])", "messages"},
      {R"("messages":[{"role":"user","content":"a"},{"role":"wizard","content":"b"}])", "messages[1].role"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"detail":"x"}}]}])",
       "messages[0].content[0].image_url.url"},
      {messages + R"(,"temperature":"hot")", "temperature"},
      {messages + R"(,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {messages + R"(,"uma":{"top_k":-1})", "uma.top_k"},
      {messages + R"(,"mirostat":3)", "mirostat"},
      {messages + R"(,"dry_sequence_breakers":[""])", "dry_sequence_breakers"},
      {messages + R"(,"uma":{"session_id":"s"})", "uma.session_id"},
      {messages + R"(,"grammar":"a","uma":{"grammar":"b"})", "uma.grammar"},
      {messages + R"(,"n":17)", "n"},
      {messages + R"(,"n":0)", "n"},
      {messages + R"(,"logprobs":1)", "logprobs"},
      {messages + R"(,"logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {messages + R"(,"top_logprobs":2)", "top_logprobs"},
      {messages + R"(,"echo":true)", "echo"},
      {messages + R"(,"tools":[{"type":"function"}])", "tools[0].function"},
      {messages + R"(,"tools":[{"type":"web_search"}])", "tools[0].type"},
      {messages + R"(,"tools":[{"type":"function","function":{"name":"a<b"}}])", "tools[0].function.name"},
      {messages + R"(,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])",
       "tools[1].function.name"},
      {messages + R"(,"tools":[{"type":"function","function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters"},
      {messages + ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"\xff\"}}]",
       "tools[0].function.description"},
      {messages + ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"x\":\"\xff\"}}]", "tools"},
      {messages + R"(,"tools":{})", "tools"},
      {messages + R"(,"tool_choice":"sometimes")", "tool_choice"},
      {messages + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})", "tool_choice.function.name"},
      {messages + R"(,"tool_choice":{"type":"allowed_tools"})", "tool_choice.tools"},
      {messages + R"(,"tool_choice":{"type":"web_search"})", "tool_choice"},
      {messages + R"(,"parallel_tool_calls":1)", "parallel_tool_calls"},
      {messages + R"(,"chat_template_kwargs":{"messages":[]})", "chat_template_kwargs.messages"},
      {messages + R"(,"chat_template_kwargs":[])", "chat_template_kwargs"},
      {R"("messages":[{"role":"user"}])", "messages[0].content"},
      {R"("messages":[{"role":"assistant"}])", "messages"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"id":true}]}])", "messages[0].tool_calls[0].id"},
      {R"("messages":[{"role":"system","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}])",
       "messages[0].content"},
      {messages + R"(,"think":7)", "think"},
      {messages + R"(,"response_format":{"type":"yaml"})", "response_format.type"},
      {messages + R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x"}})",
       "response_format.json_schema.schema"},
      {messages + R"(,"response_format":{"type":"json_object"},"uma":{"grammar":"root ::= [a]"})", "response_format"},
  };
  for (const auto& [fields, field] : cases) {
    const RejectedBody refusal = rejected_body(CompletionKind::chat, "{" + fields + "}");
    EXPECT_EQ(refusal.error.code, ErrorCode::proto_field) << fields;
    EXPECT_EQ(refusal.field, field) << fields << ": " << refusal.error.message;
    EXPECT_THAT(refusal.error.message, HasSubstr(field));
  }
  std::string many = "\"a\"";
  for (int i = 0; i < 64; ++i) many += R"(,"a")";
  for (const auto& [fields, field] :
       std::vector<std::pair<std::string, std::string>>{{R"("prompt":[5],"suffix":"x")", "suffix"},
                                                        {R"("prompt":["a","b"],"suffix":"x")", "suffix"},
                                                        {R"("prompt":"a","logprobs":6)", "logprobs"},
                                                        {R"("prompt":"a","logprobs":true)", "logprobs"},
                                                        {R"("prompt":"a","best_of":2)", "best_of"},
                                                        {R"("prompt":"a","n":3,"best_of":2)", "best_of"},
                                                        {R"("prompt":["a","a","a","a","a"],"n":16)", "n"},
                                                        {R"("prompt":"a","echo":true,"logprobs":1,"stream":true)", "echo"},
                                                        {R"("prompt":"a","suffix":"b","echo":true,"logprobs":1)", "echo"},
                                                        {R"("prompt":"a","functions":[{"name":"f"}])", "functions"},
                                                        {R"("n":1)", "prompt"},
                                                        {R"("prompt":"")", "prompt"},
                                                        {R"("prompt":[])", "prompt"},
                                                        {R"("prompt":[[]])", "prompt"},
                                                        {R"("prompt":["a",1])", "prompt"},
                                                        {R"("prompt":[1,"a"])", "prompt"},
                                                        {R"("prompt":[-1])", "prompt"},
                                                        {R"("prompt":[1.5])", "prompt"},
                                                        {R"("prompt":[2147483648])", "prompt"},
                                                        {R"("prompt":7)", "prompt"},
                                                        {R"("prompt":[)" + many + "]", "prompt"}}) {
    const RejectedBody refusal = rejected_body(CompletionKind::text, "{" + fields + "}");
    EXPECT_EQ(refusal.error.code, ErrorCode::proto_field) << fields;
    EXPECT_EQ(refusal.field, field) << fields << ": " << refusal.error.message;
  }
}

TEST(DecodeCompletion, TheNumberOfTokensHasManyNames) {
  const auto limit = [](const std::string& fields) {
    return chat(std::string(kMessages) + "," + fields).generate.options.max_tokens;
  };
  EXPECT_EQ(limit(R"("max_tokens":-1)"), std::nullopt);
  EXPECT_EQ(limit(R"("max_completion_tokens":-1)"), std::nullopt);
  EXPECT_EQ(limit(R"("max_tokens":0)"), 0);
  EXPECT_EQ(limit(R"("n_predict":7)"), 7);
  EXPECT_EQ(limit(R"("max_tokens":9999999999)"), 2147483647);
}

TEST(DecodeCompletion, EchoWithLogprobsAsksForThoseOfThePrompt) {
  const auto request = decode_completion(CompletionKind::text, R"({"prompt":[1,2],"echo":true,"logprobs":1,"max_tokens":0})");
  ASSERT_TRUE(request) << request.error().error.message;
  EXPECT_TRUE(request->echoes && request->generate.options.prompt_logprobs);
  const auto plain = decode_completion(CompletionKind::text, R"({"prompt":"a","echo":true,"stream":true})");
  EXPECT_TRUE(plain->echoes && !plain->generate.options.prompt_logprobs);
}

TEST(DecodeCompletion, ADemandForACallWithoutToolsIsAWarning) {
  const CompletionRequest request = chat(std::string(kMessages) + R"(,"tool_choice":"required")");
  EXPECT_EQ(request.generate.options.chat.tool_choice, ToolChoice::automatic);
  EXPECT_THAT(request.warnings, ElementsAre(HasSubstr("tool_choice")));
}

// Every form in which clients state a constraint of the whole reply.
TEST(DecodeCompletion, ConstraintsAreTakenInEveryForm) {
  constexpr std::string_view kSchema = R"({"type":"object","properties":{"a":{"const":1}}})";
  for (const auto& [fields, place] : std::vector<std::pair<std::string, std::string>>{
           {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":S}})",
            "response_format.json_schema.schema"},
           {R"("response_format":{"type":"json_schema","schema":S})", "response_format.schema"},
           {R"("response_format":{"type":"json_object","schema":S})", "response_format.schema"},
           {R"("response_format":{"type":"json_object","json_schema":{"schema":S}})", "response_format.json_schema.schema"},
           {R"("text":{"format":{"type":"json_schema","name":"n","schema":S}})", "text.format.schema"},
           {R"("text":{"format":{"type":"json_schema","json_schema":{"schema":S}}})", "text.format.json_schema.schema"},
           {R"("json_schema":S)", "json_schema"},
           {R"("guided_json":S)", "guided_json"},
           {R"("structured_outputs":{"json":S})", "structured_outputs.json"}}) {
    std::string body = fields;
    body.replace(body.find('S', body.find(":S")), 1, kSchema);
    const GenerateOptions options = chat(std::string(kMessages) + "," + body).generate.options;
    EXPECT_EQ(boost::json::parse(options.json_schema), boost::json::parse(kSchema)) << fields;
    EXPECT_EQ(options.schema_field, place) << fields;
  }
  const auto options = [](const std::string& fields) { return chat(std::string(kMessages) + "," + fields).generate.options; };
  EXPECT_EQ(options(R"("guided_json":"{\"type\":\"null\"}")").json_schema, R"({"type":"null"})");
  EXPECT_EQ(options(R"("structured_outputs":{"json_object":true})").json_schema, R"({"type":"object"})");
  EXPECT_EQ(options(R"("guided_choice":["red","\"q\"\n"])").grammar, R"(root ::= "red" | "\"q\"\n")");
  EXPECT_EQ(options(R"("structured_outputs":{"choice":["red"]})").grammar_field, "structured_outputs.choice");
  EXPECT_EQ(options(R"("guided_regex":"a+")").pattern, "a+");
  EXPECT_EQ(options(R"("regex":"a+")").pattern, "a+");
  EXPECT_EQ(options(R"("ebnf":"root ::= \"a\"")").grammar_field, "ebnf");
  EXPECT_EQ(options(R"("guided_grammar":"root ::= \"a\"","response_format":{"type":"text"})").grammar, "root ::= \"a\"");
  for (const auto& [fields, field] : std::vector<std::pair<std::string, std::string>>{
           {R"("guided_json":7)", "guided_json"},
           {R"("guided_choice":[])", "guided_choice"},
           {R"("guided_choice":[1])", "guided_choice"},
           {R"("json_schema":"x")", "json_schema"},
           {R"("structured_outputs":{"structural_tag":"{}"})", "structured_outputs.structural_tag"},
           {R"("structured_outputs":[1])", "structured_outputs"},
           {R"("guided_regex":"a","guided_json":{})", "guided_regex"},
           {R"("response_format":{"type":"json_object"},"json_schema":{})", "json_schema"},
           {R"("response_format":{"type":"json_object","schema":7})", "response_format.schema"}}) {
    EXPECT_EQ(rejected_body(CompletionKind::chat, "{" + std::string(kMessages) + "," + fields + "}").field, field) << fields;
  }
}

TEST(DecodeCompletion, RefusesWhatIsNoObject) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  for (const std::string& body : {std::string(), std::string("nonsense"), std::string("[]"), std::string("{} {}"), deep}) {
    const RejectedBody refusal = rejected_body(CompletionKind::chat, body);
    EXPECT_EQ(refusal.error.code, ErrorCode::proto_json);
    EXPECT_EQ(refusal.field, "");
  }
}

constexpr const char* kTools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}},"x":1.5}])";

TEST(DecodeCompletion, TakesToolsAsTheyAre) {
  const ChatOptions options =
      chat(std::string(kMessages) + R"(,"parallel_tool_calls":false,"tools":)" + kTools).generate.options.chat;
  EXPECT_EQ(boost::json::parse(options.tools), boost::json::parse(kTools));
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
  const std::vector<ChatMessage>& messages = request.prompts.front().messages;
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[0].content, "");
  EXPECT_EQ(messages[0].extra, R"({"reasoning_content":"hm","tool_calls":[{"id":"1","type":"function","function":)"
                               R"({"name":"f","arguments":"{\"a\": \"b\"}"}}]})");
  EXPECT_EQ(messages[1], (ChatMessage{"tool", "7", R"({"tool_call_id":"1"})"}));
  EXPECT_EQ(messages[2], (ChatMessage{"user", "hi"}));
}

TEST(DecodeCompletion, DropsTheBillingLineThatRoutersPassOn) {
  const auto system = [](const std::string& content) {
    return chat(R"("messages":[{"role":"system","content":)" + content + R"(},{"role":"user","content":"hi"}])")
        .prompts.front()
        .messages.front()
        .content;
  };
  EXPECT_EQ(system(R"("x-anthropic-billing-header: a;\nbe brief")"), "be brief");
  EXPECT_EQ(system(R"([{"type":"text","text":"x-anthropic-billing-header: a;"},{"type":"text","text":"be brief"}])"),
            "be brief");
  EXPECT_EQ(system(R"("a x-anthropic-billing-header: b")"), "a x-anthropic-billing-header: b");
}

TEST(DecodeCompletion, ABudgetOfThoughtsHasManyNames) {
  const auto budget = [](const std::string& fields) {
    return chat(std::string(kMessages) + "," + fields).generate.options.chat.thinking_budget;
  };
  EXPECT_EQ(budget(R"("n":1)"), std::nullopt);
  for (const std::string_view name : std::span(kThinkingFields).first(kBudgetFields)) {
    EXPECT_EQ(budget(std::format(R"("{}":100)", name)), 100) << name;
    EXPECT_EQ(budget(std::format(R"("{}":-1)", name)), -1) << name;
    EXPECT_EQ(budget(std::format(R"("{}":null)", name)), std::nullopt) << name;
    EXPECT_EQ(rejected_body(CompletionKind::chat, std::format(R"({{{},"{}":-2}})", kMessages, name)).field, name);
  }
  EXPECT_EQ(budget(R"("thinking_token_budget":2,"thinking_budget":1)"), 1) << "the first in the list";
  EXPECT_EQ(budget(R"("reasoning":{"max_tokens":2000})"), 2000);
  EXPECT_EQ(budget(R"("thinking":{"type":"enabled","budget_tokens":1024})"), 1024);
  EXPECT_EQ(budget(R"("thinking":{"type":"disabled","budget_tokens":1024})"), std::nullopt);
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
  EXPECT_EQ(arguments(R"("enable_thinking":false)"), R"({"enable_thinking":false})");
  EXPECT_EQ(arguments(R"("thinking":{"type":"enabled"})"), R"({"enable_thinking":true})");
  EXPECT_EQ(arguments(R"("thinking":{"type":"disabled"},"reasoning":{"enabled":true})"), R"({"enable_thinking":true})");
  EXPECT_EQ(arguments(R"("reasoning":{"effort":"high","exclude":true})"), R"({"reasoning_effort":"high"})");
  EXPECT_FALSE(chat(std::string(kMessages) + R"(,"uma":{"split_reasoning":false})").generate.options.chat.splits_reasoning);
}

TEST(DecodeCompletion, ToolsBelongToChats) {
  EXPECT_EQ(rejected_body(CompletionKind::text, std::string(R"({"prompt":"a","tools":)") + kTools + "}").field, "tools");
}

// --- marks in prompts

bool prompt_parses_special(CompletionKind kind, std::string_view body) {
  const auto call = decode_completion(kind, body);
  EXPECT_TRUE(call) << body;
  return call && call->prompts.front().parses_special;
}

TEST(DecodeCompletion, MarksInATextPromptAreTokens) {
  using enum CompletionKind;
  EXPECT_TRUE(prompt_parses_special(text, R"({"prompt":"a"})"));
  EXPECT_FALSE(prompt_parses_special(text, R"({"prompt":"a","parse_special":false})"));
  EXPECT_FALSE(prompt_parses_special(text, R"({"prompt":"a","uma":{"parse_special":false}})"));
  EXPECT_FALSE(prompt_parses_special(text, R"({"prompt":"a","suffix":"b"})")) << "the texts around a gap are the user's";
  EXPECT_TRUE(prompt_parses_special(text, R"({"prompt":"a","suffix":"b","parse_special":true})"));
  EXPECT_FALSE(prompt_parses_special(chat, R"({"messages":[{"role":"user","content":"a"}]})"));
}

TEST(DecodeCompletion, MarksInMessagesAreNeverTokens) {
  const auto call =
      decode_completion(CompletionKind::chat, R"({"messages":[{"role":"user","content":"a"}],"uma":{"parse_special":true}})");
  ASSERT_FALSE(call);
  EXPECT_EQ(call.error().field, "parse_special");
  const auto twice =
      decode_completion(CompletionKind::text, R"({"prompt":"a","parse_special":true,"uma":{"parse_special":true}})");
  EXPECT_EQ(twice.error().field, "parse_special");
}

TEST(DecodeCompletion, ATemplateIsNamedBesideItsArguments) {
  const auto named = [](std::string_view fields) {
    return decode_completion(CompletionKind::chat,
                             std::string(R"({"messages":[{"role":"user","content":"a"}],)") + std::string(fields) + "}");
  };
  EXPECT_EQ(named(R"("chat_template":"rag","documents":[{"text":"d"}])")->generate.options.chat.template_arguments,
            R"({"documents":[{"text":"d"}],"chat_template":"rag"})");
  EXPECT_EQ(named(R"("chat_template":"")")->generate.options.chat.template_arguments, "");
  EXPECT_EQ(named(R"("chat_template_kwargs":{"chat_template":1})").error().field, "chat_template");
}

// --- models

TEST(ModelJson, HasOneWindowUnderEveryName) {
  ModelInfo model{.name = "tiny", .state = ModelState::ready, .bytes = 9, .parameters = 7};
  model.sequence_tokens_max = 4096;
  model.train_tokens = 131'072;
  model.calls_tools = model.reads_images = model.reasons = true;
  model.memory_bytes = 12;
  model.idle_unload_s = 60;
  EXPECT_EQ(boost::json::parse(model_json(model, 1'767'225'600)),
            boost::json::parse(
                R"({"id":"tiny","object":"model","created":1767225600,"owned_by":"uma","type":"model",)"
                R"("display_name":"tiny","created_at":"2026-01-01T00:00:00Z","max_input_tokens":4096,)"
                R"("max_tokens":4096,"context_length":4096,"max_model_len":4096,"meta":{"n_ctx":4096,)"
                R"("n_ctx_train":131072,"n_params":7,"size":9},"state":"ready","status":{"value":"loaded"},)"
                R"("memory_bytes":12,"idle_unload_s":60,"capabilities":["completion","tools","vision","thinking"],)"
                R"("architecture":{"modality":"text+image->text","input_modalities":["text","image"],)"
                R"("output_modalities":["text"]},"modalities":{"input":["text","image"],"output":["text"]},)"
                R"("supported_parameters":["max_tokens","max_completion_tokens","temperature","top_p","top_k","min_p",)"
                R"("typical_p","repeat_penalty","seed","stop","frequency_penalty","presence_penalty","logit_bias",)"
                R"("logprobs","top_logprobs","n","response_format","structured_outputs","grammar","tools",)"
                R"("tool_choice","parallel_tool_calls","reasoning","reasoning_effort","thinking_budget"]})"));
  model.state = ModelState::unloaded;
  EXPECT_THAT(model_json(model, 0), HasSubstr(R"("status":{"value":"unloaded"})"));
  model.state = ModelState::failed;
  model.failure = "no memory";
  EXPECT_THAT(model_json(model, 0), HasSubstr(R"("status":{"value":"unloaded","failed":true},"problem":"no memory")"));
  model.problem = "the file is cut";
  EXPECT_THAT(model_json(model, 0), HasSubstr(R"("problem":"the file is cut")")) << "a known problem comes first";
  model.capability = Capability::text_embedding;
  EXPECT_THAT(model_json(model, 0), HasSubstr(R"("capabilities":["embedding"])"));
}

TEST(ModelsJson, IsAListOfBothApis) {
  const std::vector<ModelInfo> models = {{.name = "a"}, {.name = "b"}};
  EXPECT_THAT(models_json(models, 0), HasSubstr(R"(],"has_more":false,"first_id":"a","last_id":"b"})"));
  EXPECT_EQ(models_json({}, 0), R"({"object":"list","data":[],"has_more":false})");
  const std::vector<PullInProgress> none;
  EXPECT_EQ(models_json({}, 0, &none), R"({"object":"list","data":[],"has_more":false,"uma":{"pulls":[]}})");
}

// --- errors

TEST(ErrorJson, IsOpenAis) {
  EXPECT_EQ(error_json({ErrorCode::proto_field, "no \"x\""}, 400, "x"),
            R"({"error":{"message":"no \"x\"","type":"invalid_request_error","param":"x","code":"E_PROTO_003"}})");
  EXPECT_THAT(error_json({ErrorCode::io_failed, ""}, 500, ""), HasSubstr(R"("type":"server_error","param":null)"));
}

}  // namespace
}  // namespace uma::wire
