#include "wire/openai/history_fields.h"

#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/anthropic/messages_decoder.h"
#include "wire/ollama/ollama_decoder.h"
#include "wire/openai/openai_codec.h"
#include "wire/openai/responses_decoder_test_support.h"
#include "wire/own/request_codec.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A chat request with these messages, and other fields behind them.
CompletionRequest completion_of(const std::string& messages, const std::string& fields = "") {
  const std::string body = R"({"messages":[)" + messages + "]" + fields + "}";
  auto request = decode_completion(CompletionKind::chat, body);
  EXPECT_TRUE(request) << body << ": " << (request ? "" : request.error().error.message);
  return request ? std::move(*request) : CompletionRequest{.generate = {}, .prompts = std::vector<Input>(1)};
}

std::vector<ChatMessage> history_of(const std::string& messages) {
  return completion_of(messages + R"(,{"role":"user","content":"Sure?"})").prompts.front().messages;
}

// The assistant's message with these fields.
ChatMessage reply_of(const std::string& fields) {
  const auto messages = history_of(R"({"role":"user","content":"a"},{"role":"assistant",)" + fields + "}");
  return messages.size() == 3 ? messages[1] : ChatMessage();
}

std::string refused_field_of(const std::string& body) {
  const auto request = decode_completion(CompletionKind::chat, body);
  EXPECT_FALSE(request) << body;
  return request ? "" : request.error().field;
}

TEST(Histories, PartsOfOtherApisAreTextOrReasoning) {
  EXPECT_EQ(reply_of(R"("content":[{"type":"thinking","thinking":"Hm.","signature":"x"},{"type":"text","text":"Yes."}])"),
            (ChatMessage{"assistant", "Yes.", R"({"reasoning_content":"Hm."})"}));
  EXPECT_EQ(
      reply_of(R"("content":[{"type":"thinking","thinking":[{"type":"text","text":"H"},{"type":"text","text":"m."}]},"Yes."])"),
      (ChatMessage{"assistant", "Yes.", R"({"reasoning_content":"Hm."})"}));
  EXPECT_EQ(reply_of(R"("content":[{"type":"reasoning","text":"Hm."},{"type":"redacted_thinking","data":"x"}])"),
            (ChatMessage{"assistant", "", R"({"reasoning_content":"Hm."})"}));
  EXPECT_EQ(reply_of(R"("content":[{"type":"reasoning","summary":[{"type":"summary_text","text":"Hm."}]}])").extra,
            R"({"reasoning_content":"Hm."})");
  EXPECT_EQ(reply_of(R"("content":[{"type":"output_text","text":"Y"},{"type":"refusal","refusal":"es."}])").content, "Yes.");
  EXPECT_EQ(history_of(R"({"role":"user","content":[{"type":"input_text","text":"a"}]})").front().content, "a");
  const auto file = decode_completion(CompletionKind::chat,
                                      R"({"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}]})");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().field, "messages[0].content");
  EXPECT_THAT(file.error().error.message, HasSubstr(R"(has a part of type "file", but must be)"));
  EXPECT_EQ(refused_field_of(R"({"messages":[{"role":"user","content":[{"type":"text","text":7}]}]})"), "messages[0].content");
}

TEST(Histories, AReplyMayHaveNoContent) {
  for (const std::string fields : {R"("content":null)", R"("content":"")", R"("content":[])", R"("refusal":null)"})
    EXPECT_EQ(reply_of(fields), (ChatMessage{"assistant", ""})) << fields;
  EXPECT_EQ(reply_of(R"("content":null,"refusal":"No.")").content, "No.");
}

TEST(Histories, ToolsMayReturnNothingOrAnObject) {
  for (const std::string content : {"null", "\"\"", "[]"}) {
    const auto messages = history_of(R"({"role":"tool","tool_call_id":"1","content":)" + content + "}");
    EXPECT_EQ(messages.front(), (ChatMessage{"tool", "", R"({"tool_call_id":"1"})"})) << content;
  }
  EXPECT_EQ(history_of(R"({"role":"tool","content":{"n":1}})").front(), (ChatMessage{"tool", R"({"n":1})"}));
}

TEST(Histories, ReasoningHasManyNames) {
  for (const std::string field :
       {R"("reasoning_content":"Hm.")", R"("reasoning":"Hm.")", R"("thinking":"Hm.")",
        R"("reasoning_details":[{"type":"reasoning.text","text":"Hm."},{"type":"reasoning.encrypted","data":"x"}])",
        R"("reasoning_details":[{"type":"reasoning.summary","summary":"Hm."}])",
        R"("thinking_blocks":[{"type":"thinking","thinking":"Hm.","signature":"x"}])",
        R"("reasoning_content":null,"reasoning":"Hm.","reasoning_details":[{"text":"other"}])"})
    EXPECT_EQ(reply_of(R"("content":"a",)" + field).extra, R"({"reasoning_content":"Hm."})") << field;
  EXPECT_EQ(reply_of(R"("content":"a","reasoning":{"effort":"low"})").extra, "");
}

boost::json::value calls_in(const ChatMessage& message) {
  return message.extra.empty() ? boost::json::value() : boost::json::parse(message.extra).at("tool_calls");
}

TEST(Histories, CallsMayLackIdsAndHaveArgumentsOfAnyForm) {
  const boost::json::value calls = calls_in(reply_of(
      R"("content":null,"tool_calls":[{"function":{"name":"f","arguments":{"x":1}}},{"id":"","function":{"name":"f","arguments":null}},)"
      R"({"id":"1","type":"function","function":{"name":"über den f","arguments":"{\"x\""}}])"));
  ASSERT_EQ(calls.as_array().size(), 3U);
  EXPECT_EQ(calls.at(0).at("id"), "c00001000");
  EXPECT_EQ(calls.at(0).at("function").at("arguments"), R"({"x":1})");
  EXPECT_EQ(calls.at(1).at("id"), "c00001001");
  EXPECT_EQ(calls.at(1).at("function").at("arguments"), "{}");
  EXPECT_EQ(calls.at(2).at("function").at("arguments"), R"({"x")") << "a call that was cut";
  EXPECT_EQ(calls.at(2).at("function").at("name"), "über den f");
}

TEST(Histories, OlderAndCustomCallsAreCallsOfFunctions) {
  const auto messages = history_of(
      R"({"role":"user","content":"a"},{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},)"
      R"({"role":"function","name":"f","content":"7"},)"
      R"({"role":"assistant","tool_calls":[{"id":"2","type":"custom","custom":{"name":"patch","input":"*** x"}}]})");
  EXPECT_EQ(calls_in(messages[1]).at(0).at("function").at("name"), "f");
  EXPECT_EQ(messages[2], (ChatMessage{"tool", "7", R"({"name":"f"})"}));
  EXPECT_EQ(calls_in(messages[3]).at(0), boost::json::parse(R"({"id":"2","type":"function","function":{"name":"patch",
                                                                 "arguments":"{\"input\":\"*** x\"}"}})"));
}

TEST(Histories, MessagesOfAnthropicMayLackIdsAndContents) {
  const auto call = decode_messages(
      R"({"max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null},{"role":"assistant","content":[
      {"type":"tool_use","name":"f","input":null},{"type":"tool_use","id":"x","name":"g","input":"{\"a"},
      {"type":"advisor_tool_result","content":[]}]},
      {"role":"user","content":[{"type":"tool_result","content":null}]}]})");
  ASSERT_TRUE(call);
  const std::vector<ChatMessage>& messages = call->generate.input.messages;
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(calls_in(messages[1]).at(0).at("id"), "c00001000");
  EXPECT_EQ(calls_in(messages[1]).at(0).at("function").at("arguments"), "{}");
  EXPECT_EQ(calls_in(messages[1]).at(1).at("function").at("arguments"), "{\"a");
  EXPECT_EQ(messages[2], (ChatMessage{"tool", ""}));
  EXPECT_THAT(call->warnings, ElementsAre(HasSubstr("*_tool_result")));
}

// --- items of responses

TEST(Histories, ItemsMayLackIdsAndContents) {
  const auto messages = decoded(R"({"input":[{"role":"user","content":"a"},
      {"type":"message","role":"assistant","content":null,"refusal":"No."},{"role":"user","content":"b"},
      {"type":"function_call","name":"f","arguments":{"x":1}},{"type":"function_call_output","output":null},
      {"role":"assistant","content":[{"type":"refusal","refusal":"No."},{"type":"thinking","thinking":"Hm."}]}]})")
                            .generate.input.messages;
  ASSERT_EQ(messages.size(), 6U);
  EXPECT_EQ(messages[1].content, "No.");
  EXPECT_EQ(calls_in(messages[3]).at(0).at("id"), "c00003000");
  EXPECT_EQ(calls_in(messages[3]).at(0).at("function").at("arguments"), R"({"x":1})");
  EXPECT_EQ(messages[4], (ChatMessage{"tool", ""}));
  EXPECT_EQ(messages[5], (ChatMessage{"assistant", "No.", R"({"reasoning_content":"Hm."})"}));
}

TEST(Histories, ItemsOfOpenAisServersAreLeftOutByName) {
  const ResponseCall call = decoded(R"({"input":[{"role":"user","content":"a"},{"type":"web_search_call","id":"1"},
      {"type":"shell_call","id":"2"},{"type":"web_search_call","id":"3"}]})");
  EXPECT_THAT(call.warnings, ElementsAre("items of type web_search_call were left out: this server cannot read them",
                                         "items of type shell_call were left out: this server cannot read them"));
}

TEST(Histories, StoredItemsAreFoundByTheirIds) {
  const std::string body = R"({"input":[{"role":"user","content":"a"},{"type":"item_reference","id":"msg_1"},{"id":"fc_2"},
      {"type":"function_call_output","call_id":"c","output":"7"}]})";
  EXPECT_THAT(referenced_items(body), ElementsAre("msg_1", "fc_2"));
  const ReferencedItems stored{
      {"msg_1", R"({"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]})"},
      {"fc_2", R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"})"}};
  const auto call = decode_response(body, "1111111111111111", stored);
  ASSERT_TRUE(call);
  const std::vector<ChatMessage>& messages = call->generate.input.messages;
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[1].content, "b");
  EXPECT_EQ(calls_in(messages[1]).at(0).at("id"), "c");
  EXPECT_EQ(rejected(body), std::pair(ErrorCode::session_unknown, std::string("input[1].id")));
  EXPECT_EQ(rejected(R"({"input":[{"type":"item_reference"}]})"),
            std::pair(ErrorCode::proto_field, std::string("input[0].id")));
  EXPECT_THAT(referenced_items("nonsense"), ElementsAre());
}

// --- values of others

constexpr const char* kHello = R"({"role":"user","content":"hi"})";

TEST(ValuesOfOthers, NegativeNumbersMeanNoLimitAndAnySeed) {
  for (const std::string fields :
       {R"("max_tokens":-1)", R"("max_tokens":-2)", R"("max_completion_tokens":-1)", R"("n_predict":-1.0)"})
    EXPECT_EQ(completion_of(kHello, "," + fields).generate.options.max_tokens, std::nullopt) << fields;
  EXPECT_EQ(completion_of(kHello, R"(,"max_tokens":7,"max_completion_tokens":-1)").generate.options.max_tokens, 7);
  EXPECT_EQ(completion_of(kHello, R"(,"seed":-1)").generate.options.sampling.seed, std::nullopt);
  EXPECT_EQ(completion_of(kHello, R"(,"seed":18446744073709551615)").generate.options.sampling.seed, UINT64_MAX);
}

TEST(ValuesOfOthers, ManyStopsAndEmptyOnes) {
  std::string many;
  for (int i = 0; i < 64; ++i) many += std::string(i == 0 ? "" : ",") + "\"s" + std::to_string(i) + "\"";
  EXPECT_EQ(completion_of(kHello, R"(,"stop":[)" + many + "]").generate.options.stop.size(), 64U);
  EXPECT_EQ(refused_field_of(R"({"messages":[)" + std::string(kHello) + R"(],"stop":["x",)" + many + "]}"), "stop");
  EXPECT_THAT(completion_of(kHello, R"(,"stop":["","a",null])").generate.options.stop, ElementsAre("a"));
  EXPECT_THAT(completion_of(kHello, R"(,"stop":"")").generate.options.stop, ElementsAre());
}

TEST(ValuesOfOthers, ABiasIsAnObjectOrAListOfPairs) {
  const auto sampling = [](const std::string& bias) {
    return completion_of(kHello, R"(,"logit_bias":)" + bias).generate.options.sampling;
  };
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  for (const std::string none : {"null", "{}", "[]"}) EXPECT_TRUE(sampling(none).logit_bias.empty()) << none;
  EXPECT_THAT(sampling(R"({"5":-100,"7":1.5})").logit_bias, ElementsAre(std::pair(5, kForbidden), std::pair(7, 1.5F)));
  EXPECT_THAT(sampling(R"([[5,false],[7,1.5]])").logit_bias, ElementsAre(std::pair(5, kForbidden), std::pair(7, 1.5F)));
  EXPECT_THAT(sampling(R"([["no",-1],["5",2]])").logit_bias_texts,
              ElementsAre(std::pair(std::string("no"), -1.0F), std::pair(std::string("5"), 2.0F)));
  EXPECT_THAT(sampling(R"({"no":false})").logit_bias_texts, ElementsAre(std::pair(std::string("no"), kForbidden)));
  for (const std::string bad : {"[5]", "[[5]]", "[[5,true]]", "[[-1,1]]", "[[1.5,1]]", R"([["",1]])", R"({"5":"a"})", "7"})
    EXPECT_EQ(refused_field_of(R"({"messages":[)" + std::string(kHello) + R"(],"logit_bias":)" + bad + "}"), "logit_bias")
        << bad;
}

TEST(ValuesOfOthers, NamesOfToolsAreTexts) {
  const auto tools = [](const std::string& name) {
    return R"("tools":[{"type":"function","function":{"name":")" + name + R"("}}])";
  };
  for (const std::string name : {"天气 now", "get weather", "a/b.c:d-e", "größe", "none"})
    EXPECT_THAT(completion_of(kHello, "," + tools(name)).generate.options.chat.tool_names, ElementsAre(name));
  for (const std::string name : {"", " a", "a ", "a<b", "a\\nb", "a\\\"b", "f(x)"}) {
    EXPECT_EQ(refused_field_of(R"({"messages":[)" + std::string(kHello) + "]," + tools(name) + "}"), "tools[0].function.name")
        << name;
  }
}

constexpr const char* kTwoTools =
    R"(,"tools":[{"type":"function","function":{"name":"f"}},{"type":"custom","custom":{"name":"patch","description":"Patches.",)"
    R"("format":{"type":"grammar","grammar":{"syntax":"regex","definition":"a+"}}}}])";

TEST(ValuesOfOthers, ACustomToolIsAFunctionWithOneText) {
  const ChatOptions chat = completion_of(kHello, kTwoTools).generate.options.chat;
  EXPECT_THAT(chat.tool_names, ElementsAre("f", "patch"));
  EXPECT_THAT(chat.custom_tools, ElementsAre("patch"));
  const boost::json::value tools = boost::json::parse(chat.tools);
  EXPECT_EQ(tools.at(0), boost::json::parse(R"({"type":"function","function":{"name":"f"}})"));
  EXPECT_EQ(tools.at(1).at("function").at("parameters").at("properties").at("input").at("pattern"), "^(?:a+)$");
  EXPECT_EQ(completion_of(kHello, std::string(kTwoTools) + R"(,"tool_choice":{"type":"custom","custom":{"name":"patch"}})")
                .generate.options.chat.tool_name,
            "patch");
}

TEST(ValuesOfOthers, AChoiceMayAllowSomeTools) {
  const auto choice = [](const std::string& value) {
    return completion_of(kHello, std::string(kTwoTools) + R"(,"tool_choice":)" + value).generate.options.chat;
  };
  const ChatOptions some = choice(
      R"({"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"f"}}]}})");
  EXPECT_EQ(some.tool_choice, ToolChoice::required);
  EXPECT_THAT(some.allowed_tools, ElementsAre("f"));
  EXPECT_THAT(some.tool_names, ElementsAre("f", "patch")) << "the model sees all of them";
  EXPECT_TRUE(some.may_call("f"));
  EXPECT_FALSE(some.may_call("patch"));
  EXPECT_EQ(choice(R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"custom","name":"patch"}]})").tool_choice,
            ToolChoice::automatic);
  EXPECT_EQ(choice(R"({"type":"allowed_tools","mode":"required","tools":[{"type":"mcp","server_label":"x"}]})").tools, "");
  for (const auto& [allowed, field] : std::vector<std::pair<std::string, std::string>>{
           {R"({"mode":"none","tools":[{"type":"function","function":{"name":"f"}}]})", "mode"},
           {R"({"mode":"auto","tools":[]})", "tools"},
           {R"({"mode":"auto","tools":[7]})", "tools[0]"},
           {R"({"mode":"auto","tools":[{"type":"function","function":{"name":"g"}}]})", "tools[0].function.name"}}) {
    EXPECT_EQ(refused_field_of(R"({"messages":[)" + std::string(kHello) + "]" + kTwoTools +
                               R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":)" + allowed + "}}"),
              "tool_choice.allowed_tools." + field);
  }
}

// --- replies that a client has begun

constexpr const char* kBegun = R"({"role":"user","content":"hi"},{"role":"assistant","content":"The"})";

TEST(BegunReplies, TheLastMessageOfTheAssistantGoesOn) {
  EXPECT_TRUE(completion_of(kBegun).generate.options.chat.continues_reply);
  EXPECT_TRUE(completion_of(kBegun, R"(,"continue_final_message":true,"add_generation_prompt":false)")
                  .generate.options.chat.continues_reply);
  EXPECT_FALSE(completion_of(kHello).generate.options.chat.continues_reply);
  const std::string body = R"({"messages":[)" + std::string(kBegun) + "]}";
  EXPECT_TRUE(decode_messages(body)->generate.options.chat.continues_reply);
  EXPECT_TRUE(decode_ollama(OllamaKind::chat, body)->generate.options.chat.continues_reply);
}

TEST(BegunReplies, AClientMayWantANewReply) {
  for (const std::string fields : {R"("continue_final_message":false)", R"("add_generation_prompt":true)"})
    EXPECT_FALSE(completion_of(kBegun, "," + fields).generate.options.chat.continues_reply) << fields;
}

TEST(BegunReplies, AnEmptyOneIsNone) {
  const CompletionRequest request = completion_of(std::string(kHello) + R"(,{"role":"assistant","content":""})");
  EXPECT_FALSE(request.generate.options.chat.continues_reply);
  EXPECT_EQ(request.prompts.front().messages.size(), 1U);
  EXPECT_TRUE(completion_of(std::string(kHello) + R"(,{"role":"assistant","content":"","reasoning":"Hm"})")
                  .generate.options.chat.continues_reply);
}

TEST(BegunReplies, CallsAreNotContinued) {
  const std::string calling =
      std::string(kHello) + R"(,{"role":"assistant","content":"a","tool_calls":[{"id":"1","function":{"name":"f"}}]})";
  EXPECT_FALSE(completion_of(calling).generate.options.chat.continues_reply);
  const std::string forced = std::string(kTwoTools) + R"(,"tool_choice":"required")";
  EXPECT_FALSE(completion_of(kBegun, forced).generate.options.chat.continues_reply);
  const auto refused = [](const std::string& messages, const std::string& fields) {
    return refused_field_of(R"({"messages":[)" + messages + "]" + fields + "}");
  };
  EXPECT_EQ(refused(calling, R"(,"continue_final_message":true)"), "continue_final_message");
  EXPECT_EQ(refused(kBegun, forced + R"(,"continue_final_message":true)"), "continue_final_message");
  EXPECT_EQ(refused(kHello, R"(,"continue_final_message":true)"), "continue_final_message");
  EXPECT_EQ(refused(kHello, R"(,"add_generation_prompt":false)"), "add_generation_prompt");
  EXPECT_EQ(refused(kBegun, R"(,"continue_final_message":true,"add_generation_prompt":true)"), "continue_final_message");
  EXPECT_EQ(refused(kBegun, R"(,"continue_final_message":false,"add_generation_prompt":false)"), "add_generation_prompt");
}

// The last message of the history in each API, with a call `c` of tool `f` before it.
std::vector<ChatMessage> results_of(const std::string& content) {
  const std::string chat = history_of(R"({"role":"user","content":"a"},
      {"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f"}}]},
      {"role":"tool","tool_call_id":"c","content":)" +
                                      content + "}")[2]
                               .content;
  const ResponseCall response = decoded(R"({"input":[{"role":"user","content":"a"},
      {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
      {"type":"function_call_output","call_id":"c","output":)" +
                                        content + "}]}");
  const auto messages = decode_messages(R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":)" +
                                        content + "}]}]}");
  EXPECT_TRUE(messages) << content;
  return {{"chat", chat},
          {"responses", response.generate.input.messages.back().content},
          {"messages", messages ? messages->generate.input.messages.back().content : ""}};
}

// What a tool has returned stays in the history, so a value that is no text must not be an error.
TEST(Histories, ResultsOfToolsMayBeAnyJson) {
  for (const auto& [content, text] : std::vector<std::pair<std::string, std::string>>{
           {"42", "42"},
           {"true", "true"},
           {"null", ""},
           {"[]", ""},
           {R"({"a":[1,null]})", R"({"a":[1,null]})"},
           {R"([{"title":"x"},{"title":"y"}])", R"([{"title":"x"},{"title":"y"}])"},
           {R"([1,2])", "[1,2]"},
           {R"(["a"])", "a"},
           {R"([{"type":"text","text":null}])", ""},
           {R"([{"text":"a"}])", "a"},
           {R"(["a",{"type":"resource","uri":"u"}])", R"(a{"type":"resource","uri":"u"})"},
           {R"([{"id":5,"text":"Berlin","population":3}])", R"([{"id":5,"text":"Berlin","population":3}])"},
           {R"([{"type":"resource","resource":{"uri":"u","text":"a"}}])", "a"},
           {R"([{"type":"input_image","file_id":"f"}])", R"({"type":"input_image","file_id":"f"})"}}) {
    for (ChatMessage& result : results_of(content)) {
      std::erase(result.content, '\n');  // Between blocks of Messages.
      EXPECT_EQ(result.content, text) << result.role << ": " << content;
    }
  }
  EXPECT_EQ(refused_field_of(R"({"messages":[{"role":"user","content":[{"type":"text","content":"Hello"}]}]})"),
            "messages[0].content")
      << "a user's text is not lost";
  const std::string file = R"([{"type":"text","text":"a"},{"type":"file","data":")" + std::string(32 << 10, 'A') + "\"}]";
  for (const ChatMessage& result : results_of(file)) {
    EXPECT_THAT(result.content, ::testing::MatchesRegex("a\n?.There is a part here.*")) << result.role;
  }
  const auto ollama = decode_ollama(
      OllamaKind::chat, R"({"model":"m","messages":[{"role":"user","content":"a"},{"role":"tool","content":{"a":1}}]})");
  EXPECT_EQ(ollama.value().generate.input.messages.back().content, R"({"a":1})");
}

TEST(Histories, CallsMayLackWhatACutStreamHasLost) {
  EXPECT_EQ(reply_of(R"("content":"x","tool_calls":[{"id":"","type":"function"}])").extra,
            R"({"tool_calls":[{"id":"c00001000","type":"function","function":{"name":"unknown","arguments":"{}"}}]})");
  EXPECT_EQ(reply_of(R"("tool_calls":[{"id":1,"function":{"name":null,"arguments":"{}"}}])").extra,
            R"({"tool_calls":[{"id":"1","type":"function","function":{"name":"unknown","arguments":"{}"}}]})");
  EXPECT_EQ(reply_of(R"("tool_calls":[{"id":"c","type":"function","name":"f","arguments":"{\"a\":1}"}])").extra,
            R"({"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]})");
  const ResponseCall response =
      decoded(R"({"input":[{"role":"user","content":"a"},{"type":"function_call","call_id":"c","arguments":"{}"}]})");
  EXPECT_THAT(response.generate.input.messages.back().extra, HasSubstr(R"("name":"unknown")"));
  const auto messages = decode_messages(R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":[{"type":"tool_use","id":"c"}]},{"role":"user","content":"b"}]})");
  EXPECT_THAT(messages.value().generate.input.messages[1].extra, HasSubstr(R"("name":"unknown")"));
  const auto ollama = decode_ollama(
      OllamaKind::chat, R"({"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{}]}]})");
  EXPECT_THAT(ollama.value().generate.input.messages.back().extra, HasSubstr(R"("name":"unknown")"));
}

TEST(Histories, NullIsAnEmptyText) {
  EXPECT_EQ(history_of(R"({"role":"system","content":null},{"role":"user","content":null})"),
            (std::vector<ChatMessage>{{"system", ""}, {"user", ""}, {"user", "Sure?"}}));
  EXPECT_EQ(decoded(R"({"input":[{"role":"user","content":null}]})").generate.input.messages,
            (std::vector<ChatMessage>{{"user", ""}}));
  EXPECT_EQ(decode_messages(R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":null}]})")
                .value()
                .generate.input.messages,
            (std::vector<ChatMessage>{{"user", ""}}));
}

// Servers that draw have put pictures into replies. Models do not read them there.
TEST(Histories, AnImageOfAReplyIsALine) {
  const std::string line(kImageOfReply);
  constexpr const char* kUrl = R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}})";
  EXPECT_EQ(reply_of(std::string(R"("content":[{"type":"text","text":"Here: "},)") + kUrl + "]").content, "Here: " + line);
  const ResponseCall response =
      decoded(R"({"input":[{"role":"assistant","content":[{"type":"input_image","image_url":"data:,"}]}]})");
  EXPECT_EQ(response.generate.input.messages.back().content, line);
  EXPECT_TRUE(response.generate.input.images.empty());
  const auto messages = decode_messages(R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":[{"type":"image","source":{"type":"base64","data":"AA=="}}]},{"role":"user","content":"b"}]})");
  EXPECT_EQ(messages.value().generate.input.messages[1].content, line);
  const auto ollama = decode_ollama(OllamaKind::chat, R"({"model":"m","messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":"b","images":["AA=="]},{"role":"user","content":"c"}]})");
  EXPECT_EQ(ollama.value().generate.input.messages[1].content, "b" + line);
}

TEST(Histories, ImagesHaveTheFormOfAnyApi) {
  for (const char* part : {R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}})",
                           R"({"type":"image_url","image_url":"AA=="})",
                           R"({"type":"input_image","image_url":{"url":"DATA:image/png;BASE64,AA=="}})",
                           R"({"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}})",
                           R"({"type":"image","image":"data:image/png;base64,AA=="})",
                           R"({"type":"image","data":"AA==","mimeType":"image/png"})"}) {
    const auto request = completion_of(std::string(R"({"role":"user","content":[)") + part + "]}");
    ASSERT_EQ(request.prompts.front().images.size(), 1U) << part;
    EXPECT_EQ(request.prompts.front().images.front().source.kind, ImageSource::Kind::data) << part;
    const ResponseCall response = decoded(std::string(R"({"input":[{"role":"user","content":[)") + part + "]}]}");
    EXPECT_EQ(response.generate.input.images.size(), 1U) << part;
    const auto messages = decode_messages(std::string(R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":[
        {"type":"tool_result","tool_use_id":"c","content":[)") +
                                          part + "]}]}]}");
    EXPECT_EQ(messages.value().generate.input.images.size(), 1U) << part;
  }
}

}  // namespace
}  // namespace uma::wire
