#include "wire/openai/responses_decoder.h"

#include <format>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/generate_fields.h"
#include "wire/openai/responses_decoder_test_support.h"
#include "wire/openai/sealed_reasoning.h"

namespace uma::wire {
namespace {

using ::testing::_;
using ::testing::ElementsAre;

boost::json::value repeated(const ResponseCall& call) {
  return boost::json::parse(call.request + "}");
}

TEST(ResponsesDecoder, AnInputAloneBeginsSomethingNew) {
  const ResponseCall call = decoded(R"({"model":"tiny","input":"Hello"})");
  EXPECT_EQ(call.generate.model, "tiny");
  EXPECT_EQ(call.generate.session, "");
  EXPECT_THAT(call.generate.input.messages, ElementsAre(ChatMessage{"user", "Hello"}));
  EXPECT_EQ(call.generate.options.sampling.temperature, 1);
  EXPECT_FALSE(call.generate.options.stream);
  ASSERT_TRUE(call.generate.response);
  EXPECT_EQ(call.generate.response->id, "1111111111111111");
  EXPECT_EQ(call.generate.response->request, call.request);
  EXPECT_FALSE(call.generate.response->instructions || call.generate.response->on_full);
}

TEST(ResponsesDecoder, ItemsAreMessages) {
  const ResponseCall call = decoded(R"({"input":[
      {"role":"developer","content":"Be brief"},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"id":"msg_1","type":"message","status":"completed","role":"assistant",
       "content":[{"type":"output_text","text":"c","annotations":[]}]}]})");
  EXPECT_THAT(call.generate.input.messages,
              ElementsAre(ChatMessage{"system", "Be brief"}, ChatMessage{"user", "ab"}, ChatMessage{"assistant", "c"}));
}

TEST(ResponsesDecoder, DropsTheBillingLineThatRoutersPassOn) {
  const ResponseCall call = decoded(R"({"instructions":"x-anthropic-billing-header: a;\nBe brief","input":[
      {"role":"developer","content":[{"type":"input_text","text":"x-anthropic-billing-header: b"},{"type":"input_text","text":"c"}]},
      {"role":"user","content":"hi"}]})");
  EXPECT_EQ(call.generate.response->instructions, "Be brief");
  EXPECT_EQ(call.generate.input.messages.front(), (ChatMessage{"system", "c"}));
}

TEST(ResponsesDecoder, WhatAnAssistantThinksSaysAndCallsIsOneMessage) {
  const ResponseCall call = decoded(R"({"input":[
      {"role":"user","content":"Rain?"},
      {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"I ask."}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Wait."}]},
      {"type":"function_call","id":"fc_1","status":"completed","call_id":"a1","name":"weather","arguments":"{\"city\": \"Köln\"}"},
      {"type":"function_call","call_id":"a2","name":"clock"},
      {"type":"function_call_output","call_id":"a1","output":"wet"},
      {"type":"function_call_output","call_id":"a2","output":[{"type":"input_text","text":"la"},{"type":"input_text","text":"te"}]},
      {"type":"reasoning","summary":[{"type":"summary_text","text":"x"}],"encrypted_content":"gAAA"},
      {"type":"function_call","call_id":"a3","name":"clock","arguments":"{}"},
      {"role":"assistant","content":"So."},
      {"role":"assistant","content":"It is late."}]})");
  const ChatMessage calls{"assistant", "Wait.",
                          R"({"reasoning_content":"I ask.","tool_calls":[{"id":"a1","type":"function","function":)"
                          R"({"name":"weather","arguments":"{\"city\": \"Köln\"}"}},)"
                          R"({"id":"a2","type":"function","function":{"name":"clock","arguments":"{}"}}]})"};
  EXPECT_THAT(
      call.generate.input.messages,
      ElementsAre(ChatMessage{"user", "Rain?"}, calls, ChatMessage{"tool", "wet", R"({"tool_call_id":"a1"})"},
                  ChatMessage{"tool", "late", R"({"tool_call_id":"a2"})"},
                  ChatMessage{"assistant", "",
                              R"({"tool_calls":[{"id":"a3","type":"function","function":{"name":"clock","arguments":"{}"}}]})"},
                  ChatMessage{"assistant", "So."}, ChatMessage{"assistant", "It is late."}));
}

constexpr std::string_view kTool =
    R"({"type":"function","name":"weather","description":"Tells it","parameters":{"type":"object"},"strict":true})";

TEST(ResponsesDecoder, ThoughtsBelongToTheNextTextOfTheAssistant) {
  const auto messages = [](std::string_view items) {
    return decoded(std::format(R"({{"input":[{{"role":"user","content":"a"}},{}]}})", items)).generate.input.messages;
  };
  const std::string thought = R"({"type":"reasoning","content":[{"type":"reasoning_text","text":"so"}]})";
  const std::string empty = R"({"role":"assistant","content":""})";
  const std::string text = R"({"role":"assistant","content":"x"})";
  const ChatMessage joined{"assistant", "x", R"({"reasoning_content":"so"})"};
  EXPECT_THAT(messages(thought + "," + text), ElementsAre(_, joined));
  EXPECT_THAT(messages(thought + "," + empty + "," + text), ElementsAre(_, joined))
      << "an empty text between them ends nothing";
  const std::string other =
      R"({"role":"assistant","content":[{"type":"thinking","thinking":"no"},{"type":"text","text":"y"}]})";
  EXPECT_THAT(messages(thought + "," + other), ElementsAre(_, ChatMessage{"assistant", "", R"({"reasoning_content":"so"})"},
                                                           ChatMessage{"assistant", "y", R"({"reasoning_content":"no"})"}))
      << "other thoughts are lost by no text";
}

TEST(ResponsesDecoder, ToolsAreThoseOfChatCompletions) {
  const auto with_tools = [](std::string_view fields) {
    return decoded(std::format(R"({{"input":"x","tools":[{},{{"type":"function","name":"clock"}}]{}}})", kTool, fields));
  };
  const ResponseCall call = with_tools("");
  const ChatOptions& chat = call.generate.options.chat;
  EXPECT_EQ(chat.tools, R"([{"type":"function","function":{"name":"weather","description":"Tells it",)"
                        R"("parameters":{"type":"object"},"strict":true}},{"type":"function","function":{"name":"clock"}}])");
  EXPECT_THAT(chat.tool_names, ElementsAre("weather", "clock"));
  EXPECT_EQ(chat.tool_choice, ToolChoice::automatic);
  EXPECT_TRUE(chat.has_parallel_calls && chat.splits_reasoning);
  const boost::json::value said = repeated(call);
  EXPECT_EQ(boost::json::serialize(said.at("tools").at(0)), kTool);
  EXPECT_TRUE(said.at("tools").at(1).at("parameters").is_null() && said.at("tools").at(1).at("strict").is_null());
  const ResponseCall more = decoded(R"({"input":"x","tools":[{"type":"function","name":"clock","x":0}]})");
  EXPECT_EQ(boost::json::serialize(repeated(more).at("tools").at(0)),
            R"({"type":"function","name":"clock","parameters":null,"strict":null})")
      << "fields that OpenAI's shape does not have are not repeated";
  EXPECT_EQ(said.at("tool_choice"), "auto");

  const ResponseCall named =
      with_tools(R"(,"tool_choice":{"type":"function","name":"clock","x":1},"parallel_tool_calls":false)");
  EXPECT_EQ(named.generate.options.chat.tool_choice, ToolChoice::named);
  EXPECT_EQ(named.generate.options.chat.tool_name, "clock");
  EXPECT_EQ(boost::json::serialize(repeated(named).at("tool_choice")), R"({"type":"function","name":"clock"})");
  EXPECT_EQ(repeated(named).at("parallel_tool_calls"), false);
  EXPECT_FALSE(named.generate.options.chat.has_parallel_calls);
  EXPECT_EQ(with_tools(R"(,"tool_choice":"required")").generate.options.chat.tool_choice, ToolChoice::required);
  const ResponseCall none = with_tools(R"(,"tool_choice":"none")");
  EXPECT_EQ(none.generate.options.chat.tools, "") << "the model does not hear of them";
  EXPECT_EQ(repeated(none).at("tool_choice"), "none");
  EXPECT_EQ(repeated(none).at("tools").as_array().size(), 2u);
}

TEST(ResponsesDecoder, AFormatIsAGrammarOrASchema) {
  const ResponseCall schema = decoded(
      R"({"input":"x","text":{"format":{"type":"json_schema","name":"n","strict":true,"schema":{"type":"integer"}},"verbosity":"low"}})");
  EXPECT_EQ(schema.generate.options.json_schema, R"({"type":"integer"})");
  EXPECT_EQ(repeated(schema).at("text").at("format").at("name"), "n");
  const ResponseCall plain = decoded(R"({"input":"x","text":{"format":{"type":"text","x":[1]}}})");
  EXPECT_EQ(boost::json::serialize(repeated(plain).at("text").at("format")), R"({"type":"text"})");
  EXPECT_EQ(decoded(R"({"input":"x","text":{"format":{"type":"json_object"}}})").generate.options.json_schema,
            R"({"type":"object"})");
  EXPECT_EQ(decoded(R"({"input":"x","uma":{"grammar":"root ::= \"a\""}})").generate.options.grammar, "root ::= \"a\"");
}

TEST(ResponsesDecoder, EffortIsASwitchOfTheTemplate) {
  const ResponseCall none = decoded(R"({"input":"x","reasoning":{"effort":"none","summary":"auto"}})");
  EXPECT_EQ(none.generate.options.chat.template_arguments, R"({"reasoning_effort":"none","enable_thinking":false})");
  EXPECT_EQ(boost::json::serialize(repeated(none).at("reasoning")), R"({"effort":"none","summary":null})");
  EXPECT_EQ(decoded(R"({"input":"x","reasoning":{"effort":"low","max_tokens":64}})").generate.options.chat.thinking_budget, 64);
  EXPECT_EQ(decoded(R"({"input":"x","thinking_budget":32})").generate.options.chat.thinking_budget, 32);
  EXPECT_EQ(decoded(R"({"input":"x","reasoning":{"effort":"low"}})").generate.options.chat.template_arguments,
            R"({"reasoning_effort":"low"})");
  EXPECT_FALSE(decoded(R"({"input":"x","uma":{"split_reasoning":false}})").generate.options.chat.splits_reasoning);
}

TEST(ResponsesDecoder, AResponseIsContinuedByItsId) {
  const ResponseCall call = decoded(R"({"input":"x","previous_response_id":")" + kResponse +
                                    R"(","instructions":"Sing","truncation":"auto","max_output_tokens":9,"top_p":0.5,
                                     "temperature":0,"stream":true,"metadata":{"a\"b":"c\n"},"uma":{"top_k":3}})");
  EXPECT_EQ(call.generate.session, kSession);
  EXPECT_EQ(call.generate.response->previous, kOwn);
  EXPECT_EQ(call.generate.response->instructions, "Sing");
  EXPECT_EQ(call.generate.response->on_full, OnFull::shift);
  EXPECT_EQ(call.generate.options.max_tokens, 9);
  EXPECT_EQ(call.generate.options.sampling.top_k, 3);
  EXPECT_TRUE(call.generate.options.stream);
  const boost::json::value said = repeated(call);
  EXPECT_EQ(said.at("previous_response_id"), boost::json::value(kResponse));
  EXPECT_EQ(said.at("instructions"), "Sing");
  EXPECT_EQ(said.at("truncation"), "auto");
  EXPECT_EQ(said.at("max_output_tokens"), 9);
  EXPECT_EQ(boost::json::serialize(said.at("metadata")), R"({"a\"b":"c\n"})");
  EXPECT_TRUE(said.at("conversation").is_null());
}

TEST(ResponsesDecoder, AConversationIsNamedInTwoWays) {
  for (const std::string& value : {"\"" + kConversation + "\"", "{\"id\":\"" + kConversation + "\"}"}) {
    const ResponseCall call = decoded(R"({"input":"x","conversation":)" + value + "}");
    EXPECT_EQ(call.generate.session, kSession);
    EXPECT_EQ(call.generate.response->previous, "");
    EXPECT_EQ(repeated(call).at("conversation").at("id"), boost::json::value(kConversation));
  }
}

TEST(ResponsesDecoder, WhatIsNotStoredAndContinuesNothingIsNoResponseOfASession) {
  const ResponseCall call = decoded(R"({"input":"x","store":false,"instructions":"Sing"})");
  EXPECT_FALSE(call.generate.response);
  EXPECT_THAT(call.generate.input.messages, ElementsAre(ChatMessage{"system", "Sing"}, ChatMessage{"user", "x"}));
  EXPECT_EQ(repeated(call).at("store"), false);
  const ResponseCall continued = decoded(R"({"input":"x","store":false,"previous_response_id":")" + kResponse + "\"}");
  ASSERT_TRUE(continued.generate.response);
  EXPECT_FALSE(continued.generate.response->is_kept);
}

TEST(ResponsesDecoder, CallsOfEveryKindAreCallsOfFunctions) {
  const ResponseCall call = decoded(R"({"input":[{"role":"user","content":"a"},
      {"type":"function_call","call_id":"1","name":"wait","namespace":"mcp__x","arguments":"{}"},
      {"type":"custom_tool_call","call_id":"2","name":"patch","input":"*** Begin"},
      {"type":"web_search_call","id":"ws"},
      {"type":"function_call_output","call_id":"1","output":"b"},
      {"type":"custom_tool_call_output","call_id":"2","output":"c"}]})");
  const std::vector<ChatMessage>& messages = call.generate.input.messages;
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_THAT(messages[1].extra, ::testing::HasSubstr(R"("name":"mcp__x__wait")"));
  EXPECT_THAT(messages[1].extra, ::testing::HasSubstr(R"({\"input\":\"*** Begin\"})"));
  EXPECT_EQ(messages[3].content, "c");
}

TEST(ResponsesDecoder, EncryptedReasoningIsReadBack) {
  const std::string sealed = sealed_reasoning("Let me think");
  const ResponseCall call = decoded(R"({"include":["reasoning.encrypted_content"],"input":[{"role":"user","content":"a"},
      {"type":"reasoning","summary":[],"encrypted_content":")" +
                                    sealed + R"("},{"role":"assistant","content":"b"},
      {"role":"user","content":"c"}]})");
  EXPECT_TRUE(call.seals_reasoning);
  EXPECT_THAT(call.generate.input.messages[1].extra, ::testing::HasSubstr(R"("reasoning_content":"Let me think")"));
}

TEST(ResponsesDecoder, AToolIsChosenByItsOwnName) {
  const std::string tools =
      R"("tools":[{"type":"custom","name":"patch"},{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}])";
  EXPECT_EQ(
      decoded(R"({"input":"x","tool_choice":{"type":"custom","name":"patch"},)" + tools + "}").generate.options.chat.tool_name,
      "patch");
  const ResponseCall call =
      decoded(R"({"input":"x","tool_choice":{"type":"function","namespace":"n","name":"f"},)" + tools + "}");
  EXPECT_EQ(call.generate.options.chat.tool_name, "n__f");
  EXPECT_EQ(repeated(call).at("tool_choice").at("namespace"), "n");
}

TEST(ResponsesDecoder, LogprobsAreIncludedByName) {
  EXPECT_EQ(decoded(R"({"input":"x","n":1})").generate.options.logprobs, std::nullopt);
  EXPECT_EQ(decoded(R"({"input":"x","include":["message.output_text.logprobs"]})").generate.options.logprobs, 0);
  EXPECT_EQ(decoded(R"({"input":"x","include":["message.output_text.logprobs"],"top_logprobs":3})").generate.options.logprobs,
            3);
}

TEST(ResponsesDecoder, ManyToolsInNamespacesArePassedOn) {
  const auto body_of = [](int count) {
    std::string tools;
    for (int i = 0; i < count; ++i) tools += std::format(R"({}{{"type":"function","name":"f{}"}})", i > 0 ? "," : "", i);
    return R"({"input":"x","tools":[{"type":"web_search"},{"type":"namespace","name":"n","tools":[)" + tools + "]}]}";
  };
  EXPECT_EQ(decoded(body_of(512)).generate.options.chat.tool_names.size(), 512U);
  EXPECT_EQ(rejected(body_of(513)), std::pair(ErrorCode::proto_field, std::string("tools")));
}

TEST(ResponsesDecoder, EmptyValuesOfWhatIsNotServedAreAccepted) {
  decoded(R"({"input":"x","tools":[],"tool_choice":"auto","reasoning":{"effort":null},"background":false,
              "include":["reasoning.encrypted_content","code_interpreter_call.outputs"],"max_tool_calls":null,
              "text":{"format":{"type":"text"}},"prompt":null,"top_logprobs":0,"user":"me","service_tier":"auto",
              "parallel_tool_calls":true,"unknown":{"a":1},"previous_response_id":null,"conversation":null,
              "instructions":null,"metadata":null,"store":null})");
}

TEST(ResponsesDecoder, AFormatOfChatCompletionsIsTaken) {
  const ResponseCall call =
      decoded(R"({"input":"x","response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"null"}}}})");
  EXPECT_EQ(call.generate.options.json_schema, R"({"type":"null"})");
  EXPECT_EQ(repeated(call).at("text").at("format"),
            boost::json::parse(R"({"type":"json_schema","name":"n","schema":{"type":"null"}})"));
}

TEST(ResponsesDecoder, WhatIsLeftOutIsSaid) {
  const ResponseCall call = decoded(R"({"input":"x","tools":[{"type":"web_search"}],"tool_choice":"required","surprise":1})");
  EXPECT_EQ(call.warnings, (std::vector<std::string>{"unknown fields are ignored: surprise", std::string(kNoToolsWarning),
                                                     "the tool web_search is not available on this server"}));
}

TEST(ResponsesDecoder, TokensAreCountedOfWholeInputsOnly) {
  const auto call = decode_token_count(R"({"input":"x","instructions":"Be brief","model":"m"})");
  ASSERT_TRUE(call);
  EXPECT_FALSE(call->generate.response);
  EXPECT_EQ(call->generate.input.messages, (std::vector<ChatMessage>{{"system", "Be brief"}, {"user", "x"}}));
  EXPECT_EQ(decode_token_count(R"({"input":"x","conversation":"conv_1"})").error().field, "conversation");
  EXPECT_EQ(decode_token_count("{}").error().field, "input");
}

TEST(ResponsesDecoder, InputOfAConversationMayWait) {
  EXPECT_TRUE(decoded(R"({"conversation":")" + kConversation + "\"}").generate.input.empty());
  const ResponseCall again = decoded(R"({"conversation":")" + kConversation + R"(","uma":{"regenerate":true}})");
  EXPECT_TRUE(again.generate.regenerate && again.generate.input.empty() && again.generate.response);
  EXPECT_EQ(rejected("{}"), std::pair(ErrorCode::proto_field, std::string("input")));
  EXPECT_EQ(rejected(R"({"previous_response_id":")" + kResponse + "\"}"),
            std::pair(ErrorCode::proto_field, std::string("input")));
  EXPECT_TRUE(decoded(R"({"input":"x","background":true,"stream":true})").generate.options.stream);
}

TEST(ResponsesDecoder, AResponseIsReadAsAnObjectOrAsAStream) {
  EXPECT_FALSE(decode_response_query("")->is_stream);
  EXPECT_FALSE(decode_response_query("stream=false&include=x")->is_stream);
  EXPECT_EQ(decode_response_query("stream=true")->after, std::nullopt);
  EXPECT_EQ(decode_response_query("stream=true&starting_after=7")->after, 7u);
  for (const auto& [query, field] : std::vector<std::pair<std::string, std::string>>{
           {"stream=1", "stream"},
           {"starting_after=7", "starting_after"},
           {"stream=true&starting_after=-1", "starting_after"},
           {"stream=true&starting_after=7.5", "starting_after"},
           {"stream=true&starting_after=99999999999999999999", "starting_after"}}) {
    EXPECT_EQ(decode_response_query(query).error().field, field) << query;
  }
}

TEST(ResponsesDecoder, WhatWouldChangeTheAnswerIsRefusedByName) {
  for (const auto& [fields, field] : std::vector<std::pair<std::string, std::string>>{
           {R"("tools":[{"type":"teleport","name":"x"}])", "tools[0].type"},
           {R"("tools":[{"type":"function"}])", "tools[0].name"},
           {R"("tools":[{"type":"function","name":"a<b"}])", "tools[0].name"},
           {R"("tools":[{"type":"function","name":"a","parameters":[]}])", "tools[0].parameters"},
           {R"("tools":[{"type":"function","name":"a"},{"type":"function","name":"a"}])", "tools[1].name"},
           {R"("tool_choice":{"type":"function","name":"a"})", "tool_choice.name"},
           {R"("tool_choice":{"type":"allowed_tools"})", "tool_choice.tools"},
           {R"("max_tool_calls":"2")", "max_tool_calls"},
           {R"("prompt_cache_key":1)", "prompt_cache_key"},
           {R"("safety_identifier":")" + std::string(513, 'x') + "\"", "safety_identifier"},
           {R"("moderation":{"model":"m"})", "moderation"},
           {R"("response_format":{"type":"json_object"},"text":{"format":{"type":"json_object"}})", "text.format"},
           {R"("include":["message.output_text.logprobs"],"background":true)", "include"},
           {R"("include":["message.output_text.logprobs"],"top_logprobs":21)", "top_logprobs"},
           {R"("n":2)", "n"},
           {R"("input":[{"role":"user","content":[{"type":"input_image","file_id":"file-1"}]}])",
            "input[0].content[0].file_id"},
           {R"("reasoning":{"effort":1})", "reasoning.effort"},
           {R"("uma":{"regenerate":true})", "uma.regenerate"},
           {R"("conversation":"conv_0123456789abcdef0123456789abcdef","uma":{"regenerate":true})", "uma.regenerate"},
           {R"("uma":{"regenerate":1})", "uma.regenerate"},
           {R"("background":true,"store":false)", "background"},
           {R"("prompt":{"id":"p"})", "prompt"},
           {R"("top_logprobs":2)", "top_logprobs"},
           {R"("text":{"format":{"type":"xml"}})", "text.format.type"},
           {R"("text":{"format":{"type":"json_schema"}})", "text.format.schema"},
           {"\"text\":{\"format\":{\"type\":\"text\",\"name\":\"\xff\"}}", "text.format"},
           {R"("text":{"format":{"type":"json_object"}},"uma":{"grammar":"root ::= \"a\""})", "text.format"},
           {R"("truncation":"some")", "truncation"},
           {R"("store":"yes")", "store"},
           {R"("instructions":["a"])", "instructions"},
           {R"("temperature":"hot")", "temperature"},
           {R"("max_output_tokens":0)", "max_output_tokens"},
           {R"("metadata":{"a":1})", "metadata"},
           {R"("metadata":{"":"a"})", "metadata"},
           {R"("metadata":[])", "metadata"},
           {R"("conversation":{})", "conversation.id"},
           {R"("uma":{"session_id":"a"})", "uma.session_id"}}) {
    EXPECT_EQ(rejected("{\"input\":\"x\"," + fields + "}"), std::pair(ErrorCode::proto_field, field)) << fields;
  }
  for (const auto& [input, field] : std::vector<std::pair<std::string, std::string>>{
           {"\"\"", "input"},
           {"[]", "input"},
           {"7", "input"},
           {"[\"a\"]", "input[0]"},
           {R"([{"role":"user","content":"a"},{"role":"king","content":"a"}])", "input[1].role"},
           {R"([{"role":"user"}])", "input[0].content"},
           {R"([{"role":"user","content":[{"type":"input_image"}]}])", "input[0].content[0].image_url"},
           {R"([{"role":"user","content":[{"type":"input_image","image_url":{}}]}])", "input[0].content[0].image_url.url"},
           {R"([{"role":"user","content":[{"type":"input_image","file_id":"file-1"}]}])", "input[0].content[0].file_id"},
           {R"([{"role":"user","content":[{"type":"input_file","file_id":"file-1"}]}])", "input[0].content"},
           {R"([{"role":"system","content":[{"type":"input_image","image_url":"x"}]}])", "input[0].content"},
           {R"([{"type":"function_call","call_id":true}])", "input[0].call_id"},
           {R"([{"type":"reasoning","content":[{"type":"x"}]}])", "input"},
           {R"([{"type":"reasoning","summary":[],"encrypted_content":"x"}])", "input"},
           {R"([{"type":"web_search_call","id":"a"}])", "input"},
           {R"([{"type":"teleport_call","id":"a"}])", "input[0].type"}}) {
    EXPECT_EQ(rejected("{\"input\":" + input + "}"), std::pair(ErrorCode::proto_field, field)) << input;
  }
  EXPECT_EQ(rejected("{}"), std::pair(ErrorCode::proto_field, std::string("input")));
  EXPECT_EQ(rejected("[]").first, ErrorCode::proto_json);
  EXPECT_EQ(rejected("{").first, ErrorCode::proto_json);
  std::string many = "{\"input\":\"x\",\"metadata\":{";
  for (int i = 0; i < 17; ++i) many += std::format("{}\"k{}\":\"v\"", i == 0 ? "" : ",", i);
  EXPECT_EQ(rejected(many + "}}").second, "metadata");
}

TEST(ResponsesDecoder, AnIdThatCannotBeIsUnknown) {
  for (const std::string& id : {std::string("resp_1"), kConversation, std::string("../x"), kResponse + "\\u0000"}) {
    EXPECT_EQ(rejected(R"({"input":"x","previous_response_id":")" + id + "\"}").second, "previous_response_id") << id;
    EXPECT_EQ(rejected(R"({"input":"x","conversation":")" + (id == kConversation ? kResponse : id) + "\"}").second,
              "conversation")
        << id;
  }
  EXPECT_EQ(rejected(R"({"input":"x","previous_response_id":"resp_1"})").first, ErrorCode::session_unknown);
  EXPECT_EQ(rejected(R"({"input":"x","conversation":"conv_1"})").first, ErrorCode::session_unknown);
  EXPECT_EQ(rejected(R"({"input":"x","conversation":")" + kConversation + R"(","previous_response_id":")" + kResponse + "\"}"),
            std::pair(ErrorCode::proto_field, std::string("previous_response_id")));
}

TEST(ResponsesDecoder, AConversationBeginsWithItsItems) {
  const auto empty = decode_conversation("");
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->mode, SessionMode::chat);
  EXPECT_EQ(empty->metadata, "{}");
  const auto made = decode_conversation(R"({"items":[{"role":"user","content":"a"}],"metadata":{"k":"v"}})");
  ASSERT_TRUE(made);
  EXPECT_THAT(made->messages, ElementsAre(ChatMessage{"user", "a"}));
  EXPECT_EQ(made->metadata, R"({"k":"v"})");
  EXPECT_EQ(decode_conversation(R"({"items":[{"role":"user"}]})").error().field, "items[0].content");
  EXPECT_EQ(decode_metadata("{}").error().field, "metadata");
  EXPECT_EQ(decode_items(R"({"items":[]})").error().field, "items");
}

TEST(ResponsesDecoder, APageIsChosenByTheQuery) {
  EXPECT_EQ(decode_page("")->limit, 20u);
  const ListPage page = decode_page("include[]=x&limit=7&order=asc&after=msg_1%5F2&limit=9").value();
  EXPECT_EQ(page.limit, 7u);
  EXPECT_TRUE(page.is_ascending);
  EXPECT_EQ(page.after, "msg_1_2");
  for (const auto& [query, field] : {std::pair{"limit=0", "limit"},
                                     {"limit=101", "limit"},
                                     {"limit=-1", "limit"},
                                     {"limit=99999999999999999999", "limit"},
                                     {"limit=3x", "limit"},
                                     {"order=up", "order"}}) {
    EXPECT_EQ(decode_page(query).error().field, field) << query;
  }
}

}  // namespace
}  // namespace uma::wire
