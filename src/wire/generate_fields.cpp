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
#include "wire/openai/history_fields.h"
#include "wire/openai/response_tools.h"
#include "wire/own/request_codec.h"
#include "wire/thinking_fields.h"

namespace uma::wire {
namespace {

// The content of a message without one: that of a reply may be a refusal, and a tool may have returned nothing.
std::string missing_content(json::FieldReader& message, std::string_view role) {
  if (role == "assistant") return message.text("refusal").value_or("");
  return role == "tool" || message.is_null("content") ? "" : message.required_text("content");
}

// Reads OpenAI's two formats of a message's content: a string, or an array of {type: "text", text} and, for a user, images and
// clips, for a tool, images. What a tool has returned may be any JSON. Parts that are reasoning are added to `reasoning`.
std::string content_field(json::FieldReader& message, std::string_view role, std::size_t index, std::vector<InputImage>& images,
                          std::string& reasoning) {
  const auto cleaned = [is_system = role == "system"](std::string text) {
    return is_system ? without_billing_line(std::move(text)) : text;
  };
  const boost::json::value* content = message.find("content");
  if (content == nullptr) return missing_content(message, role);
  const bool is_tools = role == "tool";
  if (is_tools && !content->is_string() && (!content->is_array() || is_list_of_values(*content))) {
    return json_text(message, "content", *content);
  }
  if (!content->is_array()) return cleaned(message.required_text("content"));
  std::string text;
  for (std::size_t i = 0; i < content->get_array().size() && message.ok(); ++i) {
    const boost::json::object* object = content->get_array()[i].if_object();
    const bool is_other = is_tools && !is_content_part(content->get_array()[i]);
    if (auto part = is_other ? std::nullopt : written_part(message, "content", content->get_array()[i])) {
      (part->is_reasoning ? reasoning : text) += cleaned(std::move(part->text));
      continue;
    }
    std::optional<ImageSource> image;
    const std::string field = std::format("{}content[{}]", message.path(), i);
    if (object != nullptr && role != "system") {
      json::FieldReader part(*object, field + ".");
      image = image_part(part);
      if (!part.ok() && !is_tools) message.fail_as(part);
      if (!part.ok()) image.reset();
    }
    if (is_tools && (!image || image->media != Media::image)) {
      text += text_of_other_part(message, "content", content->get_array()[i]);
      continue;
    }
    if (image && role == "assistant") {
      text += kImageOfReply;
      continue;
    }
    if (!image) {
      message.fail_field("content",
                         unknown_part(content->get_array()[i]) +
                             R"(must be a string or an array of {"type": "text", "text": ...})"
                             R"( and, for a user or a tool, {"type": "image_url", "image_url": {"url": ...}})"
                             R"( or, for a user, {"type": "input_audio", "input_audio": {"data": ..., "format": ...}})");
      return "";
    }
    images.push_back({.message = index, .at = text.size(), .source = std::move(*image), .field = field});
  }
  return text;
}

std::string role_field(json::FieldReader& message) {
  std::string role = message.required_text("role");
  if (role == "developer") return "system";  // The newer name of the same role.
  if (role == "function") return "tool";     // The older one.
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

// Appends one tool call as JSON with the known fields. `id` is for a call without one.
void append_call(std::string& out, json::FieldReader& call, std::string id) {
  json::ObjectWriter object(out);
  if (std::string given = given_id(call, "id"); !given.empty()) id = std::move(given);
  object.field("id", id);
  const std::string type = call.text("type").value_or("function");
  const bool is_custom = type == "custom";
  if (!is_custom && type != "function") call.fail_field("type", R"(must be "function" or "custom")");
  object.field("type", "function");
  const auto write = [&](json::FieldReader& inner) {
    json::ObjectWriter fields(object.begin("function"));
    fields.field("name", called_name(inner));
    fields.field("arguments", is_custom ? arguments_of_input(inner.text("input").value_or("")) : called_arguments(inner));
    fields.close();
  };
  if (const boost::json::object* function = call.object(type)) {
    inside(call, *function, std::format("{}{}.", call.path(), type), write);
  } else {
    write(call);  // Responses has the fields here.
  }
  object.close();
}

void append_calls(std::string& out, json::FieldReader& message, const boost::json::array& calls, std::size_t index) {
  if (calls.size() > kCallsMax) message.fail_field("tool_calls", std::format("has more than {} calls", kCallsMax));
  out += '[';
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const boost::json::object* object = object_at(message, calls, "tool_calls", i);
    if (object == nullptr) return;
    if (i > 0) out += ',';
    inside(message, *object, std::format("{}tool_calls[{}].", message.path(), i),
           [&](json::FieldReader& call) { append_call(out, call, made_call_id(index, i)); });
  }
  out += ']';
}

// Appends the only call of a message in OpenAI's older form, function_call.
void append_older_call(std::string& out, json::FieldReader& message, const boost::json::object& function, std::size_t index) {
  const boost::json::object call{{"function", function}};
  out += '[';
  inside(message, call, message.path() + "function_call.",
         [&](json::FieldReader& fields) { append_call(out, fields, made_call_id(index, 0)); });
  out += ']';
}

// Returns the JSON of ChatMessage::extra for the message `index`. `reasoning` is that of its content; empty: its fields may
// have some.
std::string extra_fields(json::FieldReader& message, std::string_view role, std::size_t index, std::string reasoning = "") {
  std::string extra;
  json::ObjectWriter object(extra);
  if (role == "assistant") {
    if (reasoning.empty()) reasoning = reasoning_of_message(message);
    if (!reasoning.empty()) object.field("reasoning_content", reasoning);
    if (const boost::json::array* calls = message.array("tool_calls"); calls != nullptr && !calls->empty()) {
      append_calls(object.begin("tool_calls"), message, *calls, index);
    } else if (const boost::json::object* function = message.object("function_call")) {
      append_older_call(object.begin("tool_calls"), message, *function, index);
    }
  } else if (role == "tool") {
    if (const std::string id = given_id(message, "tool_call_id"); !id.empty()) object.field("tool_call_id", id);
    if (const auto name = message.text("name"); name && !name->empty()) object.field("name", *name);
  }
  object.close();
  return extra == "{}" ? "" : extra;
}

ChatMessage read_message(json::FieldReader& fields, std::size_t index, std::vector<InputImage>& images) {
  ChatMessage message;
  message.role = role_field(fields);
  std::string reasoning;
  message.content = content_field(fields, message.role, index, images, reasoning);
  message.extra = extra_fields(fields, message.role, index, std::move(reasoning));
  return message;
}

// Checks the function of a tool.
void check_named_function(json::FieldReader& function, std::vector<std::string>& names) {
  std::string name = name_field(function);
  if (std::ranges::contains(names, name)) function.fail_field("name", "is also the name of another tool");
  names.push_back(std::move(name));
  check_function(function);
}

// Adds the tool to `nested`, in the format that templates expect. `fields` has the tool's name and, for a custom tool, its
// format.
void add_tool(json::FieldReader& fields, boost::json::object function, bool is_custom, boost::json::array& nested,
              ChatOptions& options) {
  check_named_function(fields, options.tool_names);
  if (!fields.ok()) return;
  if (is_custom) {
    function = custom_function(function, options.tool_names.back());
    options.custom_tools.push_back(options.tool_names.back());
  }
  if (const auto type = function.find("type"); type != function.end()) function.stable_erase(type);
  nested.push_back({{"type", "function"}, {"function", std::move(function)}});
}

void read_tool(json::FieldReader& tool, const boost::json::object& given, ToolShape shape, boost::json::array& nested,
               ChatOptions& options) {
  const bool has_function = shape == ToolShape::nested && tool.find("function") != nullptr;
  const std::string type = has_function ? tool.text("type").value_or("function") : tool.required_text("type");
  const bool is_custom = type == "custom" && shape == ToolShape::nested;
  if (!is_custom && type != "function") {
    tool.fail_field("type", shape == ToolShape::nested ? R"(must be "function" or "custom": other tools are not supported)"
                                                       : R"(must be "function": other tools are not supported)");
  }
  if (!tool.ok()) return;
  if (shape == ToolShape::flat) return add_tool(tool, given, false, nested, options);
  const boost::json::object* function = tool.object(type);
  if (function == nullptr) return tool.fail_field(type, "is required");
  inside(tool, *function, std::format("{}{}.", tool.path(), type),
         [&](json::FieldReader& inner) { add_tool(inner, *function, is_custom, nested, options); });
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
           [&](json::FieldReader& tool) { read_tool(tool, *object, shape, nested, options); });
    if (!fields.ok()) return;  // A required field of a tool may be missing.
  }
  const auto has_type = [](const boost::json::value& tool) { return type_of_part(tool).has_value(); };
  const bool is_given = shape == ToolShape::nested && options.custom_tools.empty() && std::ranges::all_of(*tools, has_type);
  options.tools = is_given ? json_text(fields, "tools", *tools) : json_text(fields, "tools", nested);
}

// Reads the name of a tool of this request.
std::string chosen_name(json::FieldReader& choice, const ChatOptions& options) {
  std::string name = choice.required_text("name");
  if (!std::ranges::contains(options.tool_names, name)) choice.fail_field("name", "is not the name of a tool in this request");
  return name;
}

// Reads the name of the tool in a choice {"type", TYPE: {"name"}}, or, in /v1/responses, {"type", "name"}; empty: the choice
// names a tool of OpenAI's servers.
std::string chosen_tool(json::FieldReader& choice, const ChatOptions& options) {
  const std::string type = choice.required_text("type");
  if (type != "function" && type != "custom") return "";
  const boost::json::object* described = choice.object(type);
  if (described == nullptr) return chosen_name(choice, options);
  std::string name;
  inside(choice, *described, std::format("{}{}.", choice.path(), type),
         [&](json::FieldReader& inner) { name = chosen_name(inner, options); });
  return name;
}

void forget_tools(ChatOptions& options) {
  options.tools.clear();
  options.tool_names.clear();
  options.custom_tools.clear();
  options.tool_choice = ToolChoice::automatic;
}

// Reads {"mode", "tools"} of tool_choice `allowed_tools`. The model sees all tools, so that its prompt stays the same.
void read_allowed_tools(json::FieldReader& allowed, ChatOptions& options) {
  const std::string mode = allowed.text("mode").value_or("auto");
  if (mode == "required") options.tool_choice = ToolChoice::required;
  if (mode != "required" && mode != "auto") allowed.fail_field("mode", R"(must be "auto" or "required")");
  const boost::json::array* tools = allowed.array("tools");
  if (tools == nullptr || tools->empty() || tools->size() > kToolsMax) {
    return allowed.fail_field("tools", std::format("must name 1 to {} tools of this request", kToolsMax));
  }
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const boost::json::object* object = object_at(allowed, *tools, "tools", i);
    if (object == nullptr) return;
    inside(allowed, *object, std::format("{}tools[{}].", allowed.path(), i), [&](json::FieldReader& tool) {
      if (std::string name = chosen_tool(tool, options); !name.empty()) options.allowed_tools.push_back(std::move(name));
    });
  }
  if (options.allowed_tools.empty()) forget_tools(options);  // Only tools of OpenAI's servers are allowed.
}

void read_tool_choice(json::FieldReader& fields, ToolShape shape, ChatOptions& options, std::vector<std::string>* warnings) {
  const std::string_view forms =
      shape == ToolShape::flat
          ? R"(must be "auto", "none", "required", {"type": "function", "name": ...} or {"type": "allowed_tools", ...})"
          : R"(must be "auto", "none", "required", {"type": "function", "function": {"name": ...}})"
            R"( or {"type": "allowed_tools", ...})";
  const boost::json::value* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  const boost::json::object* object = choice->if_object();
  // Some clients put the word into an object, as Anthropic's API has it.
  constexpr std::array<std::string_view, 4> kWords = {"auto", "none", "required", "any"};
  if (const auto word = type_of_part(*choice); word && std::ranges::contains(kWords, *word)) {
    choice = object->if_contains("type");
    object = nullptr;
  }
  if (object != nullptr) {
    inside(fields, *object, "tool_choice.", [&](json::FieldReader& named) {
      if (named.text("type") == "allowed_tools") {
        const boost::json::object* allowed = named.object("allowed_tools");
        if (allowed == nullptr) return read_allowed_tools(named, options);
        return inside(named, *allowed, "tool_choice.allowed_tools.",
                      [&](json::FieldReader& inner) { read_allowed_tools(inner, options); });
      }
      options.tool_choice = ToolChoice::named;
      options.tool_name = chosen_tool(named, options);
      if (options.tool_name.empty()) fields.fail_field("tool_choice", forms);
    });
    return;
  }
  if (*choice == "none") {
    forget_tools(options);
  } else if (*choice == "required" || *choice == "any") {
    if (!options.tools.empty()) {
      options.tool_choice = ToolChoice::required;
    } else if (warnings != nullptr) {
      warnings->emplace_back(kNoToolsWarning);
    }
  } else if (*choice != "auto") {
    fields.fail_field("tool_choice", forms);
  }
}

constexpr std::string_view kTemplateName = "chat_template";
constexpr std::size_t kTemplateNameBytesMax = 64 << 10;  // A name for other servers may be the text of a template.

// Reads options for the template, its name, and those of thoughts. Names that umad sets itself have their own fields.
void read_template_arguments(json::FieldReader& fields, ChatOptions& options) {
  boost::json::object arguments = template_arguments_field(fields);
  if (const boost::json::array* documents = fields.array("documents")) arguments.emplace("documents", *documents);
  if (auto name = fields.text("chat_template", {0, kTemplateNameBytesMax}); name && !name->empty())
    arguments.emplace(kTemplateName, *std::move(name));
  if (const boost::json::value* name = arguments.if_contains(kTemplateName); name != nullptr && !name->is_string())
    fields.fail_field("chat_template", "must be the name of a template of the model");
  read_thinking(fields, arguments, options);
  if (!arguments.empty()) options.template_arguments = json_text(fields, "chat_template_kwargs", arguments);
}

// Whether the field is a negative number, which stands for none in other servers.
bool is_below_zero(json::FieldReader& fields, std::string_view name) {
  const boost::json::value* value = fields.find(name);
  return value != nullptr && value->is_number() && value->to_number<double>() < 0;
}

// The bias of one token: a number to add to its logit. False, and numbers up to -100, forbid the token.
float bias_value(json::FieldReader& fields, const boost::json::value& value) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  if (value.is_bool() && !value.get_bool()) return kForbidden;
  const double bias = fields.checked_number("logit_bias", value, {-std::numeric_limits<double>::max(), 100}).value_or(0);
  return bias <= -100 ? kForbidden : static_cast<float>(bias);
}

// Reads the token, or the text, that a bias is for.
void add_bias(json::FieldReader& fields, const boost::json::value& target, const boost::json::value& value,
              SamplingParams& sampling) {
  const float bias = bias_value(fields, value);
  if (const std::int64_t* id = target.if_int64(); id != nullptr && *id >= 0 && *id <= std::numeric_limits<Token>::max()) {
    sampling.logit_bias.emplace_back(static_cast<Token>(*id), bias);
  } else if (target.is_string()) {
    sampling.logit_bias_texts.emplace_back(fields.checked_text("logit_bias", target, {1, kLogitBiasTextBytesMax}).value_or(""),
                                           bias);
  } else {
    fields.fail_field("logit_bias", "must have token ids or texts, such as {\"15\": -100} or [[15, -100], [\"no\", -1]]");
  }
}

// Reads OpenAI's object {"15": -100}, or llama-server's list [[15, -100], ["no", false]]. A key that is no number is a text.
void read_logit_bias(json::FieldReader& fields, SamplingParams& sampling) {
  const boost::json::value* given = fields.find("logit_bias");
  if (given == nullptr) return;
  const boost::json::array* list = given->if_array();
  const boost::json::object* object = list == nullptr ? fields.object("logit_bias") : nullptr;
  const std::size_t count = list != nullptr ? list->size() : object != nullptr ? object->size() : 0;
  if (count > kLogitBiasMax) {
    return fields.fail_field("logit_bias", std::format("has {} tokens, but the limit is {}", count, kLogitBiasMax));
  }
  for (std::size_t i = 0; list != nullptr && i < count && fields.ok(); ++i) {
    const boost::json::array* pair = (*list)[i].if_array();
    if (pair == nullptr || pair->size() != 2) return fields.fail_field("logit_bias", "must have pairs such as [15, -100]");
    add_bias(fields, pair->front(), pair->back(), sampling);
  }
  if (object == nullptr) return;
  for (const auto& [key, value] : *object) {
    std::int64_t id = 0;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_number = problem == std::errc() && end == key.data() + key.size();
    add_bias(fields, is_number ? boost::json::value(id) : boost::json::value(key), value, sampling);
    if (!fields.ok()) return;
  }
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

constexpr std::string_view kAnyObject = R"({"type":"object"})";

// The places of a format's schema: beside the type, and in `json_schema`.
struct FormatPlaces {
  std::string_view beside;
  std::string_view nested;
  bool is_nested = false;  // Where a missing schema is missed.
};
constexpr FormatPlaces kResponseFormat{"response_format.schema", "response_format.json_schema.schema", true};
constexpr FormatPlaces kTextFormat{"text.format.schema", "text.format.json_schema.schema", false};

// A field's name and, for errors, its path. Empty: there is none.
struct ConstraintPlace {
  std::string_view name;
  std::string_view path;
};
struct ConstraintPlaces {
  ConstraintPlace schema{};
  ConstraintPlace choice{};
  ConstraintPlace regex{};
  ConstraintPlace grammar{};
};
constexpr ConstraintPlaces kGuided{.schema = {"guided_json", "guided_json"},
                                   .choice = {"guided_choice", "guided_choice"},
                                   .regex = {"guided_regex", "guided_regex"},
                                   .grammar = {"guided_grammar", "guided_grammar"}};
constexpr ConstraintPlaces kSGLang{.regex = {"regex", "regex"}, .grammar = {"ebnf", "ebnf"}};
constexpr ConstraintPlaces kStructured{.schema = {"json", "structured_outputs.json"},
                                       .choice = {"choice", "structured_outputs.choice"},
                                       .regex = {"regex", "structured_outputs.regex"},
                                       .grammar = {"grammar", "structured_outputs.grammar"}};

// Reads the constraints of a reply, of which there may be one.
class ConstraintsReader {
 public:
  ConstraintsReader(json::FieldReader& fields, GenerateOptions& options) : fields_(fields), options_(options) {}

  void read() {
    read_format(fields_, "response_format", "response_format.", kResponseFormat);
    if (const boost::json::object* text = fields_.object("text")) {
      inside(fields_, *text, "text.",
             [&](json::FieldReader& inner) { read_format(inner, "format", "text.format.", kTextFormat); });
    }
    if (const boost::json::object* schema = fields_.object("json_schema")) {
      set_schema(fields_, "json_schema", "json_schema", boost::json::serialize(*schema));
    }
    read_set(fields_, kGuided);
    read_set(fields_, kSGLang);
    if (const boost::json::object* object = fields_.object("structured_outputs")) {
      inside(fields_, *object, "structured_outputs.", [&](json::FieldReader& outputs) {
        read_set(outputs, kStructured);
        const bool is_object = outputs.boolean("json_object").value_or(false);
        if (is_object) set_schema(outputs, "json_object", "structured_outputs.json_object", std::string(kAnyObject));
      });
    }
  }

 private:
  void read_format(json::FieldReader& fields, std::string_view name, std::string path, const FormatPlaces& places) {
    const boost::json::object* object = fields.object(name);
    if (object == nullptr) return;
    inside(fields, *object, std::move(path), [&](json::FieldReader& format) {
      const std::string type = format.required_text("type");
      if (type == "text") return;
      if (type != "json_object" && type != "json_schema")
        return format.fail_field("type", R"(must be "text", "json_object" or "json_schema")");
      if (!check_alone(fields, name)) return;
      if (const boost::json::object* described = format.object("json_schema")) {
        return inside(format, *described, format.path() + "json_schema.",
                      [&](json::FieldReader& inner) { read_schema(inner, places.nested, true); });
      }
      const bool is_required = type == "json_schema";
      if (is_required && places.is_nested && format.find("schema") == nullptr)
        return format.fail_field("json_schema", "is required");
      read_schema(format, places.beside, is_required);
    });
  }

  void read_schema(json::FieldReader& described, std::string_view path, bool is_required) {
    (void)described.text("name");
    (void)described.boolean("strict");  // Always true for umad.
    const boost::json::object* schema = described.object("schema");
    if (described.ok() && schema == nullptr && is_required) return described.fail_field("schema", "is required");
    set_schema(described, "schema", path, schema == nullptr ? std::string(kAnyObject) : boost::json::serialize(*schema));
  }

  void read_set(json::FieldReader& fields, const ConstraintPlaces& places) {
    if (!places.schema.name.empty()) read_json(fields, places.schema);
    if (!places.choice.name.empty()) read_choice(fields, places.choice);
    if (const auto regex = fields.text(places.regex.name, {0, kGrammarBytesMax}); regex && !regex->empty()) {
      (void)check_alone(fields, places.regex.name);
      options_.pattern = *regex;
      options_.grammar_field = places.regex.path;
    }
    if (auto grammar = fields.text(places.grammar.name, {0, kGrammarBytesMax}); grammar && !grammar->empty())
      set_grammar(fields, places.grammar, std::move(*grammar));
  }

  // A schema, or its JSON as a text.
  void read_json(json::FieldReader& fields, const ConstraintPlace& place) {
    const boost::json::value* value = fields.find(place.name);
    if (value == nullptr) return;
    if (value->is_string()) return set_schema(fields, place.name, place.path, fields.text(place.name, {.min = 1}).value_or(""));
    if (!value->is_object()) return fields.fail_field(place.name, "must be a JSON Schema: an object, or its JSON in a string");
    set_schema(fields, place.name, place.path, boost::json::serialize(value->get_object()));
  }

  // The grammar of one of these texts. A literal of GBNF has the escapes of a JSON string.
  void read_choice(json::FieldReader& fields, const ConstraintPlace& place) {
    const boost::json::array* texts = fields.array(place.name);
    if (texts == nullptr) return;
    if (texts->empty()) return fields.fail_field(place.name, "must have at least one text");
    std::string grammar = "root ::= ";
    for (const boost::json::value& each : *texts) {
      const auto text = fields.checked_text(place.name, each, {.min = 1});
      if (!text) return;
      if (&each != &texts->front()) grammar += " | ";
      json::append_string(grammar, *text);
      if (grammar.size() > kGrammarBytesMax)
        return fields.fail_field(place.name, std::format("has more than {} bytes", kGrammarBytesMax));
    }
    set_grammar(fields, place, std::move(grammar));
  }

  void set_schema(json::FieldReader& fields, std::string_view name, std::string_view path, std::string schema) {
    (void)check_alone(fields, name);
    options_.json_schema = std::move(schema);
    options_.schema_field = path;
  }

  void set_grammar(json::FieldReader& fields, const ConstraintPlace& place, std::string grammar) {
    (void)check_alone(fields, place.name);
    options_.grammar = std::move(grammar);
    options_.grammar_field = place.path;
  }

  // False, and a failure of `fields`: there is a constraint already.
  [[nodiscard]] bool check_alone(json::FieldReader& fields, std::string_view name) const {
    const bool has_grammar = !options_.grammar.empty() || !options_.pattern.empty();
    if (options_.json_schema.empty() && !has_grammar) return true;
    const std::string_view other = has_grammar ? options_.grammar_field : options_.schema_field;
    fields.fail_field(name, std::format("and \"{}\" exclude each other: leave one of the two out", other));
    return false;
  }

  json::FieldReader& fields_;
  GenerateOptions& options_;
};

}  // namespace

std::string name_field(json::FieldReader& fields) {
  constexpr json::TextBytes kNameBytes{1, 128};
  constexpr std::string_view kMarks = "<>[](){}\"'=`,;\\";  // They end a name in the notations of calls.
  std::string name = fields.required_text("name", kNameBytes);
  const auto is_bad = [&](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f' || kMarks.contains(c); };
  if (std::ranges::any_of(name, is_bad) || name.starts_with(' ') || name.ends_with(' ')) {
    fields.fail_field("name", std::format("may contain letters, digits, blanks inside, and signs other than {}", kMarks));
  }
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

boost::json::object template_arguments_field(json::FieldReader& fields) {
  constexpr std::array<std::string_view, 5> kOurs = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"};
  const boost::json::object* given = fields.object("chat_template_kwargs");
  boost::json::object arguments = given == nullptr ? boost::json::object() : *given;
  for (const std::string_view name : kOurs) {
    if (arguments.contains(name))
      fields.fail_field(std::format("chat_template_kwargs.{}", name), "cannot be set here: umad sets it itself");
  }
  return arguments;
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
  message.extra = extra_fields(fields, message.role, 0);
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

ChatOptions chat_options(json::FieldReader& fields, ToolShape shape, std::vector<std::string>* warnings) {
  ChatOptions options;
  read_tools(fields, shape, options);
  read_tool_choice(fields, shape, options, warnings);
  options.has_parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  read_template_arguments(fields, options);
  return options;
}

std::optional<std::vector<Token>> token_ids(const boost::json::array& ids) {
  std::vector<Token> tokens;
  for (const boost::json::value& id : ids) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > std::numeric_limits<Token>::max()) return std::nullopt;
    tokens.push_back(static_cast<Token>(id.get_int64()));
  }
  return tokens;
}

std::vector<std::string> stop_field(json::FieldReader& fields, std::string_view name) {
  std::vector<std::string> stop;
  const boost::json::value* value = fields.find(name);
  if (value == nullptr) return stop;
  // An empty string would stop every reply at once; clients send it for "none".
  const auto add = [&](const boost::json::value& text) {
    if (text.is_null()) return;
    if (auto given = fields.checked_text(name, text, {0, kStopBytesMax}); given && !given->empty()) stop.push_back(*given);
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

std::optional<std::uint64_t> seed_field(json::FieldReader& fields) {
  return is_below_zero(fields, "seed") ? std::nullopt : fields.unsigned_integer("seed");
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
  sampling.seed = seed_field(fields);
  read_logit_bias(fields, sampling);
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
  // The name of other servers, where it counts the whole text.
  if (const auto penalty = fields.number("repetition_penalty", {info_of(repeat_penalty).low, info_of(repeat_penalty).high,
                                                                info_of(repeat_penalty).low_excluded})) {
    set_value(sampling, repeat_penalty, *penalty);
    set_given(sampling, repeat_penalty);
    if (!is_given(sampling, repeat_last_n)) {
      set_value(sampling, repeat_last_n, -1);
      set_given(sampling, repeat_last_n);
    }
  }
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
  if (is_below_zero(fields, name)) return std::nullopt;
  const auto count = fields.integer(name, 0, std::numeric_limits<std::int64_t>::max());
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

std::optional<bool> parse_special_field(json::FieldReader& fields) {
  constexpr std::string_view kName = "parse_special";
  auto parses = fields.boolean(kName);
  const boost::json::value* uma = fields.find("uma");
  if (uma == nullptr || !uma->is_object()) return parses;  // The reader of "uma" checks its type.
  json::FieldReader own(uma->get_object(), "uma.");
  if (const auto under = own.boolean(kName)) {
    if (parses) fields.fail_field(kName, "is given twice: leave one out");
    parses = under;
  }
  if (!own.ok()) fields.fail_as(own);
  return parses;
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

void read_constraints(json::FieldReader& fields, GenerateOptions& options) {
  ConstraintsReader(fields, options).read();
}

boost::json::object stated_format(json::FieldReader& fields) {
  const boost::json::object* text = fields.object("text");
  const boost::json::value* stated = text == nullptr ? nullptr : text->if_contains("format");
  const boost::json::object* format =
      stated == nullptr || !stated->is_object() ? fields.object("response_format") : &stated->get_object();
  if (format == nullptr) return {};
  boost::json::object flat = *format;
  if (const boost::json::value* described = flat.if_contains("json_schema"); described != nullptr && described->is_object()) {
    const boost::json::object inner = described->get_object();
    flat.erase("json_schema");
    for (const auto& [name, value] : inner) flat.insert_or_assign(name, value);
  }
  return flat;
}

}  // namespace uma::wire
