#include "wire/ollama/ollama_decoder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <format>
#include <limits>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include "base/read_number.h"
#include "json/field_reader.h"
#include "json/json_writer.h"
#include "wire/generate_fields.h"
#include "wire/openai/history_fields.h"
#include "wire/own/request_codec.h"
#include "wire/request_fields.h"

namespace uma::wire {
namespace {

// Calls read(inner, index) for every object of the array `name`. A failure inside becomes a failure of `fields`.
template <class ReadT>
void for_each_object(json::FieldReader& fields, const boost::json::array& array, std::string_view name, ReadT&& read) {
  for (std::size_t i = 0; i < array.size() && fields.ok(); ++i) {
    const std::string place = std::format("{}[{}]", name, i);
    const boost::json::object* object = array[i].if_object();
    if (object == nullptr) return fields.fail_field(place, "must be an object");
    json::FieldReader inner(*object, fields.path() + place + ".");
    read(inner, i);
    if (!inner.ok()) fields.fail_as(inner);
  }
}

// The model's name: `model`, or `name` as in older versions of the API.
std::string ollama_model(json::FieldReader& fields) {
  constexpr json::TextBytes kBytes{0, kModelBytesMax};
  auto model = fields.text("model", kBytes);
  if (!model || model->empty()) model = fields.text("name", kBytes);
  return std::move(model).value_or("");
}

// --- messages

// Reads the messages of a conversation. Calls of tools may have no ids there: they get some, and a result without an id belongs
// to the first call without a result that has its name.
class OllamaMessages {
 public:
  explicit OllamaMessages(Input& input) : input_(input) {}

  void read(json::FieldReader& fields) {
    const boost::json::array* messages = fields.array("messages");
    if (messages == nullptr) return;
    for_each_object(fields, *messages, "messages",
                    [&](json::FieldReader& message, std::size_t index) { read_message(message, index); });
    if (input_.images.size() > kImagesPerRequestMax) {
      fields.fail_field("messages",
                        std::format("have {} images, but the limit is {}", input_.images.size(), kImagesPerRequestMax));
    }
  }

  // Reads the images of a message; they precede its text.
  void read_images(json::FieldReader& message, std::size_t index) {
    const boost::json::array* images = message.array("images");
    for (std::size_t i = 0; images != nullptr && i < images->size() && message.ok(); ++i) {
      const std::string name = std::format("images[{}]", i);
      auto data = message.checked_text(name, (*images)[i], {.min = 1});
      if (!data) break;
      input_.images.push_back({.message = index,
                               .at = 0,
                               .source = {.kind = ImageSource::Kind::data, .text = *std::move(data)},
                               .field = message.path() + name});
    }
  }

 private:
  struct OpenCall {
    std::string id;
    std::string name;
  };

  void read_message(json::FieldReader& fields, std::size_t index) {
    ChatMessage& message = input_.messages.emplace_back();
    message.role = fields.required_text("role");
    if (message.role == "developer") message.role = "system";
    const boost::json::value* content = fields.find("content");
    const bool is_json = message.role == "tool" && content != nullptr && !content->is_string();
    message.content = is_json ? json_text(fields, "content", *content) : fields.text("content").value_or("");
    if (message.role == "assistant") {
      message.extra = assistant_fields(fields);
    } else if (message.role == "tool") {
      message.extra = result_fields(fields);
    } else if (message.role != "system" && message.role != "user") {
      fields.fail_field("role", R"(must be "system", "user", "assistant" or "tool")");
    }
    const boost::json::array* images = fields.array("images");
    if (images == nullptr || images->empty()) return;
    if (message.role == "assistant") {
      for (std::size_t i = 0; i < images->size(); ++i) message.content += kImageOfReply;
      return;
    }
    if (message.role != "user" && message.role != "tool") {
      return fields.fail_field("images", "may only be in messages of the user, of the assistant and of tools");
    }
    read_images(fields, index);
  }

  std::string assistant_fields(json::FieldReader& message) {
    std::string extra;
    json::ObjectWriter object(extra);
    if (const std::string reasoning = reasoning_of_message(message); !reasoning.empty()) {
      object.field("reasoning_content", reasoning);
    }
    const boost::json::array* calls = message.array("tool_calls");
    if (calls != nullptr && !calls->empty()) {
      if (calls->size() > kCallsMax) message.fail_field("tool_calls", std::format("has more than {} calls", kCallsMax));
      std::string& out = object.begin("tool_calls");
      out += '[';
      for_each_object(message, *calls, "tool_calls", [&](json::FieldReader& call, std::size_t i) {
        if (i > 0) out += ',';
        append_call(out, call);
      });
      out += ']';
    }
    object.close();
    return extra == "{}" ? "" : extra;
  }

  // Appends a call in OpenAI's form, where arguments are JSON in a string.
  void append_call(std::string& out, json::FieldReader& call) {
    OpenCall made{.id = given_id(call, "id"), .name = ""};
    // Nine letters and digits, because the templates of some models take no other ids.
    if (made.id.empty()) made.id = std::format("call{:05}", calls_);
    ++calls_;
    const boost::json::object* function = call.object("function");
    const boost::json::object none;
    json::FieldReader nested(function == nullptr ? none : *function, call.path() + "function.");
    json::FieldReader& inner = function == nullptr ? call : nested;
    made.name = called_name(inner);
    json::ObjectWriter object(out);
    object.field("id", made.id);
    object.field("type", "function");
    json::ObjectWriter described(object.begin("function"));
    described.field("name", made.name);
    described.field("arguments", called_arguments(inner));
    described.close();
    object.close();
    if (!nested.ok()) call.fail_as(nested);
    open_.push_back(std::move(made));
    if (open_.size() > kOpenMax) open_.pop_front();
  }

  std::string result_fields(json::FieldReader& message) {
    std::string id = given_id(message, "tool_call_id");
    std::string name = message.text("tool_name", json::TextBytes{0, kCalledNameBytes.max}).value_or("");
    const auto call = std::ranges::find_if(
        open_, [&](const OpenCall& open) { return id.empty() ? name.empty() || open.name == name : open.id == id; });
    if (call != open_.end()) {
      if (id.empty()) id = call->id;
      if (name.empty()) name = call->name;
      open_.erase(call);
    }
    std::string extra;
    json::ObjectWriter object(extra);
    if (!id.empty()) object.field("tool_call_id", id);
    if (!name.empty()) object.field("name", name);
    object.close();
    return extra == "{}" ? "" : extra;
  }

  Input& input_;
  static constexpr std::size_t kOpenMax = 256;  // Each result searches them.

  std::deque<OpenCall> open_;  // The last calls without a result, in order.
  std::size_t calls_ = 0;
};

// --- the prompt of /api/generate

void read_prompt(json::FieldReader& fields, OllamaCall& call) {
  std::string prompt = fields.text("prompt").value_or("");
  std::string system = fields.text("system").value_or("");
  const boost::json::array* images = fields.array("images");
  const bool has_images = images != nullptr && !images->empty();
  const bool is_raw = fields.boolean("raw").value_or(false);
  const std::optional<bool> parses = parse_special_field(fields);
  std::string suffix = fields.text("suffix").value_or("");
  Input& input = call.generate.input;
  call.is_empty = prompt.empty() && suffix.empty() && !has_images;
  if (!suffix.empty()) {
    // The texts around a gap are no conversation.
    if (has_images) fields.fail_field("images", "cannot be used with \"suffix\"");
    if (!system.empty()) fields.fail_field("system", "cannot be used with \"suffix\"");
    input.text = std::move(prompt);
    input.infill = Infill{.suffix = std::move(suffix)};
    input.parses_special = parses.value_or(false);
    return;
  }
  if (is_raw) {
    if (has_images) fields.fail_field("images", "cannot be used with \"raw\": true");
    input.text = std::move(prompt);
    input.parses_special = parses.value_or(true);
    return;
  }
  input.parses_special = parses.value_or(true);  // See write_as_text().
  if (!system.empty()) input.messages.push_back({.role = "system", .content = std::move(system)});
  input.messages.push_back({.role = "user", .content = std::move(prompt)});
  OllamaMessages(input).read_images(fields, input.messages.size() - 1);
  if (input.images.size() > kImagesPerRequestMax) {
    fields.fail_field("images", std::format("has {} images, but the limit is {}", input.images.size(), kImagesPerRequestMax));
  }
}

// --- options

void read_ollama_options(json::FieldReader& options, OllamaCall& call) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  SamplingParams& sampling = call.generate.options.sampling;
  using enum SamplingField;
  read_sampling_fields(options, std::array{temperature, top_p, presence_penalty, frequency_penalty}, sampling);
  read_own_sampling(options, sampling, NegativeTopK::off);
  sampling.seed = seed_field(options);
  // -1 and -2 mean: until the end, or until the window is full.
  if (const auto count = options.integer("num_predict", kMin, kMax); count && *count > 0) {
    call.generate.options.max_tokens = static_cast<std::int32_t>(std::min(*count, json::kInt32Max));
  }
  call.context_wanted = options.integer("num_ctx", kMin, kMax).value_or(0);
  call.generate.options.stop = stop_field(options);
}

void read_ollama_format(json::FieldReader& fields, GenerateOptions& options) {
  read_strict_schema(fields, options);
  options.schema_field = "format";
  const boost::json::value* format = fields.find("format");
  if (format == nullptr || *format == "") return;
  if (*format == "json") {
    options.json_schema = R"({"type":"object"})";
  } else if (format->is_object()) {
    options.json_schema = json_text(fields, "format", *format);
  } else {
    fields.fail_field("format", R"(must be "json" or a JSON Schema)");
  }
}

// Reads the tools and `think`, whose meanings are those of OpenAI's fields.
ChatOptions ollama_chat_options(OllamaKind kind, json::FieldReader& fields, std::vector<std::string>& warnings) {
  boost::json::object chat;
  if (kind == OllamaKind::chat) {
    for (const std::string_view name : {"tools", "tool_choice", "parallel_tool_calls"}) {
      if (const boost::json::value* value = fields.find(name)) chat[name] = *value;
    }
  }
  if (const boost::json::value* think = fields.find("think"); think != nullptr && *think != "") {
    if (think->is_string()) {
      chat["reasoning_effort"] = *think;
    } else if (!think->is_bool()) {
      fields.fail_field("think", R"(must be true, false, or a level such as "low", "medium" or "high")");
    } else if (!think->get_bool()) {
      chat["reasoning_effort"] = "none";
    }
    if (*think != false && *think != "none") chat["chat_template_kwargs"] = boost::json::object{{"enable_thinking", true}};
  }
  json::FieldReader inner(chat);
  ChatOptions options = chat_options(inner, ToolShape::nested, &warnings);
  if (!inner.ok()) fields.fail_as(inner);
  options.splits_reasoning = true;
  return options;
}

std::optional<double> keep_alive_field(json::FieldReader& fields) {
  const boost::json::value* value = fields.find("keep_alive");
  if (value == nullptr) return std::nullopt;
  std::optional<double> seconds;
  if (value->is_number()) {
    seconds = value->to_number<double>();
  } else if (value->is_string()) {
    const boost::json::string& text = value->get_string();
    seconds = parse_go_duration({text.data(), text.size()});
  }
  if (!seconds) fields.fail_field("keep_alive", R"(must be a number of seconds or a duration such as "5m"; -1: for ever)");
  return seconds;
}

std::optional<std::int32_t> ollama_logprobs(json::FieldReader& fields) {
  const bool is_wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kTopLogprobsMax).value_or(0);
  return is_wanted ? std::optional(static_cast<std::int32_t>(top)) : std::nullopt;
}

// Reads "options", and those that some clients write beside it.
void read_all_options(json::FieldReader& fields, OllamaCall& call) {
  constexpr std::array<std::string_view, 13> kNames = {"temperature",   "top_k",     "top_p",
                                                       "min_p",         "typical_p", "repeat_penalty",
                                                       "repeat_last_n", "seed",      "presence_penalty",
                                                       "num_predict",   "num_ctx",   "frequency_penalty",
                                                       "stop"};
  boost::json::object all;
  for (const std::string_view name : kNames) {
    if (const boost::json::value* value = fields.find(name)) all[name] = *value;
  }
  if (!all.empty()) {
    OllamaCall checked;  // So that an error names the field where it stands.
    json::FieldReader beside(all);
    read_ollama_options(beside, checked);
    if (!beside.ok()) return fields.fail_as(beside);
  }
  if (const boost::json::object* options = fields.object("options")) {
    for (const auto& [name, value] : *options) all[name] = value;
  }
  json::FieldReader inner(all, "options.");
  read_ollama_options(inner, call);
  if (!inner.ok()) fields.fail_as(inner);
}

OllamaCall read_ollama(OllamaKind kind, json::FieldReader& fields) {
  OllamaCall call;
  GenerateRequest& generate = call.generate;
  generate.model = ollama_model(fields);
  if (kind == OllamaKind::chat) {
    OllamaMessages(generate.input).read(fields);
    call.is_empty = generate.input.messages.empty();
  } else {
    read_prompt(fields, call);
  }
  GenerateOptions& options = generate.options;
  // Ollama's defaults, except for the repeat penalty: 1.1 there, which harms code and tool calls.
  options.sampling.temperature = 0.8;
  options.sampling.top_k = 40;
  options.sampling.top_p = 0.9;
  read_all_options(fields, call);
  options.chat = ollama_chat_options(kind, fields, call.warnings);
  if (kind == OllamaKind::chat) read_continuation(fields, generate.input.messages, options.chat);
  read_ollama_format(fields, options);
  options.stream = fields.boolean("stream").value_or(true);
  options.logprobs = ollama_logprobs(fields);
  call.keep_alive_s = keep_alive_field(fields);
  return call;
}

// --- embeddings

OllamaEmbedCall read_ollama_embed(json::FieldReader& fields) {
  OllamaEmbedCall call;
  EmbedRequest& embed = call.embed;
  embed.options.model = ollama_model(fields);
  const boost::json::value* input = fields.find("input");
  const boost::json::array* texts = input == nullptr ? nullptr : input->if_array();
  if (texts != nullptr && texts->size() > kEmbedInputsMax) {
    fields.fail_field("input", std::format("has {} texts, but the limit is {}", texts->size(), kEmbedInputsMax));
  }
  for (std::size_t i = 0; texts != nullptr && i < texts->size() && fields.ok(); ++i) {
    embed.inputs.emplace_back(fields.checked_text(std::format("input[{}]", i), (*texts)[i], {.min = 1}).value_or(""));
  }
  if (texts == nullptr) {
    if (auto text = fields.text("input"); text && !text->empty()) embed.inputs.emplace_back(*std::move(text));
  }
  call.is_empty = embed.inputs.empty();
  const bool truncates = fields.boolean("truncate").value_or(true);
  embed.options.long_input = truncates ? LongInput::truncate : LongInput::refuse;
  embed.dimensions = static_cast<std::int32_t>(fields.integer("dimensions", 0, json::kInt32Max).value_or(0));
  return call;
}

}  // namespace

void write_as_text(Input& input) {
  for (const ChatMessage& message : std::exchange(input.messages, {})) {
    input.text += std::format("{}{}", input.text.empty() ? "" : "\n\n", message.content);
  }
}

std::expected<OllamaCall, RejectedBody> decode_ollama(OllamaKind kind, std::string_view body) {
  const RequestRoute route = kind == OllamaKind::chat ? RequestRoute::ollama_chat : RequestRoute::ollama_generate;
  return decode_request<OllamaCall>(route, body, [&](json::FieldReader& fields) { return read_ollama(kind, fields); });
}

std::expected<OllamaEmbedCall, RejectedBody> decode_ollama_embed(std::string_view body) {
  return decode_request<OllamaEmbedCall>(RequestRoute::ollama_embed, body, read_ollama_embed);
}

std::expected<OllamaEmbedCall, RejectedBody> decode_ollama_embeddings(std::string_view body) {
  return decode_request<OllamaEmbedCall>(RequestRoute::ollama_embeddings, body, [](json::FieldReader& fields) {
    OllamaEmbedCall call;
    call.embed.options.model = ollama_model(fields);
    call.embed.options.long_input = LongInput::truncate;
    std::string prompt = fields.text("prompt").value_or("");
    call.is_empty = prompt.empty();
    if (!prompt.empty()) call.embed.inputs.emplace_back(std::move(prompt));
    return call;
  });
}

std::expected<std::string, RejectedBody> decode_ollama_show(std::string_view body) {
  return decode_body<std::string>(body, ollama_model);
}

std::optional<double> parse_go_duration(std::string_view text) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1},
                                                                   {"m", 60},    {"h", 3600},  {"", 1}};
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty()) return std::nullopt;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || c == '.'; };
  double seconds = 0;
  while (!text.empty()) {
    double value = 0;
    // It may have no exponent.
    const auto after = std::ranges::find_if_not(text, is_digit);
    const std::string_view digits = text.substr(0, static_cast<std::size_t>(after - text.begin()));
    const auto [end, problem] = read_number(digits.data(), digits.data() + digits.size(), value);
    if (problem != std::errc()) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    const auto next = std::ranges::find_if(text, is_digit);
    const std::string_view unit = text.substr(0, static_cast<std::size_t>(next - text.begin()));
    const auto known = std::ranges::find(kUnits, unit, &std::pair<std::string_view, double>::first);
    if (known == std::end(kUnits)) return std::nullopt;
    seconds += value * known->second;
    text.remove_prefix(unit.size());
  }
  return is_negative ? -seconds : seconds;
}

}  // namespace uma::wire
