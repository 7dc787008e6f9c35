// A chat template's input from JSON, for tests and tools.
#pragma once

#include <string>

#include <boost/json.hpp>

#include "jinja/chat_template.h"

namespace uma {

// Texts are input of `source`, but for roles, which are known words.
inline jinja::Value value_from_json(const boost::json::value& value, jinja::Source source) {
  using jinja::Text;
  using jinja::TextPtr;
  using jinja::Value;
  switch (value.kind()) {
    case boost::json::kind::null:
      return Value::none();
    case boost::json::kind::bool_:
      return Value::boolean(value.get_bool());
    case boost::json::kind::int64:
      return Value::integer(value.get_int64());
    case boost::json::kind::uint64:
      return Value::number(static_cast<double>(value.get_uint64()));
    case boost::json::kind::double_:
      return Value::number(value.get_double());
    case boost::json::kind::string:
      return Value::text(Text::input(std::string(value.get_string()), source));
    case boost::json::kind::array: {
      std::vector<Value> items;
      for (const auto& item : value.get_array()) items.push_back(value_from_json(item, source));
      return Value::list(std::move(items));
    }
    case boost::json::kind::object: {
      std::vector<std::pair<TextPtr, Value>> entries;
      for (const auto& [key, item] : value.get_object()) {
        Value made = key == "role" && item.is_string() ? Value::text(std::string_view(item.get_string()))
                                                       : value_from_json(item, source);
        entries.emplace_back(std::make_shared<const Text>(Text::input(std::string(key), source)), std::move(made));
      }
      return Value::dict(std::move(entries));
    }
  }
  return {};
}

// {"messages": [...], "tools": [...], "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "unix_s": 0, and
// the template's own variables}.
inline jinja::ChatTemplateInput input_from_json(const boost::json::object& object) {
  jinja::ChatTemplateInput input;
  input.messages = jinja::Value::list({});
  for (const auto& [key, value] : object) {
    if (key == "messages") {
      std::vector<jinja::Value> messages;
      for (const auto& message : value.as_array()) {
        messages.push_back(value_from_json(message, static_cast<jinja::Source>(messages.size())));
      }
      input.messages = jinja::Value::list(std::move(messages));
    } else if (key == "tools") {
      input.tools = value_from_json(value, jinja::kOtherInput);
    } else if (key == "add_generation_prompt") {
      input.add_generation_prompt = value.as_bool();
    } else if (key == "bos_token") {
      input.bos_token = std::string(value.as_string());
    } else if (key == "eos_token") {
      input.eos_token = std::string(value.as_string());
    } else if (key == "unix_s") {
      input.unix_s = value.as_int64();
    } else {
      input.variables.emplace_back(std::string(key), value_from_json(value, jinja::kOtherInput));
    }
  }
  return input;
}

}  // namespace uma
