#include "wire/openai/response_tools.h"

#include <algorithm>
#include <array>
#include <format>
#include <utility>

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "json/json_writer.h"
#include "wire/generate_fields.h"

namespace uma::wire {
namespace {

constexpr std::size_t kNameBytesMax = 128;  // Limit of a tool's name for the model.

// Tools that OpenAI's servers run, or whose calls need a protocol of their own.
constexpr std::array<std::string_view, 12> kHostedTools = {"web_search",
                                                           "web_search_preview",
                                                           "web_search_2025_08_26",
                                                           "file_search",
                                                           "code_interpreter",
                                                           "image_generation",
                                                           "local_shell",
                                                           "shell",
                                                           "mcp",
                                                           "tool_search",
                                                           "computer_use_preview",
                                                           "computer"};

std::string text_in(const boost::json::object& object, std::string_view name) {
  const boost::json::value* value = object.if_contains(name);
  const boost::json::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? "" : std::string(*text);
}

// The schema of the one argument of a custom tool. A regular expression limits the input; another grammar is only described.
boost::json::object schema_of_input(const boost::json::object& format) {
  boost::json::object input{{"type", "string"}};
  if (text_in(format, "syntax") == "regex") input["pattern"] = "^(?:" + text_in(format, "definition") + ")$";
  return {{"type", "object"},
          {"properties", boost::json::object{{"input", std::move(input)}}},
          {"required", boost::json::array{"input"}},
          {"additionalProperties", false}};
}

}  // namespace

std::string function_name(std::string_view space, std::string_view name) {
  return space.empty() ? std::string(name) : std::format("{}__{}", space, name);
}

std::string arguments_of_input(std::string_view input) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("input", input);
  object.close();
  return out;
}

std::string input_of_arguments(std::string_view arguments) {
  boost::system::error_code problem;
  const boost::json::value value = json::parse(arguments, {}, problem);
  const boost::json::object* object = problem ? nullptr : value.if_object();
  const boost::json::value* input = object == nullptr ? nullptr : object->if_contains("input");
  const boost::json::string* text = input == nullptr ? nullptr : input->if_string();
  return text == nullptr ? std::string(arguments) : std::string(*text);
}

boost::json::object custom_function(const boost::json::object& tool, std::string_view name) {
  const boost::json::value* given = tool.if_contains("format");
  const boost::json::object* stated = given == nullptr ? nullptr : given->if_object();
  boost::json::object format = stated == nullptr ? boost::json::object() : *stated;
  // In chat completions the grammar is an object of its own.
  if (const boost::json::value* inner = format.if_contains("grammar"); inner != nullptr && inner->is_object()) {
    boost::json::object grammar = inner->get_object();
    format = std::move(grammar);
  }
  std::string description = text_in(tool, "description");
  if (const std::string definition = text_in(format, "definition"); !definition.empty()) {
    description += std::format("\n\nThe input follows this {} grammar:\n{}", text_in(format, "syntax"), definition);
  }
  return {{"name", name}, {"description", std::move(description)}, {"parameters", schema_of_input(format)}};
}

ResponseTools::ResponseTools(json::FieldReader& request) {
  const boost::json::array* tools = request.array("tools");
  if (tools == nullptr) return;
  for (std::size_t i = 0; i < tools->size() && request.ok(); ++i) {
    const std::string path = std::format("tools[{}]", i);
    const boost::json::object* object = (*tools)[i].if_object();
    if (object == nullptr) {
      request.fail_field(path, "must be an object");
      return;
    }
    json::FieldReader tool(*object, path + ".");
    add(tool, *object, "");
    if (!tool.ok()) {
      request.fail_as(tool);
      return;
    }
    given_.push_back(*object);
    if (functions_.size() > kToolsMax) {
      request.fail_field("tools", std::format("has more than {} tools, those in namespaces included", kToolsMax));
    }
  }
}

ResponseTools ResponseTools::of_stored(std::string_view request) {
  boost::system::error_code problem;
  const boost::json::value value = json::parse(std::string(request) + "}", {}, problem);
  if (problem || !value.is_object()) return {};
  json::FieldReader fields(value.get_object());
  return ResponseTools(fields);
}

void ResponseTools::add(json::FieldReader& tool, const boost::json::object& object, const std::string& space) {
  const std::string type = tool.required_text("type");
  if (!tool.ok()) return;
  if (std::ranges::contains(kHostedTools, type)) {
    if (!std::ranges::contains(left_out_, type)) left_out_.push_back(type);
    return;
  }
  if (type == "namespace" && space.empty()) {
    const std::string name = name_field(tool);
    const boost::json::array* inner = tool.array("tools");
    for (std::size_t i = 0; inner != nullptr && i < inner->size() && tool.ok(); ++i) {
      const std::string field = std::format("tools[{}]", i);
      const boost::json::object* each = (*inner)[i].if_object();
      if (each == nullptr) return tool.fail_field(field, "must be an object");
      json::FieldReader reader(*each, tool.path() + field + ".");
      add(reader, *each, name);
      if (!reader.ok()) return tool.fail_as(reader);
    }
    return;
  }
  if (type == "function") return add_function(tool, object, space);
  if (type == "custom") return add_custom(tool, object, space);
  tool.fail_field("type", R"(must be "function", "custom", "namespace" or a tool of OpenAI's servers, which is left out)");
}

std::string ResponseTools::add_name(json::FieldReader& tool, const std::string& space, bool is_custom) {
  const std::string name = name_field(tool);
  std::string known = function_name(space, name);
  if (known.size() > kNameBytesMax) {
    tool.fail_field("name",
                    std::format("is too long: {} has {} bytes, but the limit is {}", known, known.size(), kNameBytesMax));
  }
  const bool is_new = by_function_.emplace(known, ResponseTool{.space = space, .name = name, .is_custom = is_custom}).second;
  if (!is_new) tool.fail_field("name", "is also the name of another tool");
  return known;
}

void ResponseTools::add_function(json::FieldReader& tool, const boost::json::object& object, const std::string& space) {
  boost::json::object function = object;
  function["name"] = add_name(tool, space, /*is_custom=*/false);
  check_function(tool);
  functions_.push_back(std::move(function));
}

void ResponseTools::add_custom(json::FieldReader& tool, const boost::json::object& object, const std::string& space) {
  boost::json::object function = custom_function(object, add_name(tool, space, /*is_custom=*/true));
  function["type"] = "function";
  functions_.push_back(std::move(function));
}

void ResponseTools::drop_definitions() {
  functions_ = {};
  given_ = {};
}

ResponseTool ResponseTools::find(std::string_view function) const {
  const auto found = by_function_.find(std::string(function));
  return found == by_function_.end() ? ResponseTool{.space = "", .name = std::string(function)} : found->second;
}

}  // namespace uma::wire
