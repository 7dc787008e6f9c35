#include "chat/family.h"

#include <algorithm>
#include <array>

namespace uma::chat {
namespace {

using Texts = std::span<const std::string_view>;

template <std::size_t count>
using TextArray = std::array<std::string_view, count>;

constexpr auto kJson = ArgumentStyle::json;
constexpr auto kElements = ArgumentStyle::elements;
constexpr auto kLoose = ArgumentStyle::loose;
constexpr auto kRaw = ArgumentStyle::raw;

// --- gpt-oss

constexpr TextArray<2> kHarmonyHas{"<|channel|>", "<|message|>"};
constexpr std::array<CallForm, 5> kHarmonyCalls{{
    {.call = "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"},
    {.call = "<|channel|>{any}to=functions.{name}{any}<|message|>{arguments}<|call|>"},
    {.call = "<|channel|>{any}to=functions.{name}{any}<|constrain|>{any}<|message|>{arguments}<|call|>"},
    {.call = "to=functions.{name}<|channel|>{any}<|message|>{arguments}<|call|>", .needs_known_name = true},
    {.call = "to=functions.{name}<|channel|>{any}<|constrain|>{any}<|message|>{arguments}<|call|>", .needs_known_name = true},
}};
constexpr TextArray<7> kHarmonyDropped{"<|start|>assistant",
                                       "<|channel|>{any}<|message|>",
                                       "<|channel|>{any}<|constrain|>{any}<|message|>",
                                       "<|channel|>commentary to=assistant",
                                       "<|end|>",
                                       "<|return|>",
                                       "<|call|>"};
constexpr TextArray<2> kHarmonyBeforeAnswer{"<|channel|>final{any}<|message|>",
                                            "<|channel|>final{any}<|constrain|>{any}<|message|>"};
constexpr TextArray<2> kHarmonyEnds{"<|return|>", "<|call|>"};
constexpr TextArray<3> kHarmonyEfforts{"low", "medium", "high"};
constexpr TextArray<2> kHighEfforts{"high", "max"};

// --- elements

constexpr TextArray<2> kQwenHas{"<function=", "<parameter="};
constexpr TextArray<3> kStepHas{"<function=", "<parameter=", "<|im_start|>tool_response"};
constexpr TextArray<1> kSeedMark{"<seed:"};
constexpr std::array<CallForm, 2> kQwenCalls{{
    {.call = "<tool_call>\n<function={name}>\n{arguments}\n</function>\n</tool_call>", .between = "\n", .style = kElements},
    {.call = "<function={name}>\n{arguments}\n</function>",
     .close = "\n</tool_call>",
     .style = kElements,
     .needs_known_name = true},
}};
constexpr ElementMarks kQwenElement{.open = "<parameter=", .name_end = ">", .close = "</parameter>", .padding = "\n"};
constexpr ElementMarks kSeedElement{.open = "<parameter=", .name_end = ">", .close = "</parameter>"};

constexpr std::array<CallForm, 2> kSeedCalls{{
    {.call = "<seed:tool_call>\n<function={name}>\n{arguments}\n</function>\n</seed:tool_call>",
     .between = "\n",
     .style = kElements},
    {.call = "<function={name}>\n{arguments}\n</function>",
     .close = "\n</seed:tool_call>",
     .style = kElements,
     .needs_known_name = true},
}};

constexpr TextArray<2> kGlmHas{"<tool_call>", "<arg_key>"};
constexpr std::array<CallForm, 1> kGlmCalls{{
    {.call = "<tool_call>\t{name}\n{arguments}\n</tool_call>", .between = "\n", .style = kElements},
}};
constexpr ElementMarks kGlmElement{.open = "<arg_key>",
                                   .name_end = "</arg_key>",
                                   .value_begin = "<arg_value>",
                                   .close = "</arg_value>",
                                   .trims_blanks = true,
                                   .before_value = "\n",
                                   .begins_line = false};
// Since GLM 4.7 the marks are not on lines of their own.
constexpr TextArray<2> kGlm47Has{"<tool_call>", "</arg_key><arg_value>"};
constexpr std::array<CallForm, 1> kGlm47Calls{{
    {.call = "<tool_call>\t{name}\t{arguments}\t</tool_call>", .between = "\t", .style = kElements},
}};
constexpr ElementMarks kGlm47Element{.open = "<arg_key>",
                                     .name_end = "</arg_key>",
                                     .value_begin = "<arg_value>",
                                     .close = "</arg_value>",
                                     .trims_blanks = true,
                                     .between = "",
                                     .begins_line = false};
constexpr TextArray<2> kGlmEnds{"<|user|>", "<|observation|>"};

constexpr TextArray<1> kMiniMaxHas{"<minimax:tool_call>"};
constexpr std::array<CallForm, 2> kMiniMaxCalls{{
    {.open = "<minimax:tool_call>\n",
     .call = "<invoke name=\"{name}\">\n{arguments}\n</invoke>",
     .between = "\n",
     .close = "\n</minimax:tool_call>",
     .style = kElements},
    {.open = "<minimax:tool_call>\n",
     .call = "<invoke name='{name}'>\n{arguments}\n</invoke>",
     .between = "\n",
     .close = "\n</minimax:tool_call>",
     .style = kElements},
}};
constexpr ElementMarks kMiniMaxElement{
    .open = "<parameter name=", .name_end = ">", .close = "</parameter>", .trims_blanks = true, .quotes_name = true};

constexpr TextArray<1> kMiniMax3Has{"]<]minimax[>["};
constexpr std::array<CallForm, 1> kMiniMax3Calls{{
    {.open = "]<]minimax[>[<tool_call>\n",
     .call = "]<]minimax[>[<invoke name=\"{name}\">\t{arguments}\t]<]minimax[>[</invoke>",
     .between = "\n",
     .close = "\n]<]minimax[>[</tool_call>",
     .style = kElements},
}};
constexpr ElementMarks kMiniMax3Element{.open = "]<]minimax[>[<",
                                        .name_end = ">",
                                        .close = "]<]minimax[>[</{name}>",
                                        .trims_blanks = true,
                                        .between = "",
                                        .begins_line = false};

constexpr TextArray<2> kKimi3Has{"<|open|>", "<|close|>"};
constexpr std::string_view kKimi3Call =
    "<|open|>call tool=\"{name}\" index=\"{index}\"<|sep|>\t{arguments}\t<|close|>call<|sep|>";
constexpr std::string_view kKimi3End = "<|close|>tools<|sep|>\t<|close|>message<|sep|>";
// A reply has a response before its calls, which may be empty.
constexpr std::array<CallForm, 2> kKimi3Calls{{
    {.open = "<|open|>response<|sep|>\t<|close|>response<|sep|>\t<|open|>tools<|sep|>",
     .call = kKimi3Call,
     .close = kKimi3End,
     .style = kElements},
    {.open = "<|open|>tools<|sep|>", .call = kKimi3Call, .close = kKimi3End, .style = kElements},
}};
constexpr TextArray<1> kKimi3Ends{"<|end_of_msg|>"};
constexpr ElementMarks kKimi3Element{.open = "<|open|>argument key=\"",
                                     .name_end = "\"",
                                     .value_begin = "<|sep|>",
                                     .close = "<|close|>argument<|sep|>",
                                     .keeps_blanks = true,
                                     .between = "",
                                     .begins_line = false,
                                     .text_attribute = "type=\"string\"",
                                     .other_attribute = "type=\"{type}\""};
constexpr TextArray<1> kKimi3BeforeAnswer{"<|open|>response<|sep|>"};
constexpr TextArray<3> kKimi3Dropped{"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"};

// Templates may join the marks from parts.
constexpr TextArray<1> kDsmlHas{"｜DSML｜"};
constexpr TextArray<1> kDsmlOldBlock{"function_calls"};
constexpr CallForm kDsmlFunctionCalls{.open = "<｜DSML｜function_calls>\n",
                                      .call = "<｜DSML｜invoke name=\"{name}\">\n{arguments}\n</｜DSML｜invoke>",
                                      .between = "\n",
                                      .close = "\n</｜DSML｜function_calls>",
                                      .style = kElements};
constexpr CallForm kDsmlToolCalls{.open = "<｜DSML｜tool_calls>\n",
                                  .call = "<｜DSML｜invoke name=\"{name}\">\n{arguments}\n</｜DSML｜invoke>",
                                  .between = "\n",
                                  .close = "\n</｜DSML｜tool_calls>",
                                  .style = kElements};
constexpr std::array<CallForm, 2> kDsmlCalls{{kDsmlFunctionCalls, kDsmlToolCalls}};
constexpr std::array<CallForm, 2> kDsml4Calls{{kDsmlToolCalls, kDsmlFunctionCalls}};
constexpr ElementMarks kDsmlElement{.open = "<｜DSML｜parameter name=\"",
                                    .name_end = "\"",
                                    .value_begin = ">",
                                    .close = "</｜DSML｜parameter>",
                                    .text_attribute = "string=\"true\"",
                                    .other_attribute = "string=\"false\""};

// --- a mark, a name, a mark and JSON

constexpr TextArray<2> kMistralArgsHas{"[TOOL_CALLS]", "[ARGS]"};
constexpr TextArray<1> kMistralHas{"[TOOL_CALLS]"};
constexpr TextArray<1> kMistral3Has{"[TOOL_CALLS] ["};
constexpr TextArray<1> kMistralIdMark{"[CALL_ID]"};
constexpr CallForm kMistralList{.open = "[TOOL_CALLS]\t[\t", .call = "{function}", .between = "\t, ", .close = "\t]"};
constexpr CallForm kMistral3List{.open = "[TOOL_CALLS] [\t", .call = "{function}", .between = "\t, ", .close = "\t]"};
constexpr CallForm kMistralOne{.call = "[TOOL_CALLS]\t{function}"};
constexpr CallForm kMistralPlain{.call = "[TOOL_CALLS]\t{name}\t{arguments}"};
constexpr CallForm kMistralArgs{.call = "[TOOL_CALLS]\t{name}\t[ARGS]\t{arguments}"};
constexpr CallForm kMistralId{.call = "[TOOL_CALLS]\t{name}\t[CALL_ID]\t{id}\t[ARGS]\t{arguments}"};
constexpr std::array<CallForm, 5> kMistralCalls{{kMistralList, kMistralOne, kMistralArgs, kMistralId, kMistralPlain}};
constexpr std::array<CallForm, 5> kMistral3Calls{{kMistral3List, kMistralOne, kMistralArgs, kMistralId, kMistralPlain}};
// The templates refuse calls without ids.
constexpr std::string_view kMistralFunction = R"({"name": "{name}", "arguments": {arguments}, "id": "{id}"})";
constexpr std::array<CallForm, 5> kMistralArgsCalls{{kMistralArgs, kMistralId, kMistralList, kMistralOne, kMistralPlain}};
constexpr std::array<CallForm, 5> kMistralIdCalls{{kMistralId, kMistralArgs, kMistralList, kMistralOne, kMistralPlain}};

constexpr TextArray<1> kKimiHas{"<|tool_call_argument_begin|>"};
constexpr std::string_view kKimiCall = "<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>";
constexpr std::array<CallForm, 2> kKimiCalls{{
    {.open = "<|tool_calls_section_begin|>", .call = kKimiCall, .close = "<|tool_calls_section_end|>"},
    {.call = kKimiCall},
}};
constexpr TextArray<1> kKimiEnds{"<|tool_calls_section_end|>"};

constexpr TextArray<1> kDeepSeekHas{"<｜tool▁calls▁begin｜>"};
constexpr TextArray<1> kFence{"```json"};
constexpr CallForm kDeepSeekFenced{
    .open = "<｜tool▁calls▁begin｜>\t",
    .call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
    .between = "\n",
    .close = "<｜tool▁calls▁end｜>"};
constexpr CallForm kDeepSeekPlain{.open = "<｜tool▁calls▁begin｜>\t",
                                  .call = "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
                                  .close = "<｜tool▁calls▁end｜>"};
constexpr CallForm kDeepSeekMixed{
    .open = "<｜tool▁calls▁begin｜>\t",
    .call = "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
    .close = "<｜tool▁calls▁end｜>"};
constexpr std::array<CallForm, 3> kDeepSeekCalls{{kDeepSeekFenced, kDeepSeekPlain, kDeepSeekMixed}};
constexpr std::array<CallForm, 3> kDeepSeek31Calls{{kDeepSeekPlain, kDeepSeekFenced, kDeepSeekMixed}};

constexpr TextArray<2> kFunctionaryHas{"<function=", "<|python_tag|>"};
constexpr std::array<CallForm, 1> kFunctionaryCalls{{{.call = "<function={name}>{arguments}</function>"}}};

// The prompt ends with the mark of the first recipient.
constexpr TextArray<1> kFunctionary32Has{">>>all"};
constexpr std::array<CallForm, 4> kFunctionary32Calls{{
    {.call = "{name}{line}{arguments}", .between = ">>>", .begins_reply = true, .needs_known_name = true},
    {.call = ">>>{name}{line}{arguments}", .needs_known_name = true},
    {.call = "python{line}{arguments}", .style = kRaw, .begins_reply = true, .needs_known_name = true, .name = "python"},
    {.call = ">>>python{line}{arguments}", .style = kRaw, .needs_known_name = true, .name = "python"},
}};
constexpr TextArray<1> kFunctionary32Dropped{">>>all{line}"};
constexpr std::array<Marks, 1> kFunctionary32Around{{{"all{line}", ""}}};

constexpr TextArray<1> kMcpHas{"<use_mcp_tool>"};
constexpr std::array<CallForm, 1> kMcpCalls{{
    {.call = "<use_mcp_tool>\n<server_name>{any}</server_name>\n<tool_name>{name}</tool_name>\n<arguments>\n{arguments}\n"
             "</arguments>\n</use_mcp_tool>",
     .between = "\n"},
}};

// --- JSON with the name, between marks

constexpr std::string_view kParametersFunction = R"({"name": "{name}", "parameters": {arguments}})";

constexpr TextArray<1> kHermesHas{"<tool_call>"};
constexpr TextArray<2> kHermesArgumentsFirstHas{"<tool_call>", R"({"arguments": )"};
constexpr std::array<CallForm, 1> kHermesCalls{{{.call = "<tool_call>\n{function}\n</tool_call>", .between = "\n"}}};

constexpr TextArray<2> kExaoneHas{"<tool_call>", "[|assistant|]"};
constexpr std::array<CallForm, 1> kExaoneCalls{{{.call = "<tool_call>\t{function}\t</tool_call>", .between = "\n"}}};

constexpr TextArray<2> kErnieHas{"<tool_call>", "<response>"};
constexpr std::array<Marks, 1> kResponseMarks{{{"<response>", "</response>"}}};

constexpr TextArray<2> kSmolHas{"xml_tools", "python_tools"};
constexpr std::array<CallForm, 2> kSmolCalls{{
    {.call = "<tool_call>{function}</tool_call>", .between = "\n"},
    {.open = "<code>",
     .call = "{name}{arguments}",
     .between = "\n",
     .close = "</code>",
     .style = kLoose,
     .needs_known_name = true},
}};

constexpr TextArray<1> kNemotronHas{"<TOOLCALL>"};
constexpr std::array<CallForm, 1> kNemotronCalls{
    {{.open = "<TOOLCALL>[\t", .call = "{function}", .between = "\t, ", .close = "\t]\t</TOOLCALL>"}}};

constexpr TextArray<2> kGraniteHas{"<|start_of_role|>", "<|tool_call|>"};
constexpr std::array<CallForm, 1> kGraniteCalls{
    {{.open = "<|tool_call|>[\t", .call = "{function}", .between = "\t, ", .close = "\t]"}}};

constexpr TextArray<2> kPhiHas{"<|tool|>", "<|/tool|>"};
constexpr std::array<CallForm, 2> kPhiCalls{{
    {.open = "<|tool_call|>[\t", .call = "{function}", .between = "\t, ", .close = "\t]\t<|/tool_call|>"},
    {.open = "functools[\t", .call = "{function}", .between = "\t, ", .close = "\t]"},
}};

constexpr TextArray<1> kFireHas{"functools"};
constexpr std::array<CallForm, 1> kFireCalls{
    {{.open = "functools[\t", .call = "{function}", .between = "\t, ", .close = "\t]"}}};

constexpr TextArray<1> kToolCallsHas{"<tool_calls>"};
constexpr std::array<CallForm, 1> kToolCallsCalls{
    {{.open = "<tool_calls>\t[\t", .call = "{function}", .between = "\t, ", .close = "\t]\t</tool_calls>"}}};

constexpr TextArray<2> kJambaHas{"<tool_calls>", "<|bom|>"};
constexpr std::array<CallForm, 1> kJambaCalls{
    {{.open = "<tool_calls>[\n    ", .call = "{function}", .between = ",\n    ", .close = "\n]</tool_calls>"}}};

constexpr TextArray<2> kHunyuanHas{"<|extra_0|>", "<tool_calls>"};
constexpr std::array<Marks, 2> kHunyuanAround{{{"<answer>", "</answer>"}, {"助手：", ""}}};

constexpr TextArray<2> kAprielHas{"<tool_calls>", "[BEGIN FINAL RESPONSE]"};
constexpr TextArray<1> kAprielBeforeAnswer{"[BEGIN FINAL RESPONSE]"};
constexpr TextArray<2> kAprielDropped{"[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"};

constexpr TextArray<1> kCommandHas{"<|START_ACTION|>"};
constexpr std::array<CallForm, 2> kCommandCalls{{
    {.open = "<|START_ACTION|>[\n    ", .call = "{function}", .between = ",\n    ", .close = "\n]<|END_ACTION|>"},
    {.open = "<|START_ACTION|>", .call = "{function}", .close = "<|END_ACTION|>"},
}};
constexpr TextArray<2> kCommandBeforeAnswer{"<|START_RESPONSE|>", "<|START_TEXT|>"};
constexpr TextArray<4> kCommandDropped{"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"};

constexpr std::string_view kCommandFunction = R"({"tool_call_id": "{id}", "tool_name": "{name}", "parameters": {arguments}})";

constexpr TextArray<2> kCommandPlusHas{"Action:", "directly_answer"};
constexpr std::array<CallForm, 1> kCommandPlusCalls{
    {{.open = "Action:\n```json\n[\n    ", .call = "{function}", .between = ",\n    ", .close = "\n]\n```"}}};
constexpr TextArray<2> kCommandPlusNoCalls{"directly_answer", "directly-answer"};

constexpr TextArray<1> kInternHas{"<|action_start|>"};
constexpr std::array<CallForm, 1> kInternCalls{
    {{.open = "<|action_start|><|plugin|>\n", .call = "{function}", .close = "<|action_end|>"}}};

constexpr TextArray<1> kApertusHas{"<|tools_prefix|>"};
constexpr std::array<CallForm, 1> kApertusCalls{{{.open = "<|tools_prefix|>[\t",
                                                  .call = "{\"{name}\": {arguments}}",
                                                  .between = "\t, ",
                                                  .close = "\t]\t<|tools_suffix|>"}}};

constexpr TextArray<1> kGigaHas{"<|function_call|>"};
constexpr std::array<CallForm, 1> kGigaCalls{{{.call = "<|function_call|>{function}"}}};

constexpr TextArray<2> kGiga3Has{"function call", "<|role_sep|>"};
constexpr std::array<CallForm, 2> kGiga3Calls{{
    {.call = "<|message_sep|>\n\nfunction call<|role_sep|>\n{function}"},
    {.call = "function call<|role_sep|>\n{function}"},
}};
constexpr TextArray<1> kGiga3Dropped{"<|message_sep|>"};

constexpr TextArray<1> kXlamHas{R"([{"name": )"};
constexpr std::array<CallForm, 2> kXlamCalls{{
    {.open = "[\t", .call = "{function}", .between = "\t, ", .close = "\t]", .begins_reply = true, .needs_known_name = true},
    {.open = "```json\n[\t",
     .call = "{function}",
     .between = "\t, ",
     .close = "\t]\n```",
     .begins_reply = true,
     .needs_known_name = true},
}};

constexpr TextArray<1> kPythonTagHas{"<|python_tag|>"};
constexpr TextArray<2> kLlamaHas{"ipython", "parameters"};
constexpr std::array<CallForm, 2> kLlamaCalls{{
    {.call = "{function}", .between = "; ", .begins_reply = true, .needs_known_name = true},
    {.open = "<|python_tag|>", .call = "{function}", .between = "; ", .needs_known_name = true},
}};

// --- calls as in Python

constexpr TextArray<3> kLlama4Has{"<|header_start|>", "ipython", "<|python_start|>"};
constexpr TextArray<2> kLlama4JsonHas{"<|header_start|>", "ipython"};
constexpr CallForm kLlama4Marked{.open = "<|python_start|>[\t",
                                 .call = "{name}{arguments}",
                                 .between = "\t, ",
                                 .close = "\t]\t<|python_end|>",
                                 .style = kLoose};
constexpr CallForm kLlama4Bare{.open = "[\t",
                               .call = "{name}{arguments}",
                               .between = "\t, ",
                               .close = "\t]",
                               .style = kLoose,
                               .begins_reply = true,
                               .needs_known_name = true};
constexpr CallForm kLlama4Json{.call = "{function}", .between = "; ", .begins_reply = true, .needs_known_name = true};
constexpr std::array<CallForm, 3> kLlama4Calls{{kLlama4Marked, kLlama4Bare, kLlama4Json}};
constexpr std::array<CallForm, 3> kLlama4JsonCalls{{kLlama4Json, kLlama4Bare, kLlama4Marked}};

constexpr TextArray<1> kLfmHas{"<|tool_list_start|>"};
constexpr TextArray<1> kLfmListHas{"List of tools: ["};
constexpr TextArray<1> kLfmCallHas{"<|tool_call_start|>"};
constexpr CallForm kLfmMarked{.open = "<|tool_call_start|>\t[\t",
                              .call = "{name}{arguments}",
                              .between = "\t, ",
                              .close = "\t]\t<|tool_call_end|>",
                              .style = kLoose};
constexpr CallForm kLfmJson{
    .open = "<|tool_call_start|>\t[\t", .call = "{function}", .between = "\t, ", .close = "\t]\t<|tool_call_end|>"};
constexpr CallForm kLfmBare{
    .open = "[\t", .call = "{name}{arguments}", .between = "\t, ", .close = "\t]", .style = kLoose, .needs_known_name = true};
constexpr std::array<CallForm, 3> kLfmCalls{{kLfmMarked, kLfmJson, kLfmBare}};
// The templates of LFM2.5 write calls without marks.
constexpr std::array<CallForm, 3> kLfmBareCalls{{kLfmBare, kLfmMarked, kLfmJson}};

constexpr TextArray<1> kOlmoHas{"<function_calls>"};
constexpr std::array<CallForm, 1> kOlmoCalls{{{.open = "<function_calls>",
                                               .call = "{name}{arguments}",
                                               .between = "\n",
                                               .close = "</function_calls>",
                                               .style = kLoose}}};

// --- Gemma

constexpr TextArray<1> kGemmaHas{"<|tool_call>"};
constexpr std::array<CallForm, 1> kGemmaCalls{{{.open = "<|tool_call>",
                                                .call = "call:{name}{arguments}",
                                                .between = "<tool_call|><|tool_call>",
                                                .close = "<tool_call|>",
                                                .style = kLoose}}};
constexpr TextArray<1> kGemmaDropped{"<channel|>"};
constexpr TextArray<2> kGemmaEnds{"<turn|>", "<|tool_response>"};

constexpr TextArray<1> kFunctionGemmaHas{"<start_function_call>"};
constexpr std::array<CallForm, 1> kFunctionGemmaCalls{{{.open = "<start_function_call>",
                                                        .call = "call:{name}{arguments}",
                                                        .between = "<end_function_call><start_function_call>",
                                                        .close = "<end_function_call>",
                                                        .style = kLoose}}};
constexpr TextArray<1> kFunctionGemmaEnds{"<start_function_response>"};

constexpr std::array kFamilies = std::to_array<Family>({
    {.name = "gpt-oss",
     .has = kHarmonyHas,
     .calls = kHarmonyCalls,
     .thoughts = {"<|channel|>analysis<|message|>", "<|end|>"},
     .thinks_anywhere = true,
     .dropped = kHarmonyDropped,
     .before_answer = kHarmonyBeforeAnswer,
     .ends = kHarmonyEnds,
     .next_message = "<|start|>assistant",
     .answer = "<|start|>assistant<|channel|>final<|message|>",
     .efforts = kHarmonyEfforts,
     .call_trigger = "to=functions."},
    {.name = "seed-oss",
     .has = kSeedMark,
     .calls = kSeedCalls,
     .thoughts = {"<seed:think>", "</seed:think>"},
     .element = kSeedElement,
     .python_words = true},
    {.name = "functionary-3.1", .has = kFunctionaryHas, .calls = kFunctionaryCalls},
    {.name = "functionary-3.2",
     .has = kFunctionary32Has,
     .calls = kFunctionary32Calls,
     .dropped = kFunctionary32Dropped,
     .around = kFunctionary32Around},
    {.name = "step-3.5", .has = kStepHas, .lacks = kSeedMark, .calls = kQwenCalls, .element = kQwenElement},
    {.name = "qwen3-coder",
     .has = kQwenHas,
     .lacks = kSeedMark,
     .calls = kQwenCalls,
     .element = kQwenElement,
     .python_words = true},
    {.name = "glm-4.7",
     .has = kGlm47Has,
     .calls = kGlm47Calls,
     .ends = kGlmEnds,
     .element = kGlm47Element,
     .efforts = kHighEfforts},
    {.name = "glm", .has = kGlmHas, .calls = kGlmCalls, .ends = kGlmEnds, .element = kGlmElement, .efforts = kHighEfforts},
    {.name = "minimax-m3",
     .has = kMiniMax3Has,
     .calls = kMiniMax3Calls,
     .thoughts = {"<mm:think>", "</mm:think>"},
     .element = kMiniMax3Element},
    {.name = "minimax", .has = kMiniMaxHas, .calls = kMiniMaxCalls, .element = kMiniMaxElement},
    {.name = "deepseek-v4",
     .has = kDsmlHas,
     .lacks = kDsmlOldBlock,
     .calls = kDsml4Calls,
     .element = kDsmlElement,
     .efforts = kHighEfforts},
    {.name = "deepseek-dsml", .has = kDsmlHas, .calls = kDsmlCalls, .element = kDsmlElement, .efforts = kHighEfforts},
    {.name = "mistral-id",
     .has = kMistralIdMark,
     .calls = kMistralIdCalls,
     .may_call_in_thoughts = false,
     .ids = CallIds::nine},
    {.name = "mistral-args",
     .has = kMistralArgsHas,
     .calls = kMistralArgsCalls,
     .may_call_in_thoughts = false,
     .ids = CallIds::nine},
    {.name = "mistral-3",
     .has = kMistral3Has,
     .calls = kMistral3Calls,
     .may_call_in_thoughts = false,
     .function = kMistralFunction,
     .ids = CallIds::nine},
    {.name = "mistral",
     .has = kMistralHas,
     .calls = kMistralCalls,
     .may_call_in_thoughts = false,
     .function = kMistralFunction,
     .ids = CallIds::nine},
    {.name = "kimi", .has = kKimiHas, .calls = kKimiCalls, .ends = kKimiEnds, .ids = CallIds::named},
    {.name = "kimi-k3",
     .has = kKimi3Has,
     .calls = kKimi3Calls,
     .thoughts = {"<|open|>think<|sep|>", "<|close|>think<|sep|>"},
     .dropped = kKimi3Dropped,
     .before_answer = kKimi3BeforeAnswer,
     .ends = kKimi3Ends,
     .element = kKimi3Element,
     .call_trigger = "<|open|>tools<|sep|>"},
    {.name = "deepseek-3.1", .has = kDeepSeekHas, .lacks = kFence, .calls = kDeepSeek31Calls},
    {.name = "deepseek", .has = kDeepSeekHas, .calls = kDeepSeekCalls},
    {.name = "gemma4",
     .has = kGemmaHas,
     .calls = kGemmaCalls,
     .thoughts = {"<|channel>thought\n", "<channel|>"},
     .thinks_anywhere = true,
     .dropped = kGemmaDropped,
     .ends = kGemmaEnds,
     .quote = "<|\"|>"},
    {.name = "functiongemma",
     .has = kFunctionGemmaHas,
     .calls = kFunctionGemmaCalls,
     .ends = kFunctionGemmaEnds,
     .quote = "<escape>"},
    {.name = "command",
     .has = kCommandHas,
     .calls = kCommandCalls,
     .thoughts = {"<|START_THINKING|>", "<|END_THINKING|>"},
     .dropped = kCommandDropped,
     .before_answer = kCommandBeforeAnswer,
     .function = kCommandFunction,
     .ids = CallIds::counted},
    {.name = "command-r-plus",
     .has = kCommandPlusHas,
     .calls = kCommandPlusCalls,
     .function = R"({"tool_name": "{name}", "parameters": {arguments}})",
     .no_calls = kCommandPlusNoCalls,
     .call_trigger = "```json"},
    {.name = "granite-3", .has = kGraniteHas, .calls = kGraniteCalls, .around = kResponseMarks},
    {.name = "phi-4-mini", .has = kPhiHas, .calls = kPhiCalls},
    {.name = "nemotron-nano-2", .has = kNemotronHas, .calls = kNemotronCalls},
    {.name = "internlm", .has = kInternHas, .calls = kInternCalls, .function = kParametersFunction},
    {.name = "apertus", .has = kApertusHas, .calls = kApertusCalls, .thoughts = {"<|inner_prefix|>", "<|inner_suffix|>"}},
    {.name = "gigachat", .has = kGigaHas, .calls = kGigaCalls},
    {.name = "gigachat-3",
     .has = kGiga3Has,
     .calls = kGiga3Calls,
     .dropped = kGiga3Dropped,
     .call_trigger = "function call<|role_sep|>"},
    {.name = "mirothinker", .has = kMcpHas, .calls = kMcpCalls},
    {.name = "lfm2", .has = kLfmHas, .calls = kLfmCalls},
    {.name = "lfm2.5", .has = kLfmListHas, .calls = kLfmBareCalls},
    {.name = "lfm2-calls", .has = kLfmCallHas, .calls = kLfmCalls},
    {.name = "olmo-3", .has = kOlmoHas, .calls = kOlmoCalls},
    {.name = "smollm3", .has = kSmolHas, .calls = kSmolCalls},
    {.name = "ernie", .has = kErnieHas, .calls = kHermesCalls, .around = kResponseMarks},
    {.name = "exaone", .has = kExaoneHas, .calls = kExaoneCalls},
    {.name = "hermes-arguments-first",
     .has = kHermesArgumentsFirstHas,
     .calls = kHermesCalls,
     .function = R"({"arguments": {arguments}, "name": "{name}"})"},
    {.name = "hermes", .has = kHermesHas, .calls = kHermesCalls},
    {.name = "hunyuan", .has = kHunyuanHas, .calls = kToolCallsCalls, .may_call_in_thoughts = false, .around = kHunyuanAround},
    {.name = "apriel",
     .has = kAprielHas,
     .calls = kToolCallsCalls,
     .thoughts = {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"},
     .dropped = kAprielDropped,
     .before_answer = kAprielBeforeAnswer},
    {.name = "jamba", .has = kJambaHas, .calls = kJambaCalls},
    {.name = "tool-calls-list", .has = kToolCallsHas, .calls = kToolCallsCalls},
    {.name = "firefunction", .has = kFireHas, .calls = kFireCalls, .tools_variable = "functions"},
    {.name = "llama4", .has = kLlama4Has, .calls = kLlama4Calls, .function = kParametersFunction},
    {.name = "llama4-json", .has = kLlama4JsonHas, .calls = kLlama4JsonCalls, .function = kParametersFunction},
    {.name = "llama3", .has = kPythonTagHas, .calls = kLlamaCalls, .function = kParametersFunction},
    {.name = "xlam-2", .has = kXlamHas, .calls = kXlamCalls},
    {.name = "llama3.2", .has = kLlamaHas, .calls = kLlamaCalls, .function = kParametersFunction},
});

// In the order in which a template is searched.
constexpr std::array<Marks, 2> kThoughts{{{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}}};

bool has_all(std::string_view text, Texts parts) {
  return std::ranges::all_of(parts, [&](std::string_view part) { return text.contains(part); });
}

bool has_any(std::string_view text, Texts parts) {
  return std::ranges::any_of(parts, [&](std::string_view part) { return text.contains(part); });
}

}  // namespace

std::span<const Family> families() {
  return kFamilies;
}

const Family* family_of(std::string_view chat_template) {
  if (!chat_template.contains("tools")) return nullptr;
  const auto found = std::ranges::find_if(kFamilies, [&](const Family& family) {
    return has_all(chat_template, family.has) && !has_any(chat_template, family.lacks);
  });
  return found == kFamilies.end() ? nullptr : &*found;
}

const Family* family_named(std::string_view name) {
  const auto found = std::ranges::find(kFamilies, name, &Family::name);
  return found == kFamilies.end() ? nullptr : &*found;
}

bool has_late_id(const Family& family) {
  const std::size_t id = family.function.find("{id}");
  return id != std::string_view::npos && id > family.function.find("{arguments}");
}

const Family& general_family() {
  return *family_named("hermes");
}

Marks thoughts_of(std::string_view chat_template, const Family* family) {
  if (family != nullptr && !family->thoughts.open.empty()) return family->thoughts;
  const auto found = std::ranges::find_if(kThoughts, [&](const Marks& marks) { return chat_template.contains(marks.close); });
  return found == kThoughts.end() ? Marks() : *found;
}

}  // namespace uma::chat
