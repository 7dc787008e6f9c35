#include "make_model/script.h"

#include <algorithm>
#include <cstddef>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "json/field_reader.h"
#include "make_model/input_file.h"

namespace uma {

namespace {

constexpr json::TextBytes kScriptTextBytes{.min = 1, .max = 4096};

// Writes JSON with the spaces of Python's json.dumps, which are those of chat templates.
void append_spaced_json(const boost::json::value& value, std::string& out) {
  const auto append_list = [&](const auto& items, std::string_view marks, auto&& append_item) {
    out += marks[0];
    std::string_view between;
    for (const auto& item : items) {
      out += between;
      append_item(item);
      between = ", ";
    }
    out += marks[1];
  };
  if (value.is_array()) {
    append_list(value.get_array(), "[]", [&](const boost::json::value& item) { append_spaced_json(item, out); });
  } else if (value.is_object()) {
    append_list(value.get_object(), "{}", [&](const boost::json::key_value_pair& member) {
      out += boost::json::serialize(member.key()) + ": ";
      append_spaced_json(member.value(), out);
    });
  } else {
    out += boost::json::serialize(value);
  }
}

// Templates of models have the name in quotes.
bool is_plain_name(std::string_view name) {
  return std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || std::string_view("_-.").contains(c);
  });
}

void refuse_unknown_fields(json::FieldReader& reader, const boost::json::object& object,
                           std::initializer_list<std::string_view> known) {
  for (const boost::json::key_value_pair& member : object) {
    if (!std::ranges::contains(known, std::string_view(member.key()))) {
      reader.fail_field(std::string_view(member.key()), "is not known");
    }
  }
}

}  // namespace

std::expected<Script, std::string> parse_script(std::string_view text) {
  boost::system::error_code problem;
  const boost::json::value value = json::parse(text, {}, problem);
  if (problem || !value.is_object()) return std::unexpected("the script is not a JSON object");
  json::FieldReader fields(value.get_object());
  refuse_unknown_fields(fields, value.get_object(), {"tool", "answer_prefix", "quote_after", "thinking", "plain_answer"});
  Script script;
  if (const boost::json::object* tool = fields.object("tool")) {
    json::FieldReader tool_fields(*tool, "tool.");
    refuse_unknown_fields(tool_fields, *tool, {"name", "arguments"});
    script.tool = tool_fields.required_text("name", {.min = 1, .max = 128});
    if (!is_plain_name(script.tool)) tool_fields.fail_field("name", "may have letters, digits, \"_\", \"-\" and \".\" only");
    const boost::json::object* arguments = tool_fields.object("arguments");
    append_spaced_json(arguments == nullptr ? boost::json::object() : *arguments, script.arguments);
    if (!tool_fields.ok()) fields.fail_as(tool_fields);
  } else {
    fields.fail_field("tool", "is missing");
  }
  script.answer_prefix = fields.required_text("answer_prefix", kScriptTextBytes);
  script.quote_after = fields.text("quote_after", kScriptTextBytes).value_or("");
  script.thinking = fields.text("thinking", kScriptTextBytes).value_or("");
  script.plain_answer = fields.required_text("plain_answer", kScriptTextBytes);
  if (!fields.ok()) return std::unexpected("the script's " + fields.take_error().message);
  return script;
}

std::expected<Script, std::string> read_script(const std::filesystem::path& path) {
  return parse_file(path, parse_script);
}

}  // namespace uma
