// What a model wrote comes back as it was: a reply in the notation of its family, parsed as a client gets it, written into the
// conversation by the family's template, has the text of the reply again, so its KV is found. Where a template writes something
// else, `becomes` says what.
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "chat/calls/tool_format.h"
#include "chat/chat.h"
#include "chat/reply/reply_parser.h"
#include "testing/fake_model.h"

namespace uma::chat {
namespace {

namespace fs = std::filesystem;

const fs::path kTemplates = UMA_TEMPLATES_FOLDER;

std::string content_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct RoundTrip {
  std::string_view family;
  std::string_view reply;
  std::string_view becomes{};  // Empty: the reply.
  // The options of the template.
  std::string_view template_arguments = R"({"enable_thinking": true, "thinking": true})";
  // How much of the prompt's end the template writes differently behind a reply. It has opened the thoughts that are left out.
  std::string_view reopened{};
  bool is_forced = false;  // The request forces calls.
};

std::ostream& operator<<(std::ostream& out, const RoundTrip& trip) {
  return out << trip.family;
}

constexpr RoundTrip kRoundTrips[] = {
    {.family = "gpt_oss",
     .reply = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.weather<|channel|>commentary json"
              "<|message|>{\"city\": \"Köln\", \"days\": 2}<|call|>"},
    {.family = "gpt_oss",
     .reply = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
              "<|constrain|>json<|message|>{\"city\":\"Köln\"}<|call|>",
     .becomes = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.weather<|channel|>commentary json"
                "<|message|>{\"city\": \"Köln\"}<|call|>"},
    {.family = "gpt_oss",
     .reply = "<|channel|>commentary<|message|>C<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>"
              "{}<|call|>"},
    {.family = "qwen3",
     .reply = "<think>\nHm.\n</think>\n\nC\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\", \"days\": "
              "2}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"},
    {.family = "qwen3_thinking", .reply = "Hm.\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"},
    {.family = "qwen3_coder",
     .reply = "C\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
              "<parameter=tags>\n[\"a\", \"b\"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n"
              "</function>\n</tool_call>"},
    {.family = "qwen3_coder",
     .reply = "<tool_call>\n<function=weather>\n<parameter=city>\nIn\n two lines\n</parameter>\n<parameter=exact>\ntrue\n"
              "</parameter>\n</function>\n</tool_call>",
     .becomes = "<tool_call>\n<function=weather>\n<parameter=city>\nIn\n two lines\n</parameter>\n<parameter=exact>\nTrue\n"
                "</parameter>\n</function>\n</tool_call>"},
    {.family = "qwen3_5",
     .reply = "Hm.\n</think>\n\nC\n\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n</function>\n"
              "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"},
    {.family = "glm_4_6",
     .reply = "\n<think>Hm.</think>\nC\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>days"
              "</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>"},
    {.family = "glm_4_7",
     .reply = "Hm.</think>C<tool_call>weather<arg_key>city</arg_key><arg_value>Köln</arg_value></tool_call><tool_call>now"
              "</tool_call>"},
    {.family = "minimax_m2",
     .reply = "Hm.\n</think>\n\nC\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Köln</parameter>\n"
              "<parameter name=\"exact\">true</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>"},
    {.family = "kimi_k2",
     .reply = "C<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": "
              "\"Köln\"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
              "<|tool_calls_section_end|>"},
    {.family = "kimi_k2_thinking",
     .reply = "<think>Hm.</think>C<|tool_calls_section_begin|><|tool_call_begin|>functions.now:3<|tool_call_argument_begin|>{}"
              "<|tool_call_end|><|tool_calls_section_end|>"},
    {.family = "deepseek_v3_1",
     .reply = "C<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Köln\"}<｜tool▁call▁end｜>"
              "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     .template_arguments = "{}"},
    {.family = "deepseek_v3_2",
     .reply =
         "Hm.</think>C\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" "
         "string=\"true\">Köln</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n"
         "</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
    {.family = "deepseek_v4",
     .reply = "Hm.</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"},
    {.family = "mistral_v11",
     .reply = "C[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{\"city\": \"Köln\"}[TOOL_CALLS]now[CALL_ID]a1b2c3d4f[ARGS]{}"},
    {.family = "mistral_v13", .reply = "C[TOOL_CALLS]weather[ARGS]{\"city\": \"Köln\"}[TOOL_CALLS]now[ARGS]{}"},
    {.family = "magistral", .reply = "[THINK]Hm.[/THINK]C[TOOL_CALLS]weather[ARGS]{\"city\": \"Köln\"}[TOOL_CALLS]now[ARGS]{}"},
    {.family = "magistral", .reply = "[THINK]Hm.[/THINK][TOOL_CALLS]now[ARGS]{}"},
    {.family = "gemma4",
     .reply = "<|channel>thought\nHm.\n<channel|>C<|tool_call>call:weather{city:<|\"|>Köln<|\"|>,days:2,exact:true,"
              "near:{lat:-23.5},tags:[<|\"|>a<|\"|>]}<tool_call|><|tool_call>call:now{}<tool_call|>"},
    {.family = "granite4", .reply = "C\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"},
    {.family = "llama3_1", .reply = "{\"name\": \"weather\", \"parameters\": {\"city\": \"Köln\", \"exact\": true}}"},
    {.family = "llama4", .reply = "<|python_start|>[weather(city='Köln', days=2), now()]<|python_end|>"},
    {.family = "nemotron_3",
     .reply =
         "Hm.\n</think>\nC\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n</function>\n</tool_call>\n"
         "<tool_call>\n<function=now>\n</function>\n</tool_call>\n"},
    {.family = "nemotron_nano_v2",
     .reply = "Hm.\n</think>\n\nC\n<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>",
     .becomes = "C\n<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>",
     .reopened = "<think>\n"},
    {.family = "seed_oss",
     .reply = "<seed:think>Hm.</seed:think>\nC\n<seed:tool_call>\n<function=weather>\n<parameter=city>Köln</parameter>\n"
              "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n"
              "</seed:tool_call>"},
    {.family = "lfm2", .reply = "<|tool_call_start|>[weather(city=\"Köln\", exact=True), now()]<|tool_call_end|>"},
    {.family = "command_r7b",
     .reply =
         "<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", "
         "\"parameters\": {\"city\": \"Köln\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"now\", \"parameters\": {}}\n]"
         "<|END_ACTION|>"},
    {.family = "cohere2_moe",
     .reply =
         "Hm.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"now\", \"parameters\": {}}\n]"
         "<|END_ACTION|>"},
    {.family = "exaone4", .reply = "Hm.\n</think>\n\nC\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"},
    {.family = "step_3_5",
     .reply =
         "Hm.\n</think>\n<tool_call>\n<function=weather>\n<parameter=exact>\ntrue\n</parameter>\n</function>\n</tool_call>"},
    {.family = "command_r_plus",
     .reply =
         "C\nAction:\n```json\n[\n    {\"tool_name\": \"weather\", \"parameters\": {\"city\": \"Köln\"}},\n    {\"tool_name\": "
         "\"now\", \"parameters\": {}}\n]\n```",
     .becomes =
         "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>C\nAction:\n```json\n[\n    {\"tool_name\": \"weather\", \"parameters\": "
         "{\"city\": \"Köln\"}},\n    {\"tool_name\": \"now\", \"parameters\": {}}\n]\n```",
     .reopened = "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Write 'Action:' and a list of calls, or directly_answer."
                 "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
    {.family = "functionary_3_2", .reply = "weather\n{\"city\": \"Köln\", \"days\": 2}>>>now\n{}"},
    {.family = "functionary_3_2", .reply = "all\nC>>>now\n{}"},
    {.family = "gigachat_3",
     .reply = "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}"},
    {.family = "gigachat_3",
     .reply = "C<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"now\", \"arguments\": {}}<|message_sep|>\n\n"},
    {.family = "kimi_k3",
     .reply =
         "Hm.<|close|>think<|sep|><|open|>response<|sep|>C<|close|>response<|sep|><|open|>tools<|sep|><|open|>call "
         "tool=\"weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>\nKöln\n<|close|>argument"
         "<|sep|><|open|>argument key=\"tags\" type=\"array\"<|sep|>[\"a\"]<|close|>argument<|sep|><|open|>argument "
         "key=\"days\" type=\"number\"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"now\" index=\"2\""
         "<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"},
    {.family = "kimi_k3",
     .reply = "Hm.<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call "
              "tool=\"now\" index=\"1\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"},
    {.family = "mirothinker",
     .reply =
         "<think>\nHm.\n</think>\n\nC\n<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>weather</tool_name>\n"
         "<arguments>\n{\"city\": \"Köln\", \"days\": 2}\n</arguments>\n</use_mcp_tool>\n<use_mcp_tool>\n<server_name>tools"
         "</server_name>\n<tool_name>now</tool_name>\n<arguments>\n{}\n</arguments>\n</use_mcp_tool>"},
    {.family = "xlam2",
     .reply = "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}, {\"name\": \"now\", \"arguments\": {}}]"},
    {.family = "hermes_tools",
     .reply =
         "<tool_call>\n{\"arguments\": {\"city\": \"Köln\", \"days\": 2}, \"name\": \"weather\"}\n</tool_call>\n<tool_call>\n"
         "{\"arguments\": {}, \"name\": \"now\"}\n</tool_call>"},
    {.family = "mistral_v3",
     .reply = "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}, \"id\": \"a1b2c3d4e\"}, {\"name\": "
              "\"now\", \"arguments\": {}, \"id\": \"a1b2c3d4f\"}]",
     .is_forced = true},
    {.family = "minimax_m3",
     .reply =
         "Hm.</mm:think>C\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"weather\">]<]minimax[>[<city>Köln]<]minimax[>["
         "</city>]<]minimax[>[<tags>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[<item>b]<]minimax[>[</item>]<]minimax"
         "[>[</tags>]<]minimax[>[<near>]<]minimax[>[<lat>-23.5]<]minimax[>[</lat>]<]minimax[>[</near>]<]minimax[>[</invoke>\n"
         "]<]minimax[>[<invoke name=\"now\">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"},
    {.family = "apertus",
     .reply = "<|inner_prefix|>Hm.<|inner_suffix|>C<|tools_prefix|>[{\"weather\": {\"city\": \"Köln\"}}, {\"now\": {}}]"
              "<|tools_suffix|>"},
};

class RoundTrips : public ::testing::TestWithParam<RoundTrip> {
 protected:
  RoundTrips()
      : source_(content_of(kTemplates / "families" / (std::string(GetParam().family) + ".jinja"))),
        format_(std::make_shared<const testing::FakeModel>(
            testing::FakeOptions{.has_chat_template = true, .chat_template = source_})) {
    const auto calls = boost::json::parse(content_of(kTemplates / "calls.json"));
    options_.tools = boost::json::serialize(calls.at("tools"));
    options_.splits_reasoning = true;
    options_.template_arguments = GetParam().template_arguments;
    if (GetParam().is_forced) options_.tool_choice = ToolChoice::required;
  }

  [[nodiscard]] Conversation conversation(std::span<const ChatMessage> messages) const {
    return {.messages = messages,
            .tokens = {},
            .replies = {},
            .tools = options_.tools,
            .template_arguments = options_.template_arguments};
  }
  [[nodiscard]] std::vector<Token> written(std::span<const ChatMessage> messages) const {
    return tokenize_chat(format_, conversation({}), messages).value().tokens;
  }
  // The message of a reply, and the results of its calls.
  std::vector<ChatMessage> parsed(std::span<const Token> prompt, std::string_view reply) const {
    ReplyFormat format = format_.reply_format(options_, prompt, std::make_shared<const Tools>(tools_of(options_.tools)));
    // A mark of the fake vocabulary has more tokens than the format looks at.
    if (!format.thoughts.open.empty() && format_.text_of(prompt).ends_with(format.thoughts.open))
      format.begins_with_reasoning = true;
    ReplyParser parser(std::move(format), 1);
    ReplyPieces pieces;
    parser.push(reply, pieces);
    parser.finish(pieces);
    std::vector<ChatMessage> messages{{"assistant", pieces.content, parser.message_extra()}};
    EXPECT_FALSE(parser.calls().empty());
    for (const ReplyPart& call : parser.calls())
      messages.push_back({"tool", "fine", std::format(R"({{"tool_call_id":"{}"}})", call.id)});
    return messages;
  }

  const std::string source_;
  const ChatFormat format_;
  ChatOptions options_;
};

TEST_P(RoundTrips, AReplyWithCallsComesBackAsItWas) {
  const RoundTrip& trip = GetParam();
  std::vector<ChatMessage> messages{{"user", "Weather in Köln?"}};
  const std::vector<Token> prompt = written(messages);
  const std::vector<ChatMessage> added = parsed(prompt, trip.reply);
  messages.insert(messages.end(), added.begin(), added.end());

  const std::string begin = format_.text_of(prompt);
  ASSERT_TRUE(begin.ends_with(trip.reopened));
  const std::string wanted =
      begin.substr(0, begin.size() - trip.reopened.size()) + std::string(trip.becomes.empty() ? trip.reply : trip.becomes);
  const std::string whole = format_.text_of(written(messages));
  EXPECT_EQ(whole.substr(0, wanted.size()), wanted);
  EXPECT_EQ(whole.find("fine"), whole.find("fine", wanted.size())) << "the results follow";

  // A session that has the reply's own tokens goes on from them if the text is the same.
  std::vector<Token> chain = prompt;
  const std::vector<Token> reply = format_.model().vocab().tokenize(trip.reply, true).value();
  chain.insert(chain.end(), reply.begin(), reply.end());
  const std::vector<MessagePlace> replies{{1, prompt.size(), chain.size()}};
  Conversation session = conversation(std::span(messages).first(2));
  session.tokens = chain;
  session.replies = replies;
  const ChatTokens next = tokenize_chat(format_, session, std::span(messages).subspan(2)).value();
  if (trip.becomes.empty()) {
    EXPECT_EQ(next.history_change, ChatTokens::History::stays);
  } else {
    EXPECT_EQ(next.history_change, ChatTokens::History::rewritten);
    chain = next.history;
  }
  chain.insert(chain.end(), next.tokens.begin(), next.tokens.end());
  EXPECT_EQ(format_.text_of(chain), whole);
}

INSTANTIATE_TEST_SUITE_P(, RoundTrips, ::testing::ValuesIn(kRoundTrips),
                         [](const auto& trip) { return std::format("{}_{}", trip.param.family, trip.index); });

}  // namespace
}  // namespace uma::chat
