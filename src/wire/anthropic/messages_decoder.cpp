#include "wire/anthropic/messages_decoder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <format>
#include <optional>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "json/json_writer.h"
#include "wire/agent_fields.h"
#include "wire/anthropic/message_blocks.h"
#include "wire/generate_fields.h"
#include "wire/openai/history_fields.h"
#include "wire/own/cache_diagnostics.h"
#include "wire/own/request_codec.h"
#include "wire/request_fields.h"
#include "wire/thinking_fields.h"

namespace uma::wire {
namespace {

constexpr std::size_t kMessageToolsMax = 1024;  // Agents bring the tools of all their servers.

// "a, b, c" with at most `kShownMax` names, which are a client's.
std::string names_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShownMax = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShownMax); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kShownMax ? std::format("{} and {} more", text, names.size() - kShownMax) : text;
}

// --- Tools

// A tool of Anthropic's own has a type with a date, such as web_search_20250305.
enum class ToolKind : std::uint8_t {
  custom,    // Described by its schema, run by the client.
  of_server  // Run by Anthropic's servers.
};

ToolKind tool_kind(json::FieldReader& tool) {
  // Tools of Anthropic's that the client runs; the models were trained with their schemas.
  constexpr std::array<std::string_view, 4> kRunByClients = {"bash_", "computer_", "memory_", "text_editor_"};
  const std::string type = tool.text("type", {1, 64}).value_or("custom");
  if (type == "custom") return ToolKind::custom;
  if (type == "function" ||
      std::ranges::any_of(kRunByClients, [&](std::string_view begin) { return type.starts_with(begin); })) {
    tool.fail_field("type", std::format("is \"{}\", which this server does not know: describe the tool by \"name\" and "
                                        "\"input_schema\", without a type",
                                        type));
  }
  return ToolKind::of_server;
}

// Appends the tool in the form that templates expect.
void append_tool(std::string& out, json::FieldReader& tool, ChatOptions& options) {
  std::string name = name_field(tool);
  if (std::ranges::contains(options.tool_names, name)) tool.fail_field("name", "is also the name of another tool");
  const auto description = tool.text("description");
  const boost::json::object* schema = tool.object("input_schema");
  if (schema == nullptr) tool.fail_field("input_schema", "is required");
  if (!tool.ok()) return;
  if (!out.empty()) out += ',';
  json::ObjectWriter object(out);
  object.field("type", "function");
  json::ObjectWriter function(object.begin("function"));
  function.field("name", name);
  if (description) function.field("description", *description);
  function.begin("parameters") += json_text(tool, "input_schema", *schema);
  if (tool.boolean("strict").value_or(false)) function.field("strict", true);
  function.close();
  object.close();
  options.tool_names.push_back(std::move(name));
}

// Reads the tools and returns the names of those that were left out.
std::vector<std::string> read_message_tools(json::FieldReader& fields, ChatOptions& options) {
  std::vector<std::string> left_out;
  const boost::json::array* tools = fields.array("tools");
  if (tools == nullptr) return left_out;
  if (tools->size() > kMessageToolsMax) {
    fields.fail_field("tools", std::format("has more than {} tools", kMessageToolsMax));
  }
  std::string written;
  for (std::size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    const boost::json::object* object = (*tools)[i].if_object();
    if (object == nullptr) {
      fields.fail_field(std::format("tools[{}]", i), "must be an object");
      break;
    }
    json::FieldReader tool(*object, std::format("tools[{}].", i));
    if (tool_kind(tool) == ToolKind::custom) {
      append_tool(written, tool, options);
    } else {
      left_out.push_back(tool.text("name", {0, 128}).value_or(tool.text("type").value_or("")));
    }
    if (!tool.ok()) fields.fail_as(tool);
  }
  if (!written.empty()) options.tools = "[" + written + "]";
  if (options.tools.empty() && !left_out.empty()) {
    fields.fail_field("tools", std::format("has only tools that are not available on this server: {}", names_of(left_out)));
  }
  return left_out;
}

void read_message_tool_choice(json::FieldReader& fields, ChatOptions& options, std::vector<std::string>& warnings) {
  const boost::json::object* object = fields.object("tool_choice");
  if (object == nullptr) return;
  json::FieldReader choice(*object, "tool_choice.");
  const std::string type = choice.required_text("type");
  options.has_parallel_calls = !choice.boolean("disable_parallel_tool_use").value_or(false);
  if (type == "any") {
    if (options.tools.empty()) {
      warnings.emplace_back(kNoToolsWarning);
    } else {
      options.tool_choice = ToolChoice::required;
    }
  } else if (type == "tool") {
    options.tool_choice = ToolChoice::named;
    options.tool_name = choice.required_text("name");
    if (!std::ranges::contains(options.tool_names, options.tool_name))
      choice.fail_field("name", "is not the name of a tool in this request");
  } else if (type == "none") {
    options.tools.clear();
    options.tool_names.clear();
  } else if (type != "auto") {
    choice.fail_field("type", R"(must be "auto", "any", "tool" or "none")");
  }
  if (!choice.ok()) fields.fail_as(choice);
}

// --- Reasoning and format

std::string schema_of_format(json::FieldReader& format) {
  const std::string type = format.required_text("type");
  if (type != "json_schema") {
    format.fail_field("type", R"(must be "json_schema")");
    return "";
  }
  const boost::json::object* schema = format.object("schema");
  if (schema == nullptr) format.fail_field("schema", "is required");
  return schema == nullptr ? "" : json_text(format, "schema", *schema);
}

// Reads the format `name`. `path`: that of its schema; static storage.
void read_message_format(json::FieldReader& fields, std::string_view name, std::string_view path, GenerateOptions& options) {
  const boost::json::object* described = fields.object(name);
  if (described == nullptr) return;
  json::FieldReader format(*described, std::format("{}{}.", fields.path(), name));
  options.json_schema = schema_of_format(format);
  options.schema_field = path;
  if (!format.ok()) fields.fail_as(format);
}

// Reads `thinking` and `output_config`: the arguments of the template, and the schema of the reply.
void read_output_config(json::FieldReader& fields, GenerateOptions& options) {
  boost::json::object arguments = template_arguments_field(fields);
  read_message_format(fields, "output_format", "output_format.schema", options);  // The older name.
  if (const boost::json::object* given = fields.object("output_config")) {
    json::FieldReader config(*given, "output_config.");
    if (const auto effort = config.text("effort", {1, 64})) arguments.emplace("reasoning_effort", *effort);
    if (config.find("format") != nullptr && !options.json_schema.empty())
      config.fail_field("format", "and \"output_format\" exclude each other");
    read_message_format(config, "format", "output_config.format.schema", options);
    if (!config.ok()) fields.fail_as(config);
  }
  read_strict_schema(fields, options);
  read_thinking(fields, arguments, options.chat);
  if (!arguments.empty()) options.chat.template_arguments = json_text(fields, "thinking", arguments);
}

// A thread keeps its tools: the request may leave them out, or repeat them.
void keep_tools(json::FieldReader& fields, const HeldThread& held, ChatOptions& options) {
  if (fields.find("tools") == nullptr) {
    options.tools = held.tools;
    options.tool_names = held.tool_names;
  } else if (fields.ok() && options.tools != held.tools) {
    fields.fail_field(kThreadToolsField, R"(is another list than "tools" here: leave it out, or begin a new thread (differing )"
                                         "field(s): tools)");
  }
}

// Refuses what a reply that is stored cannot be.
void check_thread(json::FieldReader& fields, const GenerateOptions& options) {
  if (options.max_tokens == 0) fields.fail_field("max_tokens", "must be at least 1, or -1: a message of a thread has a reply");
  if (options.chat.continues_reply) {
    fields.fail_field(kThreadField,
                      "cannot begin with a reply to be continued: send the conversation without a thread, or "
                      R"("continue_final_message": false)");
  }
}

// The thread of a request; nullptr as its `continued`: it begins one.
struct ThreadPlace {
  std::string id;
  const HeldThread* continued = nullptr;
};

// `thread` is null for a request without one.
MessagesCall read_messages_call(json::FieldReader& fields, ThreadPlace* thread) {
  MessagesCall call;
  GenerateRequest& generate = call.generate;
  const HeldThread* const continued = thread == nullptr ? nullptr : thread->continued;
  if (thread == nullptr && fields.find(kThreadField) != nullptr)
    fields.fail_field(kThreadField, "is not served here: send the whole conversation without it");
  generate.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  generate.agent = agent_of_fields(fields);
  std::vector<std::string> blocks_left_out;
  ConversationReader conversation(continued);
  conversation.read(fields, generate.input, blocks_left_out);
  GenerateOptions& options = generate.options;
  const std::vector<std::string> tools_left_out = read_message_tools(fields, options.chat);
  if (continued != nullptr) keep_tools(fields, *continued, options.chat);
  const ThreadFacts facts{.system_bytes = continued == nullptr ? conversation.system_bytes() : continued->system.size(),
                          .tools = options.chat.tools};
  read_message_tool_choice(fields, options.chat, call.warnings);
  read_output_config(fields, options);
  options.chat.splits_reasoning = true;
  read_continuation(fields, generate.input.messages, options.chat);
  options.sampling.temperature = 1;
  read_common_sampling(fields, options.sampling);
  read_own_sampling(fields, options.sampling, NegativeTopK::off);
  options.stop = stop_field(fields, "stop_sequences");
  options.max_tokens = max_tokens_field(fields, "max_tokens");
  options.stream = fields.boolean("stream").value_or(false);
  if (thread != nullptr) {
    check_thread(fields, options);
    if (continued != nullptr) generate.session = continued->previous.session;
    generate.response = thread_response(generate, std::move(thread->id), facts, continued);
  }
  generate.comparison = message_comparison(fields);
  if (!tools_left_out.empty()) {
    call.warnings.push_back(std::format("tools left out, because Anthropic's servers run them: {}", names_of(tools_left_out)));
  }
  if (!blocks_left_out.empty()) {
    call.warnings.push_back(std::format("blocks left out, which this server cannot read: {}", names_of(blocks_left_out)));
  }
  return call;
}

}  // namespace

std::expected<MessagesCall, RejectedBody> decode_messages(std::string_view body) {
  return decode_request<MessagesCall>(RequestRoute::messages, body,
                                      [](json::FieldReader& fields) { return read_messages_call(fields, nullptr); });
}

std::expected<MessagesCall, RejectedBody> decode_thread_message(std::string_view body, std::string id,
                                                                const HeldThread* continued) {
  ThreadPlace place{.id = std::move(id), .continued = continued};
  return decode_request<MessagesCall>(RequestRoute::messages, body,
                                      [&](json::FieldReader& fields) { return read_messages_call(fields, &place); });
}

}  // namespace uma::wire
