#include "chat/tool_format.h"

#include <algorithm>
#include <cstdint>
#include <format>
#include <optional>
#include <utility>

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
std::string with_calls(const ChatMessage& message) {
  std::string text = message.content;
  const auto extra = jinja::read_json(message.extra, jinja::kOtherInput);
  for (const Value& call : items_of(extra, "tool_calls")) {
    const Value name = Value::text(std::string_view(text_at(call, "function", "name")));
    const std::string arguments = text_at(call, "function", "arguments");
    if (!text.empty()) text += '\n';
    text += std::format("<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>", json_of(name),
                        arguments.empty() ? "{}" : arguments);
  }
  return text;
}

Value with_arguments_as_objects(const Value& call, Source source) {
  std::vector<std::pair<jinja::TextPtr, Value>> entries;
  for (const auto& [key, item] : call.as_dict()->entries) {
    const Dict* function = item.as_dict();
    if (key->bytes() != "function" || function == nullptr) {
      entries.emplace_back(key, item);
      continue;
    }
    std::vector<std::pair<jinja::TextPtr, Value>> fields;
    for (const auto& [name, field] : function->entries) {
      const auto arguments = name->bytes() == "arguments" && field.as_text() != nullptr
                                 ? jinja::read_json(field.as_text()->bytes(), source)
                                 : std::nullopt;
      fields.emplace_back(name, arguments && arguments->as_dict() != nullptr ? *arguments : field);
    }
    entries.emplace_back(key, Value::dict(std::move(fields)));
  }
  return Value::dict(std::move(entries));
}

}  // namespace

std::vector<std::string_view> marks_of(const ReplyFormat& format) {
  std::vector<std::string_view> marks;
  const auto add = [&](std::string_view text) {
    constexpr std::pair<std::string_view, std::string_view> kBrackets[] = {{"<", ">"}, {"[", "]"}, {"｜", "｜"}};
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

std::vector<WrittenMessage> spell_out_tools(std::span<const ChatMessage> messages, std::string_view tools) {
  std::vector<WrittenMessage> written;
  bool was_result = false;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto source = static_cast<Source>(i);
    const ChatMessage& message = messages[i];
    if (!message.role.starts_with("tool")) {
      const bool is_call = message.role == "assistant" && has_calls(message);
      written.push_back({message.role, Text::input(is_call ? with_calls(message) : message.content, source)});
      was_result = false;
      continue;
    }
    const Text result = Text::input("<tool_response>\n" + message.content + "\n</tool_response>", source);
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
  const Source source = has_system ? 0 : jinja::kOtherInput;
  Text& system = written.front().content;
  system.append(Text::input((has_system ? "\n\n" : "") + instructions(tools), source));
  return written;
}

Value message_value(const ChatMessage& message, Source source, MessageStyle style) {
  const bool is_none = style.is_empty_content_none && message.content.empty() && has_calls(message);
  std::vector<Value::Entry> fields{
      {"role", Value::text(message.role)},
      {"content", is_none ? Value::none() : Value::text(Text::input(message.content, source))},
  };
  const auto extra = message.extra.empty() ? std::nullopt : jinja::read_json(message.extra, source);
  if (!extra || extra->as_dict() == nullptr) return Value::dict(std::move(fields));
  for (const auto& [key, field] : extra->as_dict()->entries) {
    if (key->bytes() == "tool_calls" && field.as_list() != nullptr && style.are_arguments_objects) {
      std::vector<Value> calls;
      for (const Value& call : field.as_list()->items) {
        calls.push_back(call.as_dict() == nullptr ? call : with_arguments_as_objects(call, source));
      }
      fields.emplace_back("tool_calls", Value::list(std::move(calls)));
    } else {
      fields.emplace_back(key->bytes(), field);
    }
  }
  return Value::dict(std::move(fields));
}

}  // namespace uma::chat
