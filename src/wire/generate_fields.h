// The fields that the requests of both doors have in common: messages, and the options of a generation. Each function reads
// from the object that it is given, because OpenAI's API has some of them at the top and takes ours under `uma`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "core/sampling_params.h"
#include "wire/field_reader.h"

namespace uma::wire {

inline constexpr std::size_t kCallsMax = 128;     // of one message
inline constexpr TextBytes kCallIdBytes{1, 256};  // of a call

// `value` as JSON again, whose texts must be as those of fields.
[[nodiscard]] std::string json_text(FieldReader& fields, std::string_view name, const boost::json::value& value);
// Empty where "messages" is absent; an empty array is a failure. Calls of tools and thoughts are kept (ChatMessage::extra), and
// the images of users in `images`.
[[nodiscard]] std::vector<ChatMessage> messages_field(FieldReader& fields, std::vector<InputImage>& images);
// Of a message that comes in a file: writes its extra fields as messages_field() does. False: they could be no request's.
[[nodiscard]] bool normalize_extra(ChatMessage& message);
// Likewise of ChatOptions::tools and template_arguments.
[[nodiscard]] bool normalize_context(std::string& tools, std::string& template_arguments);
// A string, or an array of them.
[[nodiscard]] std::vector<std::string> stop_field(FieldReader& fields);
// temperature, top_p, penalties, seed and logit_bias; an absent field leaves its value as it is.
void read_common_sampling(FieldReader& fields, SamplingParams& sampling);
// top_k, min_p, repeat_penalty and ignore_eos; likewise.
void read_own_sampling(FieldReader& fields, SamplingParams& sampling);
[[nodiscard]] RequestClass class_field(FieldReader& fields);
// class, deadline_ms, timeout_ms, target_ttft_ms and target_tbt_ms.
void read_scheduling(FieldReader& fields, GenerateOptions& options);
// How requests have tools: as {"type", "function": {"name", …}}, with `reasoning_effort` beside; or, in those of responses, as
// {"type", "name", …}, with `reasoning.effort`.
enum class ToolShape : std::uint8_t { nested, flat };
// tools, tool_choice, parallel_tool_calls, chat_template_kwargs and the effort. `none` of the tools may be called: the model
// does not hear of them.
[[nodiscard]] ChatOptions chat_options(FieldReader& fields, ToolShape shape = ToolShape::nested);
// A count of tokens; without an upper bound, because the engine clamps to limits.max_tokens.
[[nodiscard]] std::optional<std::int32_t> max_tokens_field(FieldReader& fields, std::string_view name);
// grammar; a second one is a failure.
void read_grammar(FieldReader& fields, GenerateOptions& options);
// response_format: text, json_object or json_schema. After the grammar, which it excludes.
void read_response_format(FieldReader& fields, GenerateOptions& options);
// The same under `text` as its `format`, where a schema stands beside its type.
void read_text_format(FieldReader& fields, GenerateOptions& options);

}  // namespace uma::wire
