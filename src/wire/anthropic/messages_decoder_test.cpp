#include "wire/anthropic/messages_decoder.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A request with these fields.
MessagesCall decoded_call(const std::string& fields) {
  auto call = decode_messages("{" + fields + "}");
  EXPECT_TRUE(call.has_value()) << fields << ": " << (call ? "" : call.error().error.message);
  return call ? *std::move(call) : MessagesCall();
}

// A request with these messages, and perhaps other fields behind them.
MessagesCall call_saying(const std::string& messages, const std::string& fields = "") {
  return decoded_call(R"("messages":[)" + messages + "]" + fields);
}

std::vector<ChatMessage> messages_of(const std::string& text, const std::string& fields = "") {
  return call_saying(text, fields).generate.input.messages;
}

GenerateOptions options_of(const std::string& fields) {
  return call_saying(R"({"role":"user","content":"hi"})", "," + fields).generate.options;
}

RejectedBody refused_call(const std::string& fields) {
  auto call = decode_messages("{" + fields + "}");
  EXPECT_FALSE(call.has_value()) << fields;
  return call ? RejectedBody() : call.error();
}

constexpr const char* kHiMessage = R"({"role":"user","content":"hi"})";

TEST(DecodeMessages, AStringAndASingleBlockAreEqual) {
  const std::vector<ChatMessage> plain = messages_of(kHiMessage, R"(,"system":"be brief")");
  EXPECT_THAT(plain, ElementsAre(ChatMessage{"system", "be brief"}, ChatMessage{"user", "hi"}));
  EXPECT_EQ(plain,
            messages_of(R"({"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]})",
                        R"(,"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}])"));
}

TEST(DecodeMessages, MessagesOfOneRoleInARowBecomeOne) {
  EXPECT_THAT(
      messages_of(R"({"role":"user","content":"one"},{"role":"user","content":[{"type":"text","text":"two"},)"
                  R"({"type":"text","text":"three"}]},{"role":"assistant","content":"a"},{"role":"assistant","content":"b"})"),
      ElementsAre(ChatMessage{"user", "one\ntwo\nthree"}, ChatMessage{"assistant", "ab"}));
}

TEST(DecodeMessages, ASystemMessageBeforeTheFirstReplyBelongsToTheSystemPrompt) {
  EXPECT_THAT(messages_of(R"({"role":"user","content":"hi"},{"role":"system","content":[{"type":"text","text":"note"}]})",
                          R"(,"system":[{"type":"text","text":"one"},{"type":"text","text":"two"}])"),
              ElementsAre(ChatMessage{"system", "one\ntwo\nnote"}, ChatMessage{"user", "hi"}));
  EXPECT_THAT(
      messages_of(R"({"role":"user","content":"hi"},{"role":"assistant","content":"yes"},{"role":"system","content":"note"},)"
                  R"({"role":"user","content":"go on"})"),
      ElementsAre(ChatMessage{"user", "hi"}, ChatMessage{"assistant", "yes"},
                  ChatMessage{"user", "<system-reminder>\nnote\n</system-reminder>\ngo on"}));
}

TEST(DecodeMessages, DropsTheBillingLineOfTheSystemPrompt) {
  const std::string line = "x-anthropic-billing-header: cc_version=2.1; cch=abcde;";
  EXPECT_THAT(
      messages_of(kHiMessage, R"(,"system":[{"type":"text","text":")" + line + R"("},{"type":"text","text":"be brief"}])"),
      ElementsAre(ChatMessage{"system", "be brief"}, ChatMessage{"user", "hi"}));
  EXPECT_THAT(messages_of(kHiMessage, R"(,"system":")" + line + R"(\nbe brief")"),
              ElementsAre(ChatMessage{"system", "be brief"}, ChatMessage{"user", "hi"}));
  EXPECT_THAT(messages_of(kHiMessage, R"(,"system":")" + line + R"(")"), ElementsAre(ChatMessage{"user", "hi"}));
  EXPECT_EQ(messages_of(R"({"role":"user","content":")" + line + R"("})").front().content, line) << "a user may say so";
}

TEST(DecodeMessages, CallsAndResultsOfTools) {
  const std::vector<ChatMessage> all = messages_of(
      R"({"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},)"
      R"({"type":"redacted_thinking","data":"x"},{"type":"text","text":"I look."},)"
      R"({"type":"tool_use","id":"1","name":"look","input":{"b":1,"a":"x"}},{"type":"tool_use","id":"2","name":"wait","input":{}}]},)"
      R"({"role":"user","content":[{"type":"text","text":"And?"},{"type":"tool_result","tool_use_id":"1","content":"a dog"},)"
      R"({"type":"tool_result","tool_use_id":"2","is_error":true,"content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},)"
      R"({"type":"tool_result","tool_use_id":"3"}]})");
  ASSERT_EQ(all.size(), 6U);
  EXPECT_EQ(all[1].content, "I look.");
  EXPECT_EQ(all[1].extra, R"({"reasoning_content":"hm","tool_calls":[)"
                          R"({"id":"1","type":"function","function":{"name":"look","arguments":"{\"b\":1,\"a\":\"x\"}"}},)"
                          R"({"id":"2","type":"function","function":{"name":"wait","arguments":"{}"}}]})");
  EXPECT_EQ(all[2], (ChatMessage{"tool", "a dog", R"({"tool_call_id":"1","name":"look"})"}));
  EXPECT_EQ(all[3], (ChatMessage{"tool", "Error: one\ntwo", R"({"tool_call_id":"2","name":"wait"})"}));
  EXPECT_EQ(all[4], (ChatMessage{"tool", "", R"({"tool_call_id":"3"})"})) << "of an unknown call";
  EXPECT_EQ(all[5], (ChatMessage{"user", "And?"})) << "after the results";
}

TEST(DecodeMessages, AResultAloneNeedsNoTextOfTheUser) {
  const std::vector<ChatMessage> all =
      messages_of(R"({"role":"assistant","content":[{"type":"tool_use","id":"1","name":"look"}]},)"
                  R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"a dog"}]})");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].role, "tool");
}

TEST(DecodeMessages, ImagesStandWhereTheyStood) {
  const MessagesCall call = call_saying(
      R"({"role":"user","content":[{"type":"text","text":"ab"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},)"
      R"({"type":"text","text":"c"},{"type":"image","source":{"type":"url","url":"http://host/x.png"}}]})",
      R"(,"system":"s")");
  const Input& input = call.generate.input;
  ASSERT_EQ(input.images.size(), 2U);
  EXPECT_EQ(input.messages[1].content, "ab\nc");
  EXPECT_EQ(input.images[0].message, 1U);
  EXPECT_EQ(input.images[0].at, 2U);
  EXPECT_EQ(input.images[0].source.kind, ImageSource::Kind::data);
  EXPECT_EQ(input.images[0].source.text, "AAAA");
  EXPECT_EQ(input.images[0].field, "messages[0].content[1]");
  EXPECT_EQ(input.images[1].at, 4U);
  EXPECT_EQ(input.images[1].source.kind, ImageSource::Kind::url);
}

TEST(DecodeMessages, AnImageOfAToolStandsInItsResult) {
  const MessagesCall call = call_saying(
      R"({"role":"assistant","content":[{"type":"tool_use","id":"1","name":"read","input":{}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"x.png"},)"
      R"({"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},{"type":"text","text":"end"}]},{"type":"image",)"
      R"("source":{"type":"base64","media_type":"image/png","data":"BBBB"}},{"type":"text","text":"And?"}]})");
  const Input& input = call.generate.input;
  ASSERT_EQ(input.messages.size(), 3U);
  EXPECT_EQ(input.messages[1].content, "x.png\n\nend");
  EXPECT_EQ(input.messages[2], (ChatMessage{"user", "And?"}));
  ASSERT_EQ(input.images.size(), 2U);
  EXPECT_EQ(input.images[0].message, 1U);
  EXPECT_EQ(input.images[0].at, 6U);
  EXPECT_EQ(input.images[0].field, "messages[1].content[0].content[1]");
  EXPECT_EQ(input.images[1].message, 2U);
  EXPECT_EQ(input.images[1].at, 0U);
}

TEST(DecodeMessages, DocumentsAndSearchResultsAreText) {
  EXPECT_EQ(
      messages_of(
          R"({"role":"user","content":[{"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"d"}},)"
          R"({"type":"document","source":{"type":"content","content":[{"type":"text","text":"e"}]}},)"
          R"({"type":"search_result","source":"http://s","title":"U","content":[{"type":"text","text":"f"}]}]})")
          .front()
          .content,
      "<document>\n<title>T</title>\nd\n</document>\n<document>\ne\n</document>\n"
      "<search_result>\n<title>U</title>\n<source>http://s</source>\nf\n</search_result>");
}

TEST(DecodeMessages, LeavesOutBlocksOfOtherServersWithAWarning) {
  const MessagesCall call = call_saying(
      R"({"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"server_tool_use","id":"1","name":"web_search","input":{}},)"
      R"({"type":"web_search_tool_result","tool_use_id":"1","content":[]},{"type":"server_tool_use","id":"2","name":"web_search"},)"
      R"({"type":"text","text":"yes"}]})");
  EXPECT_EQ(call.generate.input.messages.back(), (ChatMessage{"assistant", "yes"}));
  EXPECT_THAT(call.warnings, ElementsAre("blocks left out, which this server cannot read: server_tool_use, *_tool_result"));
}

constexpr const char* kLookTool =
    R"({"name":"look","description":"Looks.","input_schema":{"type":"object"},"cache_control":{}})";

TEST(DecodeMessages, ToolsHaveTheFormThatTemplatesExpect) {
  const ChatOptions chat =
      options_of(std::string(R"("tools":[)") + kLookTool + R"(,{"type":"custom","name":"wait","input_schema":{}}])").chat;
  EXPECT_EQ(chat.tools,
            R"([{"type":"function","function":{"name":"look","description":"Looks.","parameters":{"type":"object"}}},)"
            R"({"type":"function","function":{"name":"wait","parameters":{}}}])");
  EXPECT_THAT(chat.tool_names, ElementsAre("look", "wait"));
  EXPECT_EQ(chat.tool_choice, ToolChoice::automatic);
  EXPECT_TRUE(chat.has_parallel_calls);
  EXPECT_TRUE(chat.splits_reasoning);
}

TEST(DecodeMessages, TheChoiceOfATool) {
  const auto choice = [](const std::string& value) {
    return options_of(std::string(R"("tools":[)") + kLookTool + R"(],"tool_choice":)" + value).chat;
  };
  EXPECT_EQ(choice(R"({"type":"auto"})").tool_choice, ToolChoice::automatic);
  EXPECT_EQ(choice(R"({"type":"any"})").tool_choice, ToolChoice::required);
  EXPECT_FALSE(choice(R"({"type":"any","disable_parallel_tool_use":true})").has_parallel_calls);
  EXPECT_EQ(choice(R"({"type":"tool","name":"look"})").tool_choice, ToolChoice::named);
  EXPECT_EQ(choice(R"({"type":"tool","name":"look"})").tool_name, "look");
  EXPECT_EQ(choice(R"({"type":"none"})").tools, "") << "the model does not hear of them";
}

TEST(DecodeMessages, LeavesOutToolsOfAnthropicsServersWithAWarning) {
  const MessagesCall call =
      call_saying(kHiMessage, std::string(R"(,"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":8},)") +
                                  kLookTool + "]");
  EXPECT_THAT(call.generate.options.chat.tool_names, ElementsAre("look"));
  EXPECT_THAT(call.warnings, ElementsAre("tools left out, because Anthropic's servers run them: web_search"));
  const RejectedBody alone = refused_call(std::string(R"("messages":[)") + kHiMessage +
                                          R"(],"tools":[{"type":"web_search_20250305","name":"web_search"}])");
  EXPECT_EQ(alone.field, "tools");
  EXPECT_THAT(alone.error.message, HasSubstr("not available on this server: web_search"));
}

TEST(DecodeMessages, ThinkingEffortAndFormat) {
  const auto arguments = [](const std::string& fields) { return options_of(fields).chat.template_arguments; };
  EXPECT_EQ(arguments(R"("max_tokens":1)"), "");
  EXPECT_EQ(arguments(R"("thinking":{"type":"enabled","budget_tokens":1024})"), R"({"enable_thinking":true})");
  EXPECT_EQ(arguments(R"("thinking":{"type":"adaptive"},"output_config":{"effort":"low"})"),
            R"({"reasoning_effort":"low","enable_thinking":true})");
  EXPECT_EQ(arguments(R"("thinking":{"type":"disabled"})"), R"({"enable_thinking":false})");
  EXPECT_EQ(arguments(R"("output_config":{"effort":"max"})"), R"({"reasoning_effort":"max"})");
  const auto budget = [](const std::string& fields) { return options_of(fields).chat.thinking_budget; };
  EXPECT_EQ(budget(R"("thinking":{"type":"enabled","budget_tokens":1024})"), 1024);
  EXPECT_EQ(budget(R"("thinking":{"type":"adaptive"})"), std::nullopt);
  EXPECT_EQ(options_of(R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}})").json_schema,
            R"({"type":"object"})");
  EXPECT_TRUE(options_of(R"("uma":{"strict_schema":true})").strict_schema);
}

TEST(DecodeMessages, SamplingAndLimits) {
  const GenerateOptions plain = options_of(R"("max_tokens":99999999999)");
  EXPECT_EQ(plain.sampling.temperature, 1);
  EXPECT_EQ(plain.max_tokens, 2'147'483'647) << "the engine lowers it";
  EXPECT_FALSE(plain.stream);
  EXPECT_EQ(options_of(R"("temperature":0)").max_tokens, std::nullopt);
  const GenerateOptions given = options_of(
      R"("temperature":0.5,"top_p":0.9,"top_k":40,"stop_sequences":["a","b"],"stream":true,"metadata":{"user_id":"{}"},)"
      R"("context_management":{"edits":[]},"service_tier":"auto","unknown":[1])");
  EXPECT_EQ(given.sampling.temperature, 0.5);
  EXPECT_EQ(given.sampling.top_p, 0.9);
  EXPECT_EQ(given.sampling.top_k, 40);
  EXPECT_THAT(given.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(given.stream);
  EXPECT_THAT(call_saying(kHiMessage).warnings, IsEmpty());
}

TEST(DecodeMessages, AnErrorNamesItsField) {
  const auto in_user = [](const std::string& block) { return R"("messages":[{"role":"user","content":[)" + block + "]}]"; };
  const std::string hi = std::string(R"("messages":[)") + kHiMessage + "]";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("model":"x")", "messages"},
      {R"("messages":[])", "messages"},
      {R"("messages":[{"role":"system","content":"s"}])", "messages"},
      {R"("messages":[7])", "messages[0]"},
      {R"("messages":[{"content":"x"}])", "messages[0].role"},
      {R"("messages":[{"role":"king","content":"x"}])", "messages[0].role"},
      {R"("messages":[{"role":"user"}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":7}])", "messages[0].content"},
      {in_user("7"), "messages[0].content[0]"},
      {in_user(R"({"type":"text"})"), "messages[0].content[0].text"},
      {in_user(R"({"type":"hologram"})"), "messages[0].content[0].type"},
      {in_user(R"({"type":"tool_use","id":"1","name":"f"})"), "messages[0].content[0].type"},
      {in_user(R"({"type":"image","source":{"type":"file","file_id":"f"}})"), "messages[0].content[0].source.type"},
      {in_user(R"({"type":"image"})"), "messages[0].content[0].data"},
      {in_user(R"({"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AA"}})"),
       "messages[0].content[0].source.type"},
      {in_user(R"({"type":"tool_result","tool_use_id":true})"), "messages[0].content[0].tool_use_id"},
      {R"("messages":[{"role":"assistant","content":[{"type":"hologram"}]}])", "messages[0].content[0].type"},
      {hi + R"(,"system":7)", "system"},
      {hi + R"(,"system":[{"type":"image"}])", "system[0].type"},
      {hi + R"(,"max_tokens":"a")", "max_tokens"},
      {hi + R"(,"stop_sequences":[1])", "stop_sequences"},
      {hi + R"(,"tools":[{"name":"f"}])", "tools[0].input_schema"},
      {hi + R"(,"tools":[{"name":"a<b","input_schema":{}}])", "tools[0].name"},
      {hi + R"(,"tools":[{"name":"f","input_schema":{}},{"name":"f","input_schema":{}}])", "tools[1].name"},
      {hi + R"(,"tools":[{"type":"bash_20250124","name":"bash"}])", "tools[0].type"},
      {hi + R"(,"tools":[{"type":"function","function":{"name":"f"}}])", "tools[0].type"},
      {hi + R"(,"tool_choice":{"type":"tool","name":"f"})", "tool_choice.name"},
      {hi + R"(,"compaction":{"type":"summary"})", "compaction"},
      {hi + R"(,"output_format":{"type":"json_schema"})", "output_format.schema"},
      {hi + R"(,"tool_choice":{"type":"sometimes"})", "tool_choice.type"},
      {hi + R"(,"tool_choice":"auto")", "tool_choice"},
      {hi + R"(,"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"g"})", "tool_choice.name"},
      {hi + R"(,"thinking":{})", "thinking.type"},
      {hi + R"(,"thread":{"type":"create"})", "thread"},
      {hi + R"(,"output_config":{"format":{"type":"yaml"}})", "output_config.format.type"},
      {hi + R"(,"output_config":{"format":{"type":"json_schema"}})", "output_config.format.schema"},
  };
  for (const auto& [fields, field] : cases) {
    const RejectedBody refusal = refused_call(fields);
    EXPECT_EQ(refusal.error.code, ErrorCode::proto_field) << fields;
    EXPECT_EQ(refusal.field, field) << fields << ": " << refusal.error.message;
    EXPECT_THAT(refusal.error.message, HasSubstr(field));
  }
}

}  // namespace
}  // namespace uma::wire
