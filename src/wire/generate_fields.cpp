#include "wire/generate_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <format>
#include <limits>
#include <utility>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/utf8.h"
#include "core/sampling_fields.h"
#include "json/json_writer.h"
#include "wire/image_fields.h"
#include "wire/request_codec.h"
#include "wire/thinking_fields.h"

namespace uma::wire {
namespace {

// Reads OpenAI's two formats of a message's content: a string, or an array of {type: "text", text} and, for a user, images and
// clips.
std::string content_field(json::FieldReader& message, std::string_view role, std::size_t index,
                          std::vector<InputImage>& images) {
  const auto cleaned = [is_system = role == "system"](std::string text) {
    return is_system ? without_billing_line(std::move(text)) : text;
  };
  const boost::json::value* content = message.find("content");
  if (content == nullptr || !content->is_array()) return cleaned(message.required_text("content"));
  std::string text;
  for (std::size_t i = 0; i < content->get_array().size() && message.ok(); ++i) {
    const boost::json::object* object = content->get_array()[i].if_object();
    const boost::json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    const boost::json::value* part_text = object == nullptr ? nullptr : object->if_contains("text");
    if (type != nullptr && *type == "text" && part_text != nullptr) {
      text += cleaned(message.checked_text("content", *part_text, {}).value_or(""));
      continue;
    }
    std::optional<ImageSource> image;
    const std::string field = std::format("{}content[{}]", message.path(), i);
    if (object != nullptr && role == "user") {
      json::FieldReader part(*object, field + ".");
      image = image_part(part);
      if (!part.ok()) message.fail_as(part);
    }
    if (!image) {
      message.fail_field("content", R"(must be a string or an array of {"type": "text", "text": ...})"
                                    R"( and, for a user, {"type": "image_url", "image_url": {"url": ...}})"
                                    R"( or {"type": "input_audio", "input_audio": {"data": ..., "format": ...}})");
      return "";
    }
    images.push_back({.message = index, .at = text.size(), .source = std::move(*image), .field = field});
  }
  return text;
}

std::string role_field(json::FieldReader& message) {
  std::string role = message.required_text("role");
  if (role == "developer") return "system";  // The newer name of the same role.
  constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  if (std::ranges::find(kRoles, role) == kRoles.end()) {
    message.fail_field("role", R"(must be "system", "user", "assistant", "tool" or "developer")");
  }
  return role;
}

// Reads the object `name` of `fields` with read(inner); a failure of the object becomes a failure of `fields`.
template <class ReadT>
void inside(json::FieldReader& fields, const boost::json::object& object, std::string path, ReadT&& read) {
  json::FieldReader inner(object, std::move(path));
  read(inner);
  if (!inner.ok()) fields.fail_as(inner);
}

// The object at [i] of the array `name`. Returns null, and records a failure, for another type.
const boost::json::object* object_at(json::FieldReader& fields, const boost::json::array& array, std::string_view name,
                                     std::size_t i) {
  const boost::json::object* object = array[i].if_object();
  if (object == nullptr) fields.fail_field(std::format("{}[{}]", name, i), "must be an object");
  return fields.ok() ? object : nullptr;
}

// Appends one tool call as JSON with the known fields.
void append_call(std::string& out, json::FieldReader& call) {
  json::ObjectWriter object(out);
  object.field("id", call.required_text("id", kCallIdBytes));
  const std::string type = call.text("type").value_or("function");
  if (type != "function") call.fail_field("type", R"(must be "function")");
  object.field("type", type);
  const boost::json::object* function = call.object("function");
  if (function == nullptr && call.ok()) call.fail_field("function", "is required");
  if (function != nullptr) {
    inside(call, *function, call.path() + "function.", [&](json::FieldReader& inner) {
      json::ObjectWriter fields(object.begin("function"));
      fields.field("name", name_field(inner));
      fields.field("arguments", inner.text("arguments").value_or("{}"));
      fields.close();
    });
  }
  object.close();
}

void append_calls(std::string& out, json::FieldReader& message, const boost::json::array& calls) {
  if (calls.size() > kCallsMax) message.fail_field("tool_calls", std::format("has more than {} calls", kCallsMax));
  out += '[';
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const boost::json::object* object = object_at(message, calls, "tool_calls", i);
    if (object == nullptr) return;
    if (i > 0) out += ',';
    inside(message, *object, std::format("{}tool_calls[{}].", message.path(), i),
           [&](json::FieldReader& call) { append_call(out, call); });
  }
  out += ']';
}

// Returns the JSON of ChatMessage::extra.
std::string extra_fields(json::FieldReader& message, std::string_view role) {
  std::string extra;
  json::ObjectWriter object(extra);
  const auto keep = [&](std::string_view name, json::TextBytes bytes = {}) {
    if (const auto text = message.text(name, bytes); text && !text->empty()) object.field(name, *text);
  };
  if (role == "assistant") {
    keep("reasoning_content");
    if (const boost::json::array* calls = message.array("tool_calls"); calls != nullptr && !calls->empty()) {
      append_calls(object.begin("tool_calls"), message, *calls);
    }
  } else if (role == "tool") {
    keep("tool_call_id", kCallIdBytes);
    keep("name");
  }
  object.close();
  return extra == "{}" ? "" : extra;
}

ChatMessage read_message(json::FieldReader& fields, std::size_t index, std::vector<InputImage>& images) {
  ChatMessage message;
  message.role = role_field(fields);
  message.extra = extra_fields(fields, message.role);
  const bool may_be_silent = message.role == "assistant" && !message.extra.empty();
  if (fields.find("content") != nullptr || !may_be_silent) message.content = content_field(fields, message.role, index, images);
  return message;
}

// Checks the function of a tool.
void check_named_function(json::FieldReader& function, std::vector<std::string>& names) {
  std::string name = name_field(function);
  if (std::ranges::contains(names, name)) function.fail_field("name", "is also the name of another tool");
  names.push_back(std::move(name));
  check_function(function);
}

void check_tool(json::FieldReader& tool, ToolShape shape, std::vector<std::string>& names) {
  if (tool.required_text("type") != "function") tool.fail_field("type", R"(must be "function": other tools are not supported)");
  if (shape == ToolShape::flat) return check_named_function(tool, names);
  const boost::json::object* function = tool.object("function");
  if (function == nullptr) return tool.fail_field("function", "is required");
  inside(tool, *function, tool.path() + "function.", [&](json::FieldReader& inner) { check_named_function(inner, names); });
}

// The tool in the format that templates expect.
boost::json::value nested_tool(const boost::json::object& tool) {
  boost::json::object function = tool;
  if (const auto type = function.find("type"); type != function.end()) function.stable_erase(type);
  return {{"type", "function"}, {"function", std::move(function)}};
}

void read_tools(json::FieldReader& fields, ToolShape shape, ChatOptions& options) {
  const boost::json::array* tools = fields.array("tools");
  if (tools == nullptr || tools->empty()) return;
  if (tools->size() > kToolsMax) fields.fail_field("tools", std::format("has more than {} tools", kToolsMax));
  boost::json::array nested;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const boost::json::object* object = object_at(fields, *tools, "tools", i);
    if (object == nullptr) return;
    inside(fields, *object, std::format("tools[{}].", i),
           [&](json::FieldReader& tool) { check_tool(tool, shape, options.tool_names); });
    if (!fields.ok()) return;  // A required field of a tool may be missing.
    if (shape == ToolShape::flat) nested.push_back(nested_tool(*object));
  }
  options.tools = shape == ToolShape::flat ? json_text(fields, "tools", nested) : json_text(fields, "tools", *tools);
}

void read_named_choice(json::FieldReader& choice, ChatOptions& options) {
  options.tool_choice = ToolChoice::named;
  options.tool_name = choice.required_text("name");
  if (!std::ranges::contains(options.tool_names, options.tool_name))
    choice.fail_field("name", "is not the name of a tool in this request");
}

void read_tool_choice(json::FieldReader& fields, ToolShape shape, ChatOptions& options) {
  const std::string_view forms =
      shape == ToolShape::flat ? R"(must be "auto", "none", "required" or {"type": "function", "name": ...})"
                               : R"(must be "auto", "none", "required" or {"type": "function", "function": {"name": ...}})";
  const boost::json::value* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  if (const boost::json::object* object = choice->if_object()) {
    inside(fields, *object, "tool_choice.", [&](json::FieldReader& named) {
      const bool is_function = named.text("type") == "function";
      if (is_function && shape == ToolShape::flat) return read_named_choice(named, options);
      const boost::json::object* function = is_function ? named.object("function") : nullptr;
      if (function == nullptr) return fields.fail_field("tool_choice", forms);
      inside(named, *function, "tool_choice.function.", [&](json::FieldReader& inner) { read_named_choice(inner, options); });
    });
    return;
  }
  if (*choice == "none") {
    options.tools.clear();
    options.tool_names.clear();
  } else if (*choice == "required") {
    options.tool_choice = ToolChoice::required;
    if (options.tools.empty()) fields.fail_field("tool_choice", "requires a call, but the request has no tools");
  } else if (*choice != "auto") {
    fields.fail_field("tool_choice", forms);
  }
}

// Reads options for the template, and those of thoughts. Names that umad sets itself have their own fields.
void read_template_arguments(json::FieldReader& fields, ChatOptions& options) {
  constexpr std::array<std::string_view, 6> kOurs = {"messages",  "tools",     "add_generation_prompt",
                                                     "documents", "bos_token", "eos_token"};
  const boost::json::object* given = fields.object("chat_template_kwargs");
  boost::json::object arguments = given == nullptr ? boost::json::object() : *given;
  for (const std::string_view name : kOurs) {
    if (arguments.contains(name))
      fields.fail_field(std::format("chat_template_kwargs.{}", name), "cannot be set here: umad sets it itself");
  }
  read_thinking(fields, arguments, options);
  if (!arguments.empty()) options.template_arguments = json_text(fields, "chat_template_kwargs", arguments);
}

// The bias of one token: a number to add to its logit. False, and numbers up to -100, forbid the token.
float bias_value(json::FieldReader& fields, const boost::json::value& value) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  if (value.is_bool() && !value.get_bool()) return kForbidden;
  const double bias = fields.checked_number("logit_bias", value, {-std::numeric_limits<double>::max(), 100}).value_or(0);
  return bias <= -100 ? kForbidden : static_cast<float>(bias);
}

std::vector<std::pair<Token, float>> logit_bias_field(json::FieldReader& fields) {
  std::vector<std::pair<Token, float>> biases;
  const boost::json::object* object = fields.object("logit_bias");
  if (object == nullptr) return biases;
  if (object->size() > kLogitBiasMax) {
    fields.fail_field("logit_bias", std::format("has {} tokens, but the limit is {}", object->size(), kLogitBiasMax));
    return biases;
  }
  for (const auto& [key, value] : *object) {
    Token token = kNoToken;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (problem != std::errc() || end != key.data() + key.size() || token < 0) {
      fields.fail_field("logit_bias", "must have token ids as keys, such as {\"15\": -100}");
      break;
    }
    biases.emplace_back(token, bias_value(fields, value));
    if (!fields.ok()) break;
  }
  std::ranges::sort(biases);
  const auto same = std::ranges::adjacent_find(biases, {}, &std::pair<Token, float>::first);
  if (same != biases.end()) fields.fail_field("logit_bias", std::format("has token {} twice", same->first));
  return biases;
}

std::optional<std::vector<std::string>> breakers_field(json::FieldReader& fields) {
  constexpr std::string_view kName = "dry_sequence_breakers";
  const boost::json::array* array = fields.array(kName);
  if (array == nullptr) return std::nullopt;
  if (array->size() > kDryBreakersMax) {
    fields.fail_field(kName, std::format("has {} strings, but the limit is {}", array->size(), kDryBreakersMax));
    return std::nullopt;
  }
  std::vector<std::string> breakers;
  for (const boost::json::value& text : *array) {
    breakers.push_back(fields.checked_text(kName, text, {1, kDryBreakerBytesMax}).value_or(""));
  }
  return fields.ok() ? std::optional(std::move(breakers)) : std::nullopt;
}

// Reads the description of a schema.
std::string schema_field(json::FieldReader& fields) {
  (void)fields.text("name");
  (void)fields.boolean("strict");  // Always true for umad.
  const boost::json::object* schema = fields.object("schema");
  if (fields.ok() && schema == nullptr) fields.fail_field("schema", "is required");
  return schema == nullptr ? "" : boost::json::serialize(*schema);
}

// Reads a format. read_schema() reads the schema of its type.
template <class ReadT>
void read_format(json::FieldReader& format, GenerateOptions& options, ReadT&& read_schema) {
  const std::string type = format.required_text("type");
  if (type == "json_object") {
    options.json_schema = R"({"type":"object"})";
  } else if (type == "json_schema") {
    read_schema();
  } else if (type != "text") {
    format.fail_field("type", R"(must be "text", "json_object" or "json_schema")");
  }
}

void check_format_alone(json::FieldReader& fields, std::string_view name, const GenerateOptions& options) {
  if (options.json_schema.empty() || options.grammar.empty()) return;
  fields.fail_field(name, "and \"grammar\" exclude each other: leave one of the two out");
}

}  // namespace

std::string name_field(json::FieldReader& fields) {
  constexpr json::TextBytes kNameBytes{1, 128};
  std::string name = fields.required_text("name", kNameBytes);
  const auto is_fine = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || std::string_view("_-.:/").contains(c);
  };
  if (!std::ranges::all_of(name, is_fine)) fields.fail_field("name", "may contain only letters, digits and _ - . : /");
  return name;
}

void check_function(json::FieldReader& function) {
  (void)function.text("description");
  (void)function.object("parameters");
  (void)function.boolean("strict");
}

std::string without_billing_line(std::string text) {
  if (!text.starts_with("x-anthropic-billing-header:")) return text;
  const std::size_t end = text.find('\n');
  text.erase(0, end == std::string::npos ? end : end + 1);
  return text;
}

std::string json_text(json::FieldReader& fields, std::string_view name, const boost::json::value& value) {
  std::string text = boost::json::serialize(value);
  if (!is_utf8(text)) fields.fail_field(name, "is not valid UTF-8");
  if (text.contains("\\u0000")) fields.fail_field(name, "must not contain NUL characters");
  return text;
}

std::vector<ChatMessage> messages_field(json::FieldReader& fields, std::vector<InputImage>& images) {
  std::vector<ChatMessage> messages;
  const boost::json::array* array = fields.array("messages");
  if (array == nullptr) return messages;
  if (array->empty()) fields.fail_field("messages", "must contain at least one message");
  for (std::size_t i = 0; i < array->size() && fields.ok(); ++i) {
    const boost::json::object* object = (*array)[i].if_object();
    if (object == nullptr) {
      fields.fail_field(std::format("messages[{}]", i), "must be an object");
      break;
    }
    inside(fields, *object, std::format("messages[{}].", i),
           [&](json::FieldReader& message) { messages.push_back(read_message(message, i, images)); });
  }
  if (images.size() > kImagesPerRequestMax) {
    fields.fail_field("messages",
                      std::format("have {} images and clips, but the limit is {}", images.size(), kImagesPerRequestMax));
  }
  return messages;
}

bool normalize_extra(ChatMessage& message) {
  if (message.extra.empty()) return true;
  boost::system::error_code problem;
  const boost::json::value given = json::parse(message.extra, {}, problem);
  if (problem || !given.is_object()) return false;
  json::FieldReader fields(given.get_object());
  message.extra = extra_fields(fields, message.role);
  return fields.ok();
}

bool normalize_context(std::string& tools, std::string& template_arguments_text) {
  boost::system::error_code problem;
  boost::json::object given;
  if (!tools.empty()) given["tools"] = json::parse(tools, {}, problem);
  if (problem) return false;
  if (!template_arguments_text.empty()) given["chat_template_kwargs"] = json::parse(template_arguments_text, {}, problem);
  if (problem) return false;
  json::FieldReader fields(given);
  const ChatOptions options = chat_options(fields);
  tools = options.tools;
  template_arguments_text = options.template_arguments;
  return fields.ok();
}

ChatOptions chat_options(json::FieldReader& fields, ToolShape shape) {
  ChatOptions options;
  read_tools(fields, shape, options);
  read_tool_choice(fields, shape, options);
  options.has_parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  read_template_arguments(fields, options);
  return options;
}

std::vector<std::string> stop_field(json::FieldReader& fields, std::string_view name) {
  std::vector<std::string> stop;
  const boost::json::value* value = fields.find(name);
  if (value == nullptr) return stop;
  const auto add = [&](const boost::json::value& text) {
    stop.push_back(fields.checked_text(name, text, {1, kStopBytesMax}).value_or(""));
  };
  if (!value->is_array()) {
    add(*value);
    return stop;
  }
  if (value->get_array().size() > kStopStringsMax) {
    fields.fail_field(name, std::format("has {} strings, but the limit is {}", value->get_array().size(), kStopStringsMax));
    return stop;
  }
  for (const boost::json::value& text : value->get_array()) add(text);
  return stop;
}

void read_sampling_fields(json::FieldReader& fields, std::span<const SamplingField> wanted, SamplingParams& sampling) {
  for (const SamplingField field : wanted) {
    const SamplingFieldInfo& info = info_of(field);
    std::optional<double> value;
    if (info.is_whole()) {
      const auto whole = fields.integer(info.name, static_cast<std::int64_t>(info.low), static_cast<std::int64_t>(info.high));
      if (whole) value = static_cast<double>(*whole);
    } else {
      value = fields.number(info.name, {info.low, info.high, info.low_excluded, info.high_excluded});
    }
    if (!value) continue;
    set_value(sampling, field, *value);
    set_given(sampling, field);
  }
}

void read_common_sampling(json::FieldReader& fields, SamplingParams& sampling) {
  using enum SamplingField;
  read_sampling_fields(fields, std::array{temperature, top_p, presence_penalty, frequency_penalty}, sampling);
  sampling.seed = fields.unsigned_integer("seed");
  sampling.logit_bias = logit_bias_field(fields);
}

void read_own_sampling(json::FieldReader& fields, SamplingParams& sampling, NegativeTopK negative) {
  using enum SamplingField;
  if (negative == NegativeTopK::off) {
    if (const auto count = fields.integer("top_k", std::numeric_limits<std::int64_t>::min(), json::kInt32Max)) {
      set_value(sampling, top_k, static_cast<double>(std::max<std::int64_t>(*count, 0)));
      set_given(sampling, top_k);
    }
  } else {
    read_sampling_fields(fields, std::array{top_k}, sampling);
  }
  constexpr std::array kOwn = {min_p,    typical_p,          repeat_penalty,     repeat_last_n,   dry_multiplier,
                               dry_base, dry_allowed_length, dry_penalty_last_n, xtc_probability, xtc_threshold,
                               mirostat, mirostat_tau,       mirostat_eta};
  read_sampling_fields(fields, kOwn, sampling);
  if (auto breakers = breakers_field(fields)) sampling.dry_sequence_breakers = std::move(breakers);
  sampling.ignore_eos = fields.boolean("ignore_eos").value_or(sampling.ignore_eos);
}

RequestClass class_field(json::FieldReader& fields) {
  const std::string name = fields.text("class").value_or("interactive");
  if (name == "background") return RequestClass::background;
  if (name != "interactive") fields.fail_field("class", R"(must be "interactive" or "background")");
  return RequestClass::interactive;
}

void read_scheduling(json::FieldReader& fields, GenerateOptions& options) {
  options.request_class = class_field(fields);
  options.deadline_ms = fields.integer("deadline_ms", 0, kTimeMsMax);
  options.timeout_ms = fields.integer("timeout_ms", 0, kTimeMsMax).value_or(0);
  constexpr double kTargetMax = static_cast<double>(kTargetMsMax);
  options.target_ttft_ms = fields.number("target_ttft_ms", {0, kTargetMax}).value_or(0);
  options.target_tbt_ms = fields.number("target_tbt_ms", {0, kTargetMax}).value_or(0);
}

std::optional<std::int32_t> max_tokens_field(json::FieldReader& fields, std::string_view name) {
  const auto count = fields.integer(name, 1, std::numeric_limits<std::int64_t>::max());
  if (!count) return std::nullopt;
  return static_cast<std::int32_t>(std::min(*count, json::kInt32Max));
}

void read_adapters(json::FieldReader& fields, GenerateOptions& options) {
  constexpr json::TextBytes kNameBytes{1, 128};
  const boost::json::array* list = fields.array("lora");
  if (list == nullptr || list->empty()) return;
  if (!options.adapters.empty()) fields.fail_field("lora", "is given twice: leave one out");
  if (list->size() > kAdaptersPerRequestMax) {
    fields.fail_field("lora", std::format("has {} adapters, but the limit is {}", list->size(), kAdaptersPerRequestMax));
  }
  for (std::size_t i = 0; i < list->size() && fields.ok(); ++i) {
    const boost::json::object* object = object_at(fields, *list, "lora", i);
    if (object == nullptr) return;
    inside(fields, *object, std::format("{}lora[{}].", fields.path(), i), [&](json::FieldReader& inner) {
      AdapterChoice choice;
      choice.name = inner.text("name", kNameBytes).value_or("");
      const auto number = inner.integer("id", 0, json::kInt32Max);
      choice.number = static_cast<std::int32_t>(number.value_or(0));
      choice.scale = inner.number("scale", {-kAdapterScaleMax, kAdapterScaleMax});
      if (choice.name.empty() != number.has_value()) inner.fail_field("name", "or \"id\" must be given, and not both");
      options.adapters.push_back(std::move(choice));
    });
  }
}

void read_grammar(json::FieldReader& fields, GenerateOptions& options) {
  std::string grammar = fields.text("grammar", {0, kGrammarBytesMax}).value_or("");
  if (grammar.empty()) return;
  if (!options.grammar.empty()) fields.fail_field("grammar", "is given twice: leave one out");
  options.grammar = std::move(grammar);
}

void read_strict_schema(json::FieldReader& fields, GenerateOptions& options) {
  const boost::json::object* object = fields.object("uma");
  if (object == nullptr) return;
  inside(fields, *object, "uma.",
         [&](json::FieldReader& own) { options.strict_schema = own.boolean("strict_schema").value_or(false); });
}

void read_own_options(json::FieldReader& own, GenerateOptions& options) {
  read_own_sampling(own, options.sampling);
  read_scheduling(own, options);
  read_grammar(own, options);
  read_adapters(own, options);
  if (const auto splits = own.boolean("split_reasoning")) options.chat.splits_reasoning = *splits;
  options.strict_schema = own.boolean("strict_schema").value_or(false);
}

void read_response_format(json::FieldReader& fields, GenerateOptions& options) {
  const boost::json::object* object = fields.object("response_format");
  if (object == nullptr) return;
  inside(fields, *object, "response_format.", [&](json::FieldReader& format) {
    read_format(format, options, [&] {
      if (format.find("json_schema") == nullptr) format.fail_field("json_schema", "is required");
      if (const boost::json::object* described = format.object("json_schema")) {
        inside(format, *described, "response_format.json_schema.",
               [&](json::FieldReader& schema) { options.json_schema = schema_field(schema); });
      }
    });
  });
  check_format_alone(fields, "response_format", options);
}

void read_text_format(json::FieldReader& fields, GenerateOptions& options) {
  const boost::json::object* text = fields.object("text");
  if (text == nullptr) return;
  inside(fields, *text, "text.", [&](json::FieldReader& inner) {
    const boost::json::object* object = inner.object("format");
    if (object == nullptr) return;
    inside(inner, *object, "text.format.", [&](json::FieldReader& format) {
      read_format(format, options, [&] { options.json_schema = schema_field(format); });
      options.schema_field = "text.format.schema";
    });
  });
  check_format_alone(fields, "text.format", options);
}

}  // namespace uma::wire
