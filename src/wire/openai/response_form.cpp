#include "wire/openai/response_form.h"

#include <initializer_list>
#include <optional>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "json/json_writer.h"
#include "wire/generate_fields.h"
#include "wire/openai/response_ids.h"

namespace uma::wire {
namespace {

constexpr json::TextBytes kUserNameBytes{0, 512};  // Size of safety_identifier and prompt_cache_key, which OpenAI limits to 64.

// A copy of the object with these names only, so that a response repeats exactly OpenAI's fields.
boost::json::object repeated(const boost::json::object& given, std::initializer_list<std::string_view> names) {
  boost::json::object known;
  for (const std::string_view name : names) {
    if (const boost::json::value* value = given.if_contains(name)) known.emplace(name, *value);
  }
  return known;
}

// The tools as a response repeats them, with all fields that OpenAI's schema requires.
boost::json::array repeated_tools(const boost::json::array& tools) {
  boost::json::array all;
  for (const boost::json::value& tool : tools) {
    const boost::json::object& given = tool.as_object();
    if (given.at("type") != "function") {
      all.push_back(repeated(given, {"type", "name", "description", "format", "tools"}));
      continue;
    }
    boost::json::object known = repeated(given, {"type", "name", "description", "parameters", "strict"});
    for (const std::string_view name : {"parameters", "strict"}) known.emplace(name, nullptr);
    all.push_back(std::move(known));
  }
  return all;
}

// The choice as JSON, other than a single tool.
std::string tool_choice_json(json::FieldReader& fields) {
  const boost::json::value* choice = fields.find("tool_choice");
  if (choice == nullptr) return R"("auto")";
  return json_text(fields, "tool_choice",
                   choice->is_object() ? repeated(choice->get_object(), {"type", "mode", "tools"}) : *choice);
}

// Writes the fields for tools, reasoning and text format.
void repeat_chat_fields(json::ObjectWriter& object, json::FieldReader& fields, const ChatOptions& chat,
                        const ResponseTools& tools, Repeated how) {
  object.begin("tools") += how == Repeated::brief ? "[]" : json_text(fields, "tools", repeated_tools(tools.given()));
  if (chat.tool_choice == ToolChoice::named) {
    const ResponseTool named = tools.find(chat.tool_name);
    json::ObjectWriter choice(object.begin("tool_choice"));
    choice.field("type", named.is_custom ? "custom" : "function");
    choice.field("name", named.name);
    if (!named.space.empty()) choice.field("namespace", named.space);
    choice.close();
  } else {
    object.begin("tool_choice") += tool_choice_json(fields);
  }
  object.field("parallel_tool_calls", chat.has_parallel_calls);
  const boost::json::object* const given = fields.object("reasoning");
  const boost::json::value* const effort = given == nullptr ? nullptr : given->if_contains("effort");
  json::ObjectWriter reasoning(object.begin("reasoning"));
  reasoning.begin("effort") += effort == nullptr ? "null" : json_text(fields, "reasoning.effort", *effort);
  reasoning.null_field("summary");  // Umad makes no summaries.
  reasoning.close();
  const boost::json::object format = how == Repeated::brief ? boost::json::object() : stated_format(fields);
  json::ObjectWriter text(object.begin("text"));
  text.begin("format") +=
      format.empty() ? R"({"type":"text"})"
                     : json_text(fields, "text.format", repeated(format, {"type", "name", "description", "schema", "strict"}));
  text.close();
}

void repeat_number(json::ObjectWriter& object, std::string_view name, std::optional<std::int64_t> value) {
  if (value) {
    object.field(name, *value);
  } else {
    object.null_field(name);
  }
}

void repeat_text(json::ObjectWriter& object, json::FieldReader& fields, std::string_view name) {
  if (const auto text = fields.text(name, kUserNameBytes)) {
    object.field(name, *text);
  } else {
    object.null_field(name);
  }
}

}  // namespace

std::string repeated_fields(json::FieldReader& fields, const RepeatedFacts& facts, Repeated how) {
  std::string out;
  if (!fields.ok()) return out;
  const GenerateRequest& generate = facts.generate;
  const GenerateOptions& options = generate.options;
  json::ObjectWriter object(out);
  if (facts.response.instructions && how == Repeated::all) {
    object.field("instructions", *facts.response.instructions);
  } else {
    object.null_field("instructions");
  }
  repeat_number(object, "max_output_tokens", options.max_tokens);
  // The limit is for tools that OpenAI's servers run; here are none.
  repeat_number(object, "max_tool_calls", fields.integer("max_tool_calls", 0, json::kInt32Max));
  if (facts.previous.empty()) {
    object.null_field("previous_response_id");
  } else {
    object.field("previous_response_id", facts.previous);
  }
  if (facts.previous.empty() && !generate.session.empty()) {
    json::ObjectWriter conversation(object.begin("conversation"));
    conversation.field("id", conversation_id_text(generate.session));
    conversation.close();
  } else {
    object.null_field("conversation");
  }
  object.field("background", facts.is_background);
  object.field("store", facts.response.is_kept);
  object.field("temperature", options.sampling.temperature);
  object.field("top_p", options.sampling.top_p);
  object.field("presence_penalty", options.sampling.presence_penalty);
  object.field("frequency_penalty", options.sampling.frequency_penalty);
  object.field("top_logprobs", options.logprobs.value_or(0));
  object.field("truncation", facts.response.on_full == OnFull::shift ? "auto" : "disabled");
  object.field("service_tier", "default");  // The only one.
  repeat_text(object, fields, "safety_identifier");
  repeat_text(object, fields, "prompt_cache_key");
  object.begin("metadata") += facts.metadata;
  repeat_chat_fields(object, fields, options.chat, facts.tools, how);
  return fields.ok() ? out : "";
}

}  // namespace uma::wire
