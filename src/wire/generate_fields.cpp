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

#include "wire/request_codec.h"

namespace uma::wire {
namespace {

namespace json = boost::json;

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

// OpenAI's two forms of a message's content: a string, or an array of {type: "text", text}.
std::string content_field(FieldReader& message) {
  const json::value* content = message.find("content");
  if (content == nullptr || !content->is_array()) return message.required_text("content");
  std::string text;
  for (const json::value& part : content->get_array()) {
    const json::object* object = part.if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    const json::value* part_text = object == nullptr ? nullptr : object->if_contains("text");
    if (type == nullptr || *type != "text" || part_text == nullptr) {
      message.fail_field("content",
                         R"(must be a string or an array of {"type": "text", "text": ...}: this version reads only text)");
      return "";
    }
    text += message.checked_text("content", *part_text, {}).value_or("");
  }
  return text;
}

std::string role_field(FieldReader& message) {
  std::string role = message.required_text("role");
  if (role == "developer") return "system";  // the newer name of the same role
  constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  if (std::ranges::find(kRoles, role) == kRoles.end()) {
    message.fail_field("role", R"(must be "system", "user", "assistant", "tool" or "developer")");
  }
  return role;
}

// The bias of one token: a number that is added to its logit, where false, and -100 and less, forbid the token.
float bias_value(FieldReader& fields, const json::value& value) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  if (value.is_bool() && !value.get_bool()) return kForbidden;
  const double bias = fields.checked_number("logit_bias", value, {-std::numeric_limits<double>::max(), 100}).value_or(0);
  return bias <= -100 ? kForbidden : static_cast<float>(bias);
}

std::vector<std::pair<Token, float>> logit_bias_field(FieldReader& fields) {
  std::vector<std::pair<Token, float>> biases;
  const json::object* object = fields.object("logit_bias");
  if (object == nullptr) return biases;
  for (const auto& [key, value] : *object) {
    Token token = kNoToken;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (problem != std::errc() || end != key.data() + key.size() || token < 0) {
      fields.fail_field("logit_bias", "must have token ids as its names, such as {\"15\": -100}");
      break;
    }
    biases.emplace_back(token, bias_value(fields, value));
    if (!fields.ok()) break;
  }
  return biases;
}

RequestClass class_field(FieldReader& fields) {
  const std::string name = fields.text("class").value_or("interactive");
  if (name == "background") return RequestClass::background;
  if (name != "interactive") fields.fail_field("class", R"(must be "interactive" or "background")");
  return RequestClass::interactive;
}

}  // namespace

std::vector<ChatMessage> messages_field(FieldReader& fields) {
  std::vector<ChatMessage> messages;
  const json::array* array = fields.array("messages");
  if (array == nullptr) return messages;
  if (array->empty()) fields.fail_field("messages", "must hold at least one message");
  for (std::size_t i = 0; i < array->size() && fields.ok(); ++i) {
    const json::object* object = (*array)[i].if_object();
    if (object == nullptr) {
      fields.fail_field(std::format("messages[{}]", i), "must be an object");
      break;
    }
    FieldReader message(*object, std::format("messages[{}].", i));
    std::string role = role_field(message);
    std::string content = content_field(message);
    if (!message.ok()) fields.fail_as(message);
    messages.push_back({std::move(role), std::move(content)});
  }
  return messages;
}

std::vector<std::string> stop_field(FieldReader& fields) {
  std::vector<std::string> stop;
  const json::value* value = fields.find("stop");
  if (value == nullptr) return stop;
  const auto add = [&](const json::value& text) {
    stop.push_back(fields.checked_text("stop", text, {1, kStopBytesMax}).value_or(""));
  };
  if (!value->is_array()) {
    add(*value);
    return stop;
  }
  if (value->get_array().size() > kStopStringsMax) {
    fields.fail_field("stop",
                      std::format("holds {} strings, at most {} are accepted", value->get_array().size(), kStopStringsMax));
    return stop;
  }
  for (const json::value& text : value->get_array()) add(text);
  return stop;
}

void read_common_sampling(FieldReader& fields, SamplingParams& sampling) {
  sampling.temperature = fields.number("temperature", {0, kTemperatureMax}).value_or(sampling.temperature);
  // 0 keeps the one most likely token, as it does for OpenAI's clients.
  sampling.top_p = std::max(fields.number("top_p", {0, 1}).value_or(sampling.top_p), std::numeric_limits<double>::min());
  sampling.presence_penalty = fields.number("presence_penalty", {-2, 2}).value_or(sampling.presence_penalty);
  sampling.frequency_penalty = fields.number("frequency_penalty", {-2, 2}).value_or(sampling.frequency_penalty);
  sampling.seed = fields.unsigned_integer("seed");
  sampling.logit_bias = logit_bias_field(fields);
}

void read_own_sampling(FieldReader& fields, SamplingParams& sampling) {
  sampling.top_k = static_cast<int>(fields.integer("top_k", 0, kInt32Max).value_or(sampling.top_k));
  sampling.min_p = fields.number("min_p", {.low = 0, .high = 1, .high_excluded = true}).value_or(sampling.min_p);
  sampling.repeat_penalty = fields.number("repeat_penalty", {.low = 0, .high = kRepeatPenaltyMax, .low_excluded = true})
                                .value_or(sampling.repeat_penalty);
  sampling.ignore_eos = fields.boolean("ignore_eos").value_or(false);
}

void read_scheduling(FieldReader& fields, GenerateOptions& options) {
  options.request_class = class_field(fields);
  options.deadline_ms = fields.integer("deadline_ms", 0, kTimeMsMax);
  options.timeout_ms = fields.integer("timeout_ms", 0, kTimeMsMax).value_or(0);
  constexpr double kTargetMax = static_cast<double>(kTargetMsMax);
  options.target_ttft_ms = fields.number("target_ttft_ms", {0, kTargetMax}).value_or(0);
  options.target_tbt_ms = fields.number("target_tbt_ms", {0, kTargetMax}).value_or(0);
}

std::optional<std::int32_t> max_tokens_field(FieldReader& fields, std::string_view name) {
  const auto count = fields.integer(name, 1, std::numeric_limits<std::int64_t>::max());
  if (!count) return std::nullopt;
  return static_cast<std::int32_t>(std::min(*count, kInt32Max));
}

void read_grammar(FieldReader& fields, GenerateOptions& options) {
  std::string grammar = fields.text("grammar", {0, kGrammarBytesMax}).value_or("");
  if (grammar.empty()) return;
  if (!options.grammar.empty()) fields.fail_field("grammar", "is there twice: leave one out");
  options.grammar = std::move(grammar);
}

void read_response_format(FieldReader& fields, GenerateOptions& options) {
  const json::object* object = fields.object("response_format");
  if (object == nullptr) return;
  FieldReader format(*object, "response_format.");
  const std::string type = format.required_text("type");
  if (type == "json_object") {
    options.json_schema = R"({"type":"object"})";
  } else if (type == "json_schema") {
    if (format.find("json_schema") == nullptr) format.fail_field("json_schema", "is required");
    if (const json::object* described = format.object("json_schema")) {
      FieldReader inner(*described, "response_format.json_schema.");
      (void)inner.text("name");
      (void)inner.boolean("strict");  // it always is
      const json::object* schema = inner.object("schema");
      if (inner.ok() && schema == nullptr) inner.fail_field("schema", "is required");
      if (schema != nullptr) options.json_schema = json::serialize(*schema);
      if (!inner.ok()) format.fail_as(inner);
    }
  } else if (type != "text") {
    format.fail_field("type", R"(must be "text", "json_object" or "json_schema")");
  }
  if (!format.ok()) return fields.fail_as(format);
  if (!options.json_schema.empty() && !options.grammar.empty()) {
    fields.fail_field("response_format", "and a grammar exclude each other");
  }
}

void refuse_unserved_options(FieldReader& fields) {
  if (const json::array* tools = fields.array("tools"); tools != nullptr && !tools->empty()) {
    fields.fail_field("tools", "is not served by this version: leave it out");
  }
}

}  // namespace uma::wire
