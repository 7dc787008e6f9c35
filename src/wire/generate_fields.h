// Fields that several APIs have in common: messages, and the options of a generation. Each function reads from the object it
// gets, because OpenAI's API has some fields at the top level and umad's extensions under `uma`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/object.hpp>

#include "core/request.h"
#include "core/sampling_params.h"
#include "json/field_reader.h"

namespace uma::wire {

inline constexpr std::size_t kToolsMax = 512;  // Tools of a request.
inline constexpr std::size_t kCallsMax = 128;  // Tool calls per message.
inline constexpr std::size_t kAdaptersPerRequestMax = 16;

// Serializes `value`. Its texts are checked like those of fields.
[[nodiscard]] std::string json_text(json::FieldReader& fields, std::string_view name, const boost::json::value& value);
// Reads "messages"; empty if it is absent, a failure if it is an empty array. Tool calls and reasoning are kept
// (ChatMessage::extra), and images of users and tools are added to `images`.
[[nodiscard]] std::vector<ChatMessage> messages_field(json::FieldReader& fields, std::vector<InputImage>& images);
// Rewrites the extra fields of a message from a file as messages_field() would. Returns false if no request could have them.
[[nodiscard]] bool normalize_extra(ChatMessage& message);
// Like normalize_extra(), for ChatOptions::tools and template_arguments.
[[nodiscard]] bool normalize_context(std::string& tools, std::string& template_arguments);
// Reads the name of a tool.
[[nodiscard]] std::string name_field(json::FieldReader& fields);
// Checks the fields of a tool's function besides its name.
void check_function(json::FieldReader& function);
// The text of a system message without a first line "x-anthropic-billing-header: …". Claude Code and routers change that line
// from request to request, so that nothing behind it could be reused.
[[nodiscard]] std::string without_billing_line(std::string text);
// The ids of tokens; nullopt: the array has something else.
[[nodiscard]] std::optional<std::vector<Token>> token_ids(const boost::json::array& ids);
// Reads a string or an array of strings; empty ones are ignored.
[[nodiscard]] std::vector<std::string> stop_field(json::FieldReader& fields, std::string_view name = "stop");
// Reads these settings by their names and ranges; an absent field leaves its value unchanged.
void read_sampling_fields(json::FieldReader& fields, std::span<const SamplingField> wanted, SamplingParams& sampling);
// Reads temperature, top_p, the two penalties of OpenAI, seed and logit_bias; an absent field leaves its value unchanged.
void read_common_sampling(json::FieldReader& fields, SamplingParams& sampling);
// Whether a negative top_k is refused, or means "off" as in other servers.
enum class NegativeTopK : std::uint8_t { refused, off };
// Reads the settings that OpenAI's API does not have: those of SamplingField that read_common_sampling() does not read,
// dry_sequence_breakers and ignore_eos. An absent field leaves its value unchanged.
void read_own_sampling(json::FieldReader& fields, SamplingParams& sampling, NegativeTopK top_k = NegativeTopK::refused);
[[nodiscard]] RequestClass class_field(json::FieldReader& fields);
// Reads class, deadline_ms, timeout_ms, target_ttft_ms and target_tbt_ms.
void read_scheduling(json::FieldReader& fields, GenerateOptions& options);
// The two JSON formats of tools: {"type", "function": {"name", …}}, or, in /v1/responses, {"type", "name", …}.
enum class ToolShape : std::uint8_t { nested, flat };
// Said where a call is demanded without tools: the reply is plain.
inline constexpr std::string_view kNoToolsWarning =
    "tool_choice demands a call, but the request has no tools: the reply is text";
// Reads tools, tool_choice, parallel_tool_calls, chat_template_kwargs, chat_template, documents and the fields of thoughts
// (thinking_fields.h). With tool_choice `none` the model does not see the tools. What the reply cannot follow is added to
// `warnings`, if they are wanted.
[[nodiscard]] ChatOptions chat_options(json::FieldReader& fields, ToolShape shape = ToolShape::nested,
                                       std::vector<std::string>* warnings = nullptr);
// Reads a seed; nullopt: none, or a negative one, which stands for any in other servers.
[[nodiscard]] std::optional<std::uint64_t> seed_field(json::FieldReader& fields);
// Reads a number of tokens, without an upper bound, because the engine applies limits.max_tokens. A negative number stands for
// no limit in other servers, as an absent one.
[[nodiscard]] std::optional<std::int32_t> max_tokens_field(json::FieldReader& fields, std::string_view name);
// Reads lora, a list of adapters: [{"name", "scale"}], or with "id" instead of "name", as llama-server has it. A second list is
// a failure.
void read_adapters(json::FieldReader& fields, GenerateOptions& options);
// Reads parse_special, here or under "uma": whether the names of control tokens in the request's text become these tokens;
// nullopt: it does not say so.
[[nodiscard]] std::optional<bool> parse_special_field(json::FieldReader& fields);
// Reads grammar; a second grammar is a failure.
void read_grammar(json::FieldReader& fields, GenerateOptions& options);
// Reads uma.strict_schema, for APIs that take no other option under "uma".
void read_strict_schema(json::FieldReader& fields, GenerateOptions& options);
// Reads the options that OpenAI's requests have under "uma": umad's own sampling, scheduling, grammar, adapters,
// split_reasoning and strict_schema.
void read_own_options(json::FieldReader& own, GenerateOptions& options);
// Reads what limits the text of the whole reply: response_format and text.format, whose forms are taken in both places; the
// fields of llama-server (json_schema), vLLM (guided_…, structured_outputs) and SGLang (regex, ebnf). Two of them are a
// failure, or one beside a grammar. Called after read_grammar().
void read_constraints(json::FieldReader& fields, GenerateOptions& options);
// Reads "chat_template_kwargs"; names that umad sets itself are refused.
[[nodiscard]] boost::json::object template_arguments_field(json::FieldReader& fields);
// The format of the reply that the request states, with the schema beside the type, as /v1/responses has it; empty: none.
[[nodiscard]] boost::json::object stated_format(json::FieldReader& fields);

}  // namespace uma::wire
