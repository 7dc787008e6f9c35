// Fields of messages that another server or client has written: reasoning under several names, parts of a content that other
// APIs have, and calls without ids or with arguments that are no text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/value.hpp>

#include "core/request.h"
#include "json/field_reader.h"

namespace uma::wire {

// Name of a tool in a call of the past: as long as a name that a model invents.
inline constexpr json::TextBytes kCalledNameBytes{1, 256};
// Id of a call, which may be missing.
inline constexpr json::TextBytes kGivenIdBytes{0, 256};

// The text in place of an image in a reply, which models do not read there.
inline constexpr std::string_view kImageOfReply = "(There is an image here.)";

// The id of a call in field `name`, which may be missing; some programs count calls in integers.
[[nodiscard]] std::string given_id(json::FieldReader& fields, std::string_view name);
// The name of a called tool. A call may have none if its stream was cut or the model wrote nonsense; its result tells that.
[[nodiscard]] std::string called_name(json::FieldReader& function);

// A part of a content that has text.
struct WrittenPart {
  std::string text;
  bool is_reasoning = false;
};
// Reads a string, or a part of one of these types: text, input_text, output_text, refusal; thinking, reasoning, reasoning_text
// and summary_text, which are reasoning; redacted_thinking, which has no text; or an object with a "text" alone. Nullopt for
// another part, and for one without its text. `field` is for errors.
[[nodiscard]] std::optional<WrittenPart> written_part(json::FieldReader& message, std::string_view field,
                                                      const boost::json::value& part);

// The type of a part of a content; nullopt: it has none.
[[nodiscard]] std::optional<std::string_view> type_of_part(const boost::json::value& part);
// Whether a part of a tool's result is text, an image or MCP's resource. Rows of data may have a "text" among other fields.
[[nodiscard]] bool is_content_part(const boost::json::value& part);
// Whether a tool's result is a list of values, none of which is a part of a content.
[[nodiscard]] bool is_list_of_values(const boost::json::value& result);
// The text of a part of a tool's result that is neither text nor an image: that of an MCP resource, else its JSON, or a line in
// its place if it is large.
[[nodiscard]] std::string text_of_other_part(json::FieldReader& message, std::string_view field,
                                             const boost::json::value& part);

// Why a part of a content was refused: its type, if it has one that no API knows here.
[[nodiscard]] std::string unknown_part(const boost::json::value& part);

// A string, or the joined texts of a list of objects.
[[nodiscard]] std::string joined_texts(json::FieldReader& message, std::string_view field, const boost::json::value& value);

// The reasoning of an assistant's message: the first of reasoning_content, reasoning, thinking, reasoning_details (OpenRouter)
// and thinking_blocks (LiteLLM) that has a text; empty: none of them has.
[[nodiscard]] std::string reasoning_of_message(json::FieldReader& message);

// The arguments of a call as a text: that of a string, which need not be JSON, the JSON of another value, or "{}" without one.
[[nodiscard]] std::string called_arguments(json::FieldReader& function, std::string_view name = "arguments");

// Notes whether the model continues the last message, if that is the assistant's: it does, unless continue_final_message is
// false. A message with calls, and one before a forced call, is not continued; an empty one is left
// out. Reads vLLM's continue_final_message and add_generation_prompt.
void read_continuation(json::FieldReader& fields, std::vector<ChatMessage>& messages, ChatOptions& options);

// The id of a call that has none: nine letters and digits, because the templates of some models take no other ids. It depends
// only on the place of the call, so that it stays the same when a conversation grows.
[[nodiscard]] std::string made_call_id(std::size_t message, std::size_t call);

}  // namespace uma::wire
