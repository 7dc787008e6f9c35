#include "wire/openai/history_fields.h"

#include <algorithm>
#include <array>
#include <format>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "base/utf8.h"
#include "wire/generate_fields.h"

namespace uma::wire {
namespace {

constexpr std::array<std::string_view, 3> kWrittenTypes = {"text", "input_text", "output_text"};
constexpr std::array<std::string_view, 4> kReasoningTypes = {"thinking", "reasoning", "reasoning_text", "summary_text"};
constexpr std::array<std::string_view, 4> kImageTypes = {"image", "image_url", "input_image", "input_audio"};

}  // namespace

std::optional<std::string_view> type_of_part(const boost::json::value& part) {
  const boost::json::object* object = part.if_object();
  const boost::json::value* type = object == nullptr ? nullptr : object->if_contains("type");
  return type == nullptr || !type->is_string() ? std::nullopt : std::optional<std::string_view>(type->get_string());
}

std::optional<WrittenPart> written_part(json::FieldReader& message, std::string_view field, const boost::json::value& part) {
  if (part.is_string()) return WrittenPart{.text = message.checked_text(field, part, {}).value_or("")};
  const boost::json::object* object = part.if_object();
  if (object == nullptr) return std::nullopt;
  const boost::json::value* alone = object->size() == 1 ? object->if_contains("text") : nullptr;
  if (alone != nullptr && alone->is_string()) return WrittenPart{.text = message.checked_text(field, *alone, {}).value_or("")};
  const std::string_view name = type_of_part(part).value_or("");
  if (name == "redacted_thinking") return WrittenPart{.text = "", .is_reasoning = true};
  const bool is_reasoning = std::ranges::contains(kReasoningTypes, name);
  if (!is_reasoning && name != "refusal" && !std::ranges::contains(kWrittenTypes, name)) return std::nullopt;
  // Most parts have their text under the name of their type, others as "text".
  bool is_null = false;
  for (const std::string_view key : {name, std::string_view("text"), std::string_view("summary")}) {
    const boost::json::value* text = object->if_contains(key);
    if (text == nullptr) continue;
    is_null = text->is_null();
    if (is_null) continue;
    if (!is_reasoning) return WrittenPart{.text = message.checked_text(field, *text, {}).value_or("")};
    return WrittenPart{.text = joined_texts(message, field, *text), .is_reasoning = true};
  }
  return is_reasoning || is_null ? std::optional(WrittenPart{.text = "", .is_reasoning = is_reasoning}) : std::nullopt;
}

bool is_content_part(const boost::json::value& part) {
  if (part.is_string()) return true;
  const boost::json::object* object = part.if_object();
  if (object == nullptr) return false;
  const std::string_view type = type_of_part(part).value_or("");
  if (std::ranges::contains(kImageTypes, type) || type == "resource") return true;
  const boost::json::value* text = object->if_contains("text");
  const bool has_text = text != nullptr && (text->is_string() || text->is_null());
  return has_text && (object->size() == 1 || std::ranges::contains(kWrittenTypes, type));
}

bool is_list_of_values(const boost::json::value& result) {
  return result.is_array() && !result.get_array().empty() && std::ranges::none_of(result.get_array(), is_content_part);
}

std::string text_of_other_part(json::FieldReader& message, std::string_view field, const boost::json::value& part) {
  constexpr std::size_t kBytesMax = 16 << 10;  // A file has more, and is nothing to read as JSON.
  const boost::json::object* object = part.if_object();
  const boost::json::value* resource = object == nullptr ? nullptr : object->if_contains("resource");
  const boost::json::value* said =
      resource == nullptr || !resource->is_object() ? nullptr : resource->get_object().if_contains("text");
  if (said != nullptr && said->is_string()) return message.checked_text(field, *said, {}).value_or("");
  std::string text = json_text(message, field, part);
  return text.size() > kBytesMax ? "(There is a part here that this model does not read.)" : text;
}

std::string given_id(json::FieldReader& fields, std::string_view name) {
  const boost::json::value* id = fields.find(name);
  if (id != nullptr && id->is_number()) return boost::json::serialize(*id);
  return fields.text(name, kGivenIdBytes).value_or("");
}

std::string called_name(json::FieldReader& function) {
  std::string name = function.text("name", {0, kCalledNameBytes.max}).value_or("");
  return name.empty() ? "unknown" : name;
}

std::string joined_texts(json::FieldReader& message, std::string_view field, const boost::json::value& value) {
  if (value.is_string()) return message.checked_text(field, value, {}).value_or("");
  std::string text;
  const boost::json::array* parts = value.if_array();
  for (std::size_t i = 0; parts != nullptr && i < parts->size(); ++i) {
    const boost::json::object* part = (*parts)[i].if_object();
    for (const std::string_view name : {"text", "thinking", "summary"}) {
      const boost::json::value* inner = part == nullptr ? nullptr : part->if_contains(name);
      if (inner == nullptr || !inner->is_string()) continue;
      if (!text.empty() && name == "summary") text += '\n';
      text += message.checked_text(field, *inner, {}).value_or("");
      break;
    }
  }
  return text;
}

std::string unknown_part(const boost::json::value& part) {
  constexpr std::size_t kShownMax = 64;
  const std::string_view name = type_of_part(part).value_or("");
  if (name.empty() || name.size() > kShownMax || !is_utf8(name)) return "";
  if (std::ranges::contains(kWrittenTypes, name) || std::ranges::contains(kImageTypes, name)) return "";
  return std::format("has a part of type \"{}\", but ", name);
}

std::string reasoning_of_message(json::FieldReader& message) {
  for (const std::string_view name : {"reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks"}) {
    const boost::json::value* value = message.find(name);
    if (value == nullptr) continue;
    if (std::string text = joined_texts(message, name, *value); !text.empty()) return text;
  }
  return "";
}

std::string called_arguments(json::FieldReader& function, std::string_view name) {
  const boost::json::value* arguments = function.find(name);
  if (arguments == nullptr) return "{}";
  if (arguments->is_string()) return function.checked_text(name, *arguments, {}).value_or("");
  return json_text(function, name, *arguments);
}

void read_continuation(json::FieldReader& fields, std::vector<ChatMessage>& messages, ChatOptions& options) {
  const auto continues = fields.boolean("continue_final_message");
  const auto adds_prompt = fields.boolean("add_generation_prompt");
  const bool is_wanted = continues.value_or(false) || adds_prompt == false;
  if (continues == true && adds_prompt == true) {
    return fields.fail_field("continue_final_message",
                             R"(and "add_generation_prompt" exclude each other: leave one of the two out)");
  }
  if (continues == false && adds_prompt == false) {
    return fields.fail_field("add_generation_prompt", R"(needs "continue_final_message": a reply begins or goes on)");
  }
  const std::string_view name = continues ? "continue_final_message" : "add_generation_prompt";
  const bool is_reply = !messages.empty() && messages.back().role == "assistant";
  if (!is_reply) {
    if (is_wanted) fields.fail_field(name, "needs a last message of the assistant");
    return;
  }
  if (continues == false || (adds_prompt == true && !continues)) return;
  const ChatMessage& last = messages.back();
  const bool has_calls = last.extra.contains("\"tool_calls\"");
  if (has_calls || options.tool_choice != ToolChoice::automatic) {
    if (is_wanted) {
      fields.fail_field(name, has_calls ? "cannot continue a message with tool calls"
                                        : "and a forced \"tool_choice\" exclude each other: leave one of the two out");
    }
    return;
  }
  if (!last.content.empty() || !last.extra.empty()) {
    options.continues_reply = true;
  } else if (messages.size() > 1) {
    messages.pop_back();
  } else {
    fields.fail_field("messages", "has only an empty message of the assistant");
  }
}

std::string made_call_id(std::size_t message, std::size_t call) {
  return std::format("c{:05}{:03}", message % 100'000, call % 1000);
}

}  // namespace uma::wire
