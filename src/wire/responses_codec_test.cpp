#include "wire/responses_codec.h"

#include <format>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/query.h"
#include "wire/response_encoder.h"

namespace uma::wire {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;

const std::string kSession = "0123456789abcdef0123456789abcdef";
const std::string kOwn = "fedcba9876543210";
const std::string kResponse = "resp_" + kSession + kOwn;
const std::string kConversation = "conv_" + kSession;

ResponseCall decoded(const std::string& body) {
  auto call = decode_response(body, "1111111111111111");
  if (call) return std::move(*call);
  ADD_FAILURE() << body << ": " << call.error().error.message;
  return {};
}

std::pair<ErrorCode, std::string> rejected(const std::string& body) {
  const auto call = decode_response(body, "1111111111111111");
  EXPECT_FALSE(call) << body;
  return call ? std::pair(ErrorCode::auth, std::string()) : std::pair(call.error().error.code, call.error().field);
}

json::value repeated(const ResponseCall& call) {
  return json::parse(call.request + "}");
}

// --- ids

TEST(ResponsesCodec, IdsSayWhereAThingIs) {
  EXPECT_EQ(parse_response_id(kResponse), (ResponseId{kSession, kOwn}));
  EXPECT_EQ(response_id_text({kSession, kOwn}), kResponse);
  EXPECT_EQ(parse_conversation_id(kConversation), kSession);
  EXPECT_EQ(conversation_id_text(kSession), kConversation);
}

TEST(ResponsesCodec, WhatIsNoIdOfOursIsNone) {
  for (const std::string& text :
       {std::string(), std::string("resp_"), kResponse + "0", kResponse.substr(0, kResponse.size() - 1), kConversation,
        "RESP_" + kSession + kOwn, "resp_" + std::string(48, 'G'), "resp_" + std::string(48, 'A'),
        "resp_" + std::string(47, 'a') + std::string(1, '\0'), std::string("resp_../../../etc/passwd"), " " + kResponse,
        std::string(100'000, 'a')}) {
    EXPECT_FALSE(parse_response_id(text)) << text.substr(0, 100);
    EXPECT_FALSE(parse_conversation_id(text == kConversation ? kResponse : text)) << text.substr(0, 100);
  }
}

// --- requests

TEST(ResponsesCodec, AnInputAloneBeginsSomethingNew) {
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

TEST(ResponsesCodec, ItemsAreMessages) {
  const ResponseCall call = decoded(R"({"input":[
      {"role":"developer","content":"Be brief"},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"id":"msg_1","type":"message","status":"completed","role":"assistant",
       "content":[{"type":"output_text","text":"c","annotations":[]}]}]})");
  EXPECT_THAT(call.generate.input.messages,
              ElementsAre(ChatMessage{"system", "Be brief"}, ChatMessage{"user", "ab"}, ChatMessage{"assistant", "c"}));
}

TEST(ResponsesCodec, WhatAnAssistantThinksSaysAndCallsIsOneMessage) {
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

TEST(ResponsesCodec, ToolsAreThoseOfChatCompletions) {
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
  const json::value said = repeated(call);
  EXPECT_EQ(json::serialize(said.at("tools").at(0)), kTool);
  EXPECT_TRUE(said.at("tools").at(1).at("parameters").is_null() && said.at("tools").at(1).at("strict").is_null());
  const ResponseCall more = decoded(R"({"input":"x","tools":[{"type":"function","name":"clock","x":0}]})");
  EXPECT_EQ(json::serialize(repeated(more).at("tools").at(0)),
            R"({"type":"function","name":"clock","parameters":null,"strict":null})")
      << "fields that OpenAI's shape does not have are not repeated";
  EXPECT_EQ(said.at("tool_choice"), "auto");

  const ResponseCall named =
      with_tools(R"(,"tool_choice":{"type":"function","name":"clock","x":1},"parallel_tool_calls":false)");
  EXPECT_EQ(named.generate.options.chat.tool_choice, ToolChoice::named);
  EXPECT_EQ(named.generate.options.chat.tool_name, "clock");
  EXPECT_EQ(json::serialize(repeated(named).at("tool_choice")), R"({"type":"function","name":"clock"})");
  EXPECT_EQ(repeated(named).at("parallel_tool_calls"), false);
  EXPECT_FALSE(named.generate.options.chat.has_parallel_calls);
  EXPECT_EQ(with_tools(R"(,"tool_choice":"required")").generate.options.chat.tool_choice, ToolChoice::required);
  const ResponseCall none = with_tools(R"(,"tool_choice":"none")");
  EXPECT_EQ(none.generate.options.chat.tools, "") << "the model does not hear of them";
  EXPECT_EQ(repeated(none).at("tool_choice"), "none");
  EXPECT_EQ(repeated(none).at("tools").as_array().size(), 2u);
}

TEST(ResponsesCodec, AFormatIsAGrammarOrASchema) {
  const ResponseCall schema = decoded(
      R"({"input":"x","text":{"format":{"type":"json_schema","name":"n","strict":true,"schema":{"type":"integer"}},"verbosity":"low"}})");
  EXPECT_EQ(schema.generate.options.json_schema, R"({"type":"integer"})");
  EXPECT_EQ(repeated(schema).at("text").at("format").at("name"), "n");
  const ResponseCall plain = decoded(R"({"input":"x","text":{"format":{"type":"text","x":[1]}}})");
  EXPECT_EQ(json::serialize(repeated(plain).at("text").at("format")), R"({"type":"text"})");
  EXPECT_EQ(decoded(R"({"input":"x","text":{"format":{"type":"json_object"}}})").generate.options.json_schema,
            R"({"type":"object"})");
  EXPECT_EQ(decoded(R"({"input":"x","uma":{"grammar":"root ::= \"a\""}})").generate.options.grammar, "root ::= \"a\"");
}

TEST(ResponsesCodec, EffortIsASwitchOfTheTemplate) {
  const ResponseCall none = decoded(R"({"input":"x","reasoning":{"effort":"none","summary":"auto"}})");
  EXPECT_EQ(none.generate.options.chat.template_arguments, R"({"reasoning_effort":"none","enable_thinking":false})");
  EXPECT_EQ(json::serialize(repeated(none).at("reasoning")), R"({"effort":"none","summary":null})");
  EXPECT_EQ(decoded(R"({"input":"x","reasoning":{"effort":"low"}})").generate.options.chat.template_arguments,
            R"({"reasoning_effort":"low"})");
  EXPECT_FALSE(decoded(R"({"input":"x","uma":{"split_reasoning":false}})").generate.options.chat.splits_reasoning);
}

TEST(ResponsesCodec, AResponseIsContinuedByItsId) {
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
  const json::value said = repeated(call);
  EXPECT_EQ(said.at("previous_response_id"), json::value(kResponse));
  EXPECT_EQ(said.at("instructions"), "Sing");
  EXPECT_EQ(said.at("truncation"), "auto");
  EXPECT_EQ(said.at("max_output_tokens"), 9);
  EXPECT_EQ(json::serialize(said.at("metadata")), R"({"a\"b":"c\n"})");
  EXPECT_TRUE(said.at("conversation").is_null());
}

TEST(ResponsesCodec, AConversationIsNamedInTwoWays) {
  for (const std::string& value : {"\"" + kConversation + "\"", "{\"id\":\"" + kConversation + "\"}"}) {
    const ResponseCall call = decoded(R"({"input":"x","conversation":)" + value + "}");
    EXPECT_EQ(call.generate.session, kSession);
    EXPECT_EQ(call.generate.response->previous, "");
    EXPECT_EQ(repeated(call).at("conversation").at("id"), json::value(kConversation));
  }
}

TEST(ResponsesCodec, WhatIsNotStoredAndContinuesNothingIsNoResponseOfASession) {
  const ResponseCall call = decoded(R"({"input":"x","store":false,"instructions":"Sing"})");
  EXPECT_FALSE(call.generate.response);
  EXPECT_THAT(call.generate.input.messages, ElementsAre(ChatMessage{"system", "Sing"}, ChatMessage{"user", "x"}));
  EXPECT_EQ(repeated(call).at("store"), false);
  const ResponseCall continued = decoded(R"({"input":"x","store":false,"previous_response_id":")" + kResponse + "\"}");
  ASSERT_TRUE(continued.generate.response);
  EXPECT_FALSE(continued.generate.response->is_kept);
}

TEST(ResponsesCodec, EmptyValuesOfWhatIsNotServedAreAccepted) {
  decoded(R"({"input":"x","tools":[],"tool_choice":"auto","reasoning":{"effort":null},"background":false,
              "include":["reasoning.encrypted_content","code_interpreter_call.outputs"],"max_tool_calls":null,
              "text":{"format":{"type":"text"}},"prompt":null,"top_logprobs":0,"user":"me","service_tier":"auto",
              "parallel_tool_calls":true,"unknown":{"a":1},"previous_response_id":null,"conversation":null,
              "instructions":null,"metadata":null,"store":null})");
}

TEST(ResponsesCodec, WhatWouldChangeTheAnswerIsRefusedByName) {
  for (const auto& [fields, field] : std::vector<std::pair<std::string, std::string>>{
           {R"("tools":[{"type":"web_search"}])", "tools[0].type"},
           {R"("tools":[{"type":"function"}])", "tools[0].name"},
           {R"("tools":[{"type":"function","name":"a b"}])", "tools[0].name"},
           {R"("tools":[{"type":"function","name":"a","parameters":[]}])", "tools[0].parameters"},
           {R"("tools":[{"type":"function","name":"a"},{"type":"function","name":"a"}])", "tools[1].name"},
           {R"("tool_choice":"required")", "tool_choice"},
           {R"("tool_choice":{"type":"function","name":"a"})", "tool_choice.name"},
           {R"("tool_choice":{"type":"allowed_tools"})", "tool_choice"},
           {R"("max_tool_calls":2)", "max_tool_calls"},
           {R"("include":["message.output_text.logprobs"])", "include[0]"},
           {R"("include":["x"])", "include[0]"},
           {R"("reasoning":{"effort":1})", "reasoning.effort"},
           {R"("background":true)", "background"},
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
           {R"([{"role":"user","content":[{"type":"input_image","image_url":{"url":"x"}}]}])", "input[0].content[0].image_url"},
           {R"([{"role":"user","content":[{"type":"input_image","file_id":"file-1"}]}])", "input[0].content[0].file_id"},
           {R"([{"role":"user","content":[{"type":"input_file","file_id":"file-1"}]}])", "input[0].content"},
           {R"([{"role":"system","content":[{"type":"input_image","image_url":"x"}]}])", "input[0].content"},
           {R"([{"role":"assistant","content":[{"type":"input_image","image_url":"x"}]}])", "input[0].content"},
           {R"([{"type":"function_call_output","output":"b"}])", "input[0].call_id"},
           {R"([{"type":"function_call_output","call_id":"a"}])", "input[0].output"},
           {R"([{"type":"function_call_output","call_id":"a","output":[{"type":"input_image"}]}])", "input[0].output"},
           {R"([{"type":"function_call","call_id":"a"}])", "input[0].name"},
           {R"([{"type":"function_call","name":"a"}])", "input[0].call_id"},
           {R"([{"type":"function_call","call_id":"a","name":"a","arguments":{}}])", "input[0].arguments"},
           {R"([{"type":"reasoning","content":[{"type":"x"}]}])", "input[0].content"},
           {R"([{"type":"reasoning","summary":[],"encrypted_content":"x"}])", "input"},
           {R"([{"type":"web_search_call","id":"a"}])", "input[0].type"},
           {R"([{"type":"item_reference","id":"a"}])", "input[0].type"}}) {
    EXPECT_EQ(rejected("{\"input\":" + input + "}"), std::pair(ErrorCode::proto_field, field)) << input;
  }
  EXPECT_EQ(rejected("{}"), std::pair(ErrorCode::proto_field, std::string("input")));
  EXPECT_EQ(rejected("[]").first, ErrorCode::proto_json);
  EXPECT_EQ(rejected("{").first, ErrorCode::proto_json);
  std::string many = "{\"input\":\"x\",\"metadata\":{";
  for (int i = 0; i < 17; ++i) many += std::format("{}\"k{}\":\"v\"", i == 0 ? "" : ",", i);
  EXPECT_EQ(rejected(many + "}}").second, "metadata");
}

TEST(ResponsesCodec, AnIdThatCannotBeIsUnknown) {
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

TEST(ResponsesCodec, AConversationBeginsWithItsItems) {
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

TEST(ResponsesCodec, APageIsChosenByTheQuery) {
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

TEST(Query, ValuesAreDecoded) {
  EXPECT_EQ(query_value("a=1&name=x%20y+z%2&name=2", "name"), "x y z%2");
  EXPECT_EQ(query_value("names=1&name", "name"), "");
  EXPECT_EQ(query_value("&&=&name=", "name"), "");
}

// --- answers

// The events of a stream: each is "event: TYPE\ndata: OBJECT\n\n", and OBJECT has the same type.
std::vector<json::value> events_of(std::string_view stream) {
  std::vector<json::value> events;
  while (!stream.empty()) {
    const std::size_t end = stream.find("\n\n");
    EXPECT_NE(end, std::string_view::npos);
    const std::string_view event = stream.substr(0, end);
    stream.remove_prefix(end + 2);
    const std::size_t line_end = event.find('\n');
    EXPECT_TRUE(event.starts_with("event: ") && event.substr(line_end).starts_with("\ndata: ")) << event;
    events.push_back(json::parse(event.substr(line_end + 7)));
    EXPECT_EQ(events.back().at("type"), json::value(event.substr(7, line_end - 7)));
    EXPECT_EQ(events.back().at("sequence_number"), json::value(events.size() - 1));
  }
  return events;
}

std::vector<std::string> types_of(const std::vector<json::value>& events) {
  std::vector<std::string> types;
  for (const json::value& event : events) types.emplace_back(event.at("type").as_string());
  return types;
}

ResponseEncoder encoder() {
  ResponseEncoder made({std::string(32, 'f'), kOwn}, decoded(R"({"input":"x","metadata":{"k":"v"}})").request, "tiny", 1700);
  made.set_place({.session = SessionId{kSession}, .turn = 3, .number = 1});
  return made;
}

Usage some_usage() {
  Usage usage;
  usage.prompt_tokens = 10;
  usage.reused_tokens = 6;
  usage.recomputed_tokens = 4;
  usage.completion_tokens = 5;
  return usage;
}

TEST(ResponsesCodec, AStreamIsOpenAIsEventsInOrder) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_text(out, "Hel");
  one.append_text(out, "lo\n\n");
  one.append_last(out, EosEvent{FinishReason::stop, some_usage(), "!", std::nullopt});
  const std::vector<json::value> events = events_of(out);
  EXPECT_THAT(types_of(events),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
                          "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.completed"));
  EXPECT_EQ(events[0].at("response").at("id"), json::value(kResponse));
  EXPECT_EQ(events[0].at("response").at("status"), "in_progress");
  EXPECT_TRUE(events[0].at("response").at("usage").is_null());
  EXPECT_TRUE(events[0].at("response").at("output").as_array().empty());
  const std::string item = "msg_" + kSession + "_3_1";
  EXPECT_EQ(events[2].at("item").at("id"), json::value(item));
  EXPECT_EQ(events[2].at("item").at("status"), "in_progress");
  EXPECT_TRUE(events[2].at("item").at("content").as_array().empty());
  std::string text;
  for (std::size_t i = 4; i < 7; ++i) {
    EXPECT_EQ(events[i].at("item_id"), json::value(item));
    EXPECT_EQ(events[i].at("output_index"), 0);
    EXPECT_EQ(events[i].at("content_index"), 0);
    text += events[i].at("delta").as_string();
  }
  EXPECT_EQ(text, "Hello\n\n!");
  EXPECT_EQ(events[7].at("text"), json::value(text));
  EXPECT_EQ(events[8].at("part").at("text"), json::value(text));
  EXPECT_EQ(events[9].at("item").at("status"), "completed");
  const json::value& done = events[10].at("response");
  EXPECT_EQ(done.at("status"), "completed");
  EXPECT_EQ(done.at("output").at(0).at("content").at(0).at("text"), json::value(text));
  EXPECT_EQ(done.at("usage").at("input_tokens"), 10);
  EXPECT_EQ(done.at("usage").at("input_tokens_details").at("cached_tokens"), 6);
  EXPECT_EQ(done.at("usage").at("total_tokens"), 15);
  EXPECT_EQ(done.at("uma").at("usage").at("recomputed_tokens"), 4);
  EXPECT_EQ(done.at("uma").at("session_id"), json::value(kSession));
  EXPECT_EQ(json::serialize(done.at("metadata")), R"({"k":"v"})");
}

TEST(ResponsesCodec, WhatWasCutIsIncompleteAndWhatFailedFailed) {
  for (const FinishReason reason : {FinishReason::length, FinishReason::timeout, FinishReason::cancelled}) {
    ResponseEncoder one = encoder();
    std::string out;
    one.append_first(out);
    one.append_text(out, "Hel");
    one.append_last(out, EosEvent{reason, some_usage(), "", std::nullopt});
    const json::value last = events_of(out).back();
    EXPECT_EQ(last.at("type"), "response.incomplete");
    EXPECT_EQ(last.at("response").at("status"), reason == FinishReason::cancelled ? "cancelled" : "incomplete");
    EXPECT_EQ(last.at("response").at("output").at(0).at("status"), "incomplete");
    EXPECT_EQ(last.at("response").at("uma").at("reason"), json::value(finish_reason_name(reason)));
  }
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_text(out, "Hel");
  one.append_last(out, EosEvent{FinishReason::error, some_usage(), "", Error{ErrorCode::runtime_decode, "it broke"}});
  const json::value last = events_of(out).back();
  EXPECT_EQ(last.at("type"), "response.failed");
  EXPECT_EQ(last.at("response").at("status"), "failed");
  EXPECT_EQ(last.at("response").at("error").at("message"), "it broke");
}

const ReplyPart kThought{.kind = ReplyPart::Kind::reasoning, .text = "hm"};

ReplyPart call_part(std::int32_t call, const std::string& text, const std::string& id = "") {
  return {.kind = ReplyPart::Kind::tool_call, .text = text, .call = call, .id = id, .name = id.empty() ? "" : "f"};
}

TEST(ResponsesCodec, ThoughtsAndCallsAreItemsOneAfterTheOther) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_part(out, kThought);
  one.append_part(out, kThought);
  one.append_text(out, "Wait");
  one.append_text(out, ".");
  one.append_part(out, call_part(0, "{\"a\":", "id0"));
  one.append_part(out, call_part(0, "1}"));
  one.append_part(out, call_part(1, "{}", "id1"));
  Usage usage = some_usage();
  usage.reasoning_tokens = 2;
  one.append_last(out, EosEvent{FinishReason::tool_calls, usage, "", std::nullopt});
  const std::vector<json::value> events = events_of(out);
  EXPECT_THAT(types_of(events),
              ElementsAre("response.created", "response.in_progress",  //
                          "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
                          "response.reasoning_text.delta", "response.reasoning_text.done", "response.content_part.done",
                          "response.output_item.done",  //
                          "response.output_item.added", "response.content_part.added", "response.output_text.delta",
                          "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                          "response.output_item.done",  //
                          "response.output_item.added", "response.function_call_arguments.delta",
                          "response.function_call_arguments.delta", "response.function_call_arguments.done",
                          "response.output_item.done",  //
                          "response.output_item.added", "response.function_call_arguments.delta",
                          "response.function_call_arguments.done", "response.output_item.done", "response.completed"));
  const std::string place = kSession + "_3_1";
  const std::vector<std::string> ids = {"rs_" + place, "msg_" + place, "fc_" + place + "_0", "fc_" + place + "_1"};
  for (const json::value& event : events) {
    const json::object& fields = event.as_object();
    if (!fields.contains("output_index")) continue;
    const std::string& id = ids.at(fields.at("output_index").to_number<std::size_t>());
    EXPECT_EQ(fields.contains("item") ? fields.at("item").at("id") : fields.at("item_id"), json::value(id));
    EXPECT_EQ(fields.contains("content_index"), fields.contains("item_id") && !id.starts_with("fc_")) << event;
  }
  EXPECT_EQ(json::serialize(events[2].at("item")),
            R"({"id":")" + ids[0] + R"(","type":"reasoning","status":"in_progress","summary":[],"content":[]})");
  EXPECT_EQ(json::serialize(events[3].at("part")), R"({"type":"reasoning_text","text":""})");
  EXPECT_EQ(events[6].at("text"), "hmhm");
  EXPECT_EQ(
      json::serialize(events[16].at("item")),
      R"({"id":")" + ids[2] + R"(","type":"function_call","status":"in_progress","call_id":"id0","name":"f","arguments":""})");
  EXPECT_EQ(events[18].at("delta"), "1}");
  EXPECT_EQ(events[19].at("arguments"), "{\"a\":1}");
  EXPECT_EQ(events[19].at("name"), "f");
  const json::value& done = events.back().at("response");
  EXPECT_EQ(done.at("status"), "completed");
  EXPECT_EQ(done.at("uma").at("reason"), "tool_calls");
  EXPECT_EQ(done.at("usage").at("output_tokens_details").at("reasoning_tokens"), 2);
  ASSERT_EQ(done.at("output").as_array().size(), 4u);
  std::size_t next = 0;
  for (const json::value& event : events) {
    if (event.at("type") != "response.output_item.done") continue;
    EXPECT_EQ(event.at("item"), done.at("output").at(next++));
  }
  EXPECT_EQ(next, 4u);

  // The same answer at once, and what is kept of it.
  EosEvent whole{FinishReason::tool_calls, usage, "Wait.", std::nullopt};
  whole.parts = {
      {.kind = ReplyPart::Kind::reasoning, .text = "hmhm"}, call_part(0, "{\"a\":1}", "id0"), call_part(1, "{}", "id1")};
  EXPECT_EQ(json::parse(encoder().json(whole)), done);
  SessionDetail session;
  session.info.id.value = kSession;
  session.info.model = "tiny";
  session.info.dropped_turns = 3;
  session.messages = {{"user", "x"},
                      {"assistant", "Wait.",
                       R"({"reasoning_content":"hmhm","tool_calls":[)"
                       R"({"id":"id0","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},)"
                       R"({"id":"id1","type":"function","function":{"name":"f","arguments":"{}"}}]})"}};
  session.turns_begin = {0};
  const ResponseRecord kept{.turn = 3,
                            .id = kOwn,
                            .request = decoded(R"({"input":"x","metadata":{"k":"v"}})").request,
                            .created_s = 1700,
                            .reason = FinishReason::tool_calls,
                            .prompt_tokens = 10,
                            .reused_tokens = 6,
                            .completion_tokens = 5,
                            .reasoning_tokens = 2};
  json::value read = json::parse(response_json({session, std::make_shared<const ResponseRecord>(kept)}));
  EXPECT_TRUE(read.at("uma").as_object().emplace("usage", done.at("uma").at("usage")).second) << "the receipt is not kept";
  EXPECT_EQ(read, done);
}

TEST(ResponsesCodec, WhatWasCutIsTheLastItem) {
  for (const bool streams : {true, false}) {
    ResponseEncoder one = encoder();
    EosEvent eos{FinishReason::length, some_usage(), "", std::nullopt};
    eos.parts = {kThought, call_part(0, "{\"a", "id0")};
    std::string out;
    if (streams) {
      one.append_first(out);
      one.append_last(out, eos);
    }
    const json::value response = streams ? events_of(out).back().at("response") : json::parse(one.json(eos));
    EXPECT_EQ(response.at("status"), "incomplete");
    EXPECT_EQ(response.at("output").at(0).at("status"), "completed");
    EXPECT_EQ(response.at("output").at(1).at("status"), "incomplete");
    EXPECT_EQ(response.at("output").at(1).at("arguments"), "{\"a");
  }
}

TEST(ResponsesCodec, TextBehindACallIsAnItemOfItsOwn) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_text(out, "a");
  one.append_part(out, call_part(0, "{}", "id0"));
  one.append_text(out, "b");
  one.append_last(out, EosEvent{FinishReason::tool_calls, some_usage(), "", std::nullopt});
  const json::value response = events_of(out).back().at("response");
  const json::array& output = response.at("output").as_array();
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0].at("content").at(0).at("text"), "a");
  EXPECT_EQ(output[2].at("content").at(0).at("text"), "b");
  EXPECT_NE(output[0].at("id"), output[2].at("id"));
}

TEST(ResponsesCodec, AReplyThatSaysNothingIsAnEmptyMessage) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_last(out, EosEvent{FinishReason::stop, some_usage(), "", std::nullopt});
  const json::value response = events_of(out).back().at("response");
  EXPECT_EQ(response.at("output").at(0).at("content").at(0).at("text"), "");
  EXPECT_EQ(response, json::parse(encoder().json(EosEvent{FinishReason::stop, some_usage(), "", std::nullopt})));
}

TEST(ResponsesCodec, OneThatDoesNotStreamIsTheSameObject) {
  const json::value whole = json::parse(encoder().json(EosEvent{FinishReason::length, some_usage(), "Hello", std::nullopt}));
  EXPECT_EQ(whole.at("object"), "response");
  EXPECT_EQ(whole.at("id"), json::value(kResponse));
  EXPECT_EQ(whole.at("created_at"), 1700);
  EXPECT_EQ(whole.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(whole.at("output").at(0).at("id"), json::value("msg_" + kSession + "_3_1"));
  EXPECT_EQ(whole.at("output").at(0).at("content").at(0).at("text"), "Hello");
  for (const char* name : {"error", "instructions", "previous_response_id", "max_output_tokens"}) {
    EXPECT_TRUE(whole.at(name).is_null()) << name;
  }
}

SessionDetail some_session() {
  SessionDetail session;
  session.info.id.value = kSession;
  session.info.model = "tiny";
  session.info.dropped_turns = 2;
  session.info.created_s = 1600;
  session.messages = {{"system", "Sing"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}};
  session.turns_begin = {1, 3};
  session.has_instructions = true;
  session.metadata = R"({"k":"v"})";
  return session;
}

TEST(ResponsesCodec, AKeptResponseIsWrittenFromItsSession) {
  ResponseRecord kept{.turn = 3,
                      .id = kOwn,
                      .request = decoded(R"({"input":"c","instructions":"Sing"})").request,
                      .created_s = 1700,
                      .reason = FinishReason::stop,
                      .prompt_tokens = 10,
                      .reused_tokens = 6,
                      .completion_tokens = 5};
  const ResponseDetail detail{some_session(), std::make_shared<const ResponseRecord>(kept)};
  const json::value response = json::parse(response_json(detail));
  EXPECT_EQ(response.at("id"), json::value(kResponse));
  EXPECT_EQ(response.at("status"), "completed");
  EXPECT_EQ(response.at("instructions"), "Sing");
  EXPECT_EQ(response.at("output").at(0).at("id"), json::value("msg_" + kSession + "_3_1"));
  EXPECT_EQ(response.at("output").at(0).at("content").at(0).at("text"), "d");
  EXPECT_EQ(response.at("usage").at("total_tokens"), 15);

  const json::value items = json::parse(item_page_json(input_items(detail, {.is_ascending = true}).value()));
  ASSERT_EQ(items.at("data").as_array().size(), 3u) << "without instructions and reply";
  EXPECT_EQ(items.at("data").at(0).at("id"), json::value("msg_" + kSession + "_2_0"));
  EXPECT_EQ(items.at("data").at(1).at("content").at(0).at("type"), "output_text");
  EXPECT_EQ(items.at("data").at(2).at("content").at(0).at("text"), "c");
  EXPECT_EQ(items.at("has_more"), false);
}

TEST(ResponsesCodec, ItemsCanBeGivenBack) {
  SessionDetail session;
  session.info.id.value = kSession;
  session.messages = {{"user", "Rain?"},
                      {"assistant", "",
                       R"({"reasoning_content":"hm","tool_calls":[{"id":"id0","type":"function",)"
                       R"("function":{"name":"f","arguments":"{}"}}]})"},
                      {"tool", "wet", R"({"tool_call_id":"id0"})"},
                      {"assistant", "It rains.", R"({"reasoning_content":"so"})"},
                      {"assistant", ""}};
  session.turns_begin = {0, 2};
  const json::value list = json::parse(item_page_json(conversation_items(session, {.is_ascending = true}).value()));
  std::vector<std::string> ids;
  for (const json::value& item : list.at("data").as_array()) {
    ids.emplace_back(item.at("id").as_string().subview(0, item.at("id").as_string().find('_')));
    EXPECT_EQ(item.at("status"), "completed");
  }
  EXPECT_THAT(ids, ElementsAre("msg", "rs", "fc", "fco", "rs", "msg", "msg"));
  EXPECT_EQ(list.at("data").at(2).at("id"), json::value("fc_" + kSession + "_0_1_0"));
  EXPECT_EQ(list.at("data").at(3).at("output"), "wet");
  const ResponseCall call = decoded(R"({"store":false,"input":)" + json::serialize(list.at("data")) + "}");
  EXPECT_EQ(call.generate.input.messages, session.messages);
}

// Nothing of a part is lost but where texts end.
TEST(ResponsesCodec, ImagesStandAmongTheTextOfAUser) {
  const ResponseCall call = decoded(
      R"({"store":false,"instructions":"Look.","input":[{"type":"reasoning","content":[{"type":"reasoning_text","text":"hm"}]},)"
      R"({"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"},)"
      R"({"type":"input_image","detail":"low","image_url":"data:image/png;base64,AA=="},)"
      R"({"type":"input_image","image_url":"https://host/c.png","file_id":null},{"type":"input_text","text":"d"}]}]})");
  const Input& input = call.generate.input;
  ASSERT_EQ(input.messages.size(), 3u);
  EXPECT_EQ(input.messages[2], (ChatMessage{"user", "abd"}));
  ASSERT_EQ(input.images.size(), 2u);
  EXPECT_EQ(input.images[0].message, 2u) << "behind the instructions and the thought";
  EXPECT_EQ(input.images[1].message, 2u);
  EXPECT_EQ(input.images[0].at, 2u);
  EXPECT_EQ(input.images[1].at, 2u);
  EXPECT_EQ(input.images[0].field, "input[1].content[2]");
  EXPECT_EQ(input.images[0].source.kind, ImageSource::Kind::data);
  EXPECT_EQ(input.images[1].source.kind, ImageSource::Kind::url);
  EXPECT_TRUE(decoded(R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:,"}]}]})")
                  .generate.input.messages[0]
                  .content.empty());

  std::string many = R"({"input":[{"role":"user","content":[)";
  for (int i = 0; i < 65; ++i) many += std::format(R"({}{{"type":"input_image","image_url":"data:,"}})", i == 0 ? "" : ",");
  EXPECT_EQ(rejected(many + "]}]}"), std::pair(ErrorCode::proto_field, std::string("input")));
  EXPECT_EQ(decode_conversation(R"({"items":[{"role":"user","content":[{"type":"input_image","image_url":"data:,"}]}]})")
                .error()
                .field,
            "items");
}

TEST(ResponsesCodec, ImagesAreListedWhereTheyStood) {
  SessionDetail session;
  session.info.id.value = kSession;
  const std::string first(64, 'a');
  const std::string second(64, 'b');
  const std::string extra = R"({"images":[{"at":0,"sha256":")" + first + R"("},{"at":2,"sha256":")" + second +
                            R"("},{"at":3,"sha256":")" + first + "\"}]}";
  session.messages = {
      {"user", "abc", extra}, {"assistant", "d"}, {"user", "", extra}, {"user", "x", R"({"images":[{"at":-1}]})"}};
  session.turns_begin = {0};
  ItemPage page = conversation_items(session, {.is_ascending = true}).value();
  ASSERT_EQ(page.items.size(), 4u);
  ASSERT_EQ(page.items[0].images.size(), 3u);
  EXPECT_EQ(page.items[0].images[1].id, second);
  page.items[0].images[1].url = "data:image/png;base64,AA==";
  const json::value list = json::parse(item_page_json(page));
  const auto parts = [&](std::size_t item) {
    std::string all;
    for (const json::value& part : list.at("data").at(item).at("content").as_array()) {
      const json::value* text = part.as_object().if_contains("text");
      all += text != nullptr ? std::string_view(text->as_string()) : part.at("image_url").is_null() ? "-" : "+";
      EXPECT_EQ(part.at("type"), text != nullptr ? (item == 1 ? "output_text" : "input_text") : "input_image");
    }
    return all;
  };
  EXPECT_EQ(parts(0), "-ab+c-");
  EXPECT_EQ(parts(1), "d");
  EXPECT_EQ(parts(2), "---") << "an image stands at the end at the latest";
  EXPECT_EQ(parts(3), "x") << "what no door wrote";
  EXPECT_EQ(list.at("data").at(0).at("content").at(2).at("image_url"), "data:image/png;base64,AA==");

  const Input input = decode_items(R"({"items":[{"role":"user","content":[{"type":"input_text","text":"a"},)"
                                   R"({"type":"input_image","image_url":"data:image/png;base64,AA=="}]}]})")
                          .value();
  const json::value added = json::parse(appended_items_json(session.info, input));
  EXPECT_EQ(added.at("data").at(0).at("content").at(1).at("image_url"), "data:image/png;base64,AA==") << "as it came";
}

TEST(ResponsesCodec, OnlyTheLastItemCanBeTakenOut) {
  SessionDetail session = some_session();
  const std::string id = kSession;
  EXPECT_EQ(removable_message(session, "msg_" + id + "_3_1").value(), (MessagePosition{3, 1}));
  for (const std::string& item : {"msg_" + id + "_3_0", "msg_" + id + "_2_1"}) {
    EXPECT_EQ(removable_message(session, item).error().error.code, ErrorCode::proto_field) << item;
  }
  EXPECT_EQ(removable_message(session, "msg_" + id + "_9_0").error().error.code, ErrorCode::session_unknown);
  session.messages.back().extra = R"({"reasoning_content":"hm"})";
  EXPECT_EQ(removable_message(session, "msg_" + id + "_3_1").value(), (MessagePosition{3, 1})) << "with its thought";
  EXPECT_EQ(removable_message(session, "rs_" + id + "_3_1").error().error.code, ErrorCode::proto_field);
  session.messages.back().extra = R"({"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]})";
  EXPECT_EQ(removable_message(session, "fc_" + id + "_3_1_0").error().error.code, ErrorCode::proto_field) << "it says more";
  session.messages.back().content.clear();
  EXPECT_EQ(removable_message(session, "fc_" + id + "_3_1_0").value(), (MessagePosition{3, 1}));
  session.pending_messages = {{"user", "e"}, {"user", "f"}};
  EXPECT_EQ(removable_message(session, "msg_" + id + "_4_1").value(), (MessagePosition{4, 1}));
  EXPECT_EQ(removable_message(session, "msg_" + id + "_4_0").error().error.code, ErrorCode::proto_field);
  EXPECT_EQ(json::parse(item_json(conversation_item(session, "msg_" + id + "_4_0").value())).at("role"), "user");
  EXPECT_EQ(conversation_item(session, "msg_" + id + "_4_7").error().error.code, ErrorCode::session_unknown);
  EXPECT_EQ(removable_message(SessionDetail(), "x").error().error.code, ErrorCode::session_unknown);
  SessionDetail without_turns;
  without_turns.info.id.value = kSession;
  without_turns.info.dropped_turns = 3;
  without_turns.messages = {{"system", "Sing"}};
  EXPECT_EQ(removable_message(without_turns, "msg_" + id + "_0_0").error().error.code, ErrorCode::proto_field)
      << "of a turn that was dropped, and kept";
}

TEST(ResponsesCodec, ItemsComeInPages) {
  SessionDetail session = some_session();
  session.pending_messages = {{"user", "e"}};
  const auto texts = [&](const ListPage& page) {
    const json::value list = json::parse(item_page_json(conversation_items(session, page).value()));
    std::string all;
    for (const json::value& item : list.at("data").as_array()) all += item.at("content").at(0).at("text").as_string();
    return all + (list.at("has_more").as_bool() ? "+" : "");
  };
  EXPECT_EQ(texts({}), "edcba");
  EXPECT_EQ(texts({.limit = 2}), "ed+");
  const std::string item = "msg_" + kSession;
  EXPECT_EQ(texts({.limit = 2, .after = item + "_3_1"}), "cb+");
  EXPECT_EQ(texts({.limit = 3, .is_ascending = true, .after = item + "_3_0"}), "de");
  EXPECT_EQ(texts({.after = item + "_2_0"}), "");
  EXPECT_EQ(conversation_items(session, {.after = "msg_x"}).error().field, "after");
  const json::value conversation = json::parse(conversation_json(session));
  EXPECT_EQ(conversation.at("id"), json::value(kConversation));
  EXPECT_EQ(conversation.at("metadata").at("k"), "v");

  SessionInfo info = session.info;
  info.turns = 4;
  info.pending_messages = 1;
  const json::value added = json::parse(appended_items_json(info, {.text = "", .messages = session.pending_messages}));
  EXPECT_EQ(added.at("first_id"), json::value(item + "_4_0")) << "as in the list";
  EXPECT_EQ(conversation_items(session, {})->items.front().id, item + "_4_0");
}

}  // namespace
}  // namespace uma::wire
