#include "chat/calls/tool_format.h"

#include <algorithm>
#include <cstdint>
#include <format>
#include <optional>
#include <utility>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "jinja/json_reader.h"
#include "json/field_reader.h"

namespace uma::chat {
namespace {

using jinja::Dict;
using jinja::List;
using jinja::Source;
using jinja::Text;
using jinja::Value;

bool has_calls(const ChatMessage& message) {
  return message.extra.contains("\"tool_calls\"");
}

std::string json_of(const Value& value) {
  jinja::Budget budget(UINT64_MAX, UINT64_MAX);  // Unlimited, because the request's size is bounded.
  return jinja::to_json(value, {}, budget).bytes();
}

// The items of the list `name` in a dict; empty if there is no such list.
std::span<const Value> items_of(const std::optional<Value>& dict, std::string_view name) {
  const Dict* fields = dict ? dict->as_dict() : nullptr;
  const Value* field = fields == nullptr ? nullptr : fields->find(name);
  const List* list = field == nullptr ? nullptr : field->as_list();
  return list == nullptr ? std::span<const Value>() : std::span(list->items);
}

// The text at `first`.`second` of a call or a tool; empty if there is none.
std::string text_at(const Value& value, std::string_view first, std::string_view second) {
  const Value* at = &value;
  for (const std::string_view name : {first, second}) {
    const Dict* dict = at->as_dict();
    at = dict == nullptr ? nullptr : dict->find(name);
    if (at == nullptr) return "";
  }
  return at->as_text() == nullptr ? "" : at->as_text()->bytes();
}

std::string instructions(std::string_view tools) {
  std::string text = "You can call functions. Each line between <tools> and </tools> describes one as JSON.\n<tools>\n";
  const auto list = jinja::read_json(tools, jinja::kOtherInput);
  if (list && list->as_list() != nullptr) {
    for (const Value& tool : list->as_list()->items) text += json_of(tool) + "\n";
  }
  text +=
      "</tools>\nTo call a function, answer with its name and its arguments as JSON, like this, and wait for the result:\n"
      "<tool_call>\n{\"name\": \"the function's name\", \"arguments\": {\"an argument\": \"its value\"}}\n</tool_call>";
  return text;
}

// The content and the calls of a message as one text.
Text with_calls(const ChatMessage& message, Source source) {
  Text text = Text::input(message.content, source);
  const auto extra = jinja::read_json(message.extra, jinja::kOtherInput);
  for (const Value& call : items_of(extra, "tool_calls")) {
    const Value name = Value::text(std::string_view(text_at(call, "function", "name")));
    const std::string arguments = text_at(call, "function", "arguments");
    const std::string written = std::format("{}<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>",
                                            text.size() == 0 ? "" : "\n", json_of(name), arguments.empty() ? "{}" : arguments);
    text.append(Text::input(written, {source.message, PromptPart::call}));
  }
  return text;
}

void complete(boost::json::object& function) {
  function.emplace("description", "");
  boost::json::value& parameters = function.emplace("parameters", boost::json::object()).first->value();
  if (!parameters.is_object()) parameters.emplace_object();
  parameters.get_object().emplace("type", "object");
  boost::json::value& properties = parameters.get_object().emplace("properties", boost::json::object()).first->value();
  if (!properties.is_object()) properties.emplace_object();
  for (auto& [name, schema] : properties.get_object()) {
    if (!schema.is_object()) schema.emplace_object();
  }
}

}  // namespace

std::string completed_tools(std::string_view tools) {
  boost::system::error_code problem;
  boost::json::value list = json::parse(tools, {}, problem);
  if (problem || !list.is_array()) return std::string(tools);
  for (boost::json::value& tool : list.get_array()) {
    boost::json::value* function = tool.is_object() ? tool.get_object().if_contains("function") : nullptr;
    if (function != nullptr && function->is_object()) complete(function->get_object());
  }
  return boost::json::serialize(list);
}

std::vector<std::string_view> marks_of(const ReplyFormat& format) {
  std::vector<std::string_view> marks;
  const auto add = [&](std::string_view text) {
    constexpr std::pair<std::string_view, std::string_view> kBrackets[] = {
        {"<", ">"}, {"[", "]"}, {"｜", "｜"}, {"]<]", "[>["}};
    for (const auto& [open, close] : kBrackets) {
      for (std::size_t at = text.find(open); at != std::string_view::npos; at = text.find(open, at + open.size())) {
        const std::size_t end = text.find(close, at + open.size());
        if (end == std::string_view::npos) break;
        marks.push_back(text.substr(at, end + close.size() - at));
      }
    }
  };
  add(format.thoughts.open);
  add(format.thoughts.close);
  if (format.family == nullptr) return marks;
  const Family& family = *format.family;
  for (const CallForm& form : family.calls) {
    for (const std::string_view text : {form.open, form.call, form.between, form.close}) add(text);
  }
  for (const std::string_view text : family.dropped) add(text);
  for (const Marks& around : family.around) {
    add(around.open);
    add(around.close);
  }
  const ElementMarks& element = family.element;
  for (const std::string_view text : {element.open, element.name_end, element.value_begin, element.close, family.quote})
    add(text);
  return marks;
}

Tools tools_of(std::string_view tools) {
  Tools known;
  boost::system::error_code problem;
  const boost::json::value list = json::parse(tools, {}, problem);
  if (problem || !list.is_array()) return known;
  for (const boost::json::value& tool : list.get_array()) {
    const boost::json::object& function = tool.at("function").as_object();
    const boost::json::value* schema = function.if_contains("parameters");
    known.emplace(function.at("name").as_string(), schema == nullptr ? ParameterTypes() : parameter_types_of(*schema));
  }
  return known;
}

std::size_t bytes_of(const Tools& tools) {
  constexpr std::size_t kNodeBytes = 96;  // An entry of a map, with a short name.
  std::size_t bytes = sizeof(Tools);
  for (const auto& [name, parameters] : tools) {
    bytes += kNodeBytes + name.size();
    for (const auto& [parameter, types] : parameters) bytes += kNodeBytes + parameter.size();
  }
  return bytes;
}

std::string spelled_result(std::string_view result) {
  return std::format("<tool_response>\n{}\n</tool_response>", result);
}

std::vector<WrittenMessage> spell_out_tools(std::span<const ChatMessage> messages, std::string_view tools) {
  std::vector<WrittenMessage> written;
  bool was_result = false;
  std::size_t leading = 0;  // System messages before all others.
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const bool is_leading = message.role == "system" && i == leading;
    if (is_leading) ++leading;
    const Source source(static_cast<std::int32_t>(i), is_leading ? PromptPart::system : PromptPart::text);
    if (!message.role.starts_with("tool")) {
      const bool is_call = message.role == "assistant" && has_calls(message);
      written.push_back({message.role, is_call ? with_calls(message, source) : Text::input(message.content, source)});
      was_result = false;
      continue;
    }
    const Text result = Text::input(spelled_result(message.content), {source.message, PromptPart::result});
    if (was_result) {
      written.back().content.append("\n");
      written.back().content.append(result);
    } else {
      written.push_back({"user", result});
    }
    was_result = true;
  }
  if (tools.empty()) return written;
  const bool has_system = !written.empty() && written.front().role == "system";
  if (!has_system) written.insert(written.begin(), {"system", Text()});
  const Source source(has_system ? 0 : -1, PromptPart::tools);
  Text& system = written.front().content;
  system.append(Text::input((has_system ? "\n\n" : "") + instructions(tools), source));
  return written;
}

Text indented_json(const Value& tools) {
  jinja::Budget budget(UINT64_MAX, UINT64_MAX);  // Unlimited, because the request's size is bounded.
  return jinja::to_json(tools, {.indent = "    ", .is_indented = true, .between_items = ","}, budget);
}

}  // namespace uma::chat
