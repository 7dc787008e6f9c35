#include "wire/openai/openai_codec.h"

#include <algorithm>
#include <array>
#include <format>
#include <limits>
#include <optional>
#include <utility>

#include <boost/json/value.hpp>

#include "json/field_reader.h"
#include "json/json_writer.h"
#include "wire/agent_fields.h"
#include "wire/generate_fields.h"
#include "wire/ollama/ollama_encoder.h"
#include "wire/openai/history_fields.h"
#include "wire/own/cache_diagnostics.h"
#include "wire/own/event_codec.h"
#include "wire/own/request_codec.h"
#include "wire/request_fields.h"

namespace uma::wire {
namespace {

// --- requests

// Reads a string, an array of token ids, or an array of either; and the text behind the gap after these texts.
std::vector<Input> prompts_field(json::FieldReader& fields) {
  std::vector<Input> prompts;
  const std::string suffix = fields.text("suffix").value_or("");
  const auto add = [&](const boost::json::value& prompt) {
    Input& input = prompts.emplace_back();
    if (prompt.is_string()) {
      input.text = fields.checked_text("prompt", prompt, {.min = suffix.empty() ? 1U : 0U}).value_or("");
      if (!suffix.empty()) input.infill = Infill{.suffix = suffix};
    } else if (auto tokens = prompt.is_array() ? token_ids(prompt.get_array()) : std::nullopt; tokens && !tokens->empty()) {
      input.tokens = std::move(*tokens);
      if (!suffix.empty()) fields.fail_field("suffix", "requires text prompts");
    } else {
      fields.fail_field("prompt", "must be a string or an array of token ids, or an array of those, none of them empty");
    }
  };
  const boost::json::value* prompt = fields.find("prompt");
  if (prompt == nullptr) {
    fields.fail_field("prompt", "is required");
  } else if (!prompt->is_array() || prompt->get_array().empty() || prompt->get_array().front().is_number()) {
    add(*prompt);
  } else if (prompt->get_array().size() > kAnswerChoicesMax) {
    fields.fail_field("prompt",
                      std::format("has {} prompts, but the limit is {}", prompt->get_array().size(), kAnswerChoicesMax));
  } else if (prompt->get_array().size() > 1 && !suffix.empty()) {
    fields.fail_field("suffix", "requires a single prompt");
  } else {
    for (const boost::json::value& one : prompt->get_array()) add(one);
  }
  return prompts;
}

// Reads n and checks the total number of choices.
void read_counts(json::FieldReader& fields, CompletionRequest& request) {
  const std::int64_t n = fields.integer("n", 1, kChoicesMax).value_or(1);
  request.n = static_cast<std::size_t>(n);
  if (request.n * request.prompts.size() > kAnswerChoicesMax) {
    fields.fail_field("n", std::format("gives {} choices for {} prompts, but the limit is {} choices",
                                       request.n * request.prompts.size(), request.prompts.size(), kAnswerChoicesMax));
  }
  if (fields.integer("best_of", 1, kAnswerChoicesMax).value_or(n) != n) {
    fields.fail_field("best_of", "must be equal to n: every choice is returned");
  }
}

// The number of alternatives to return with each token; nullopt: no logprobs.
std::optional<std::int32_t> logprobs_field(CompletionKind kind, json::FieldReader& fields) {
  if (kind == CompletionKind::text) {
    const auto top = fields.integer("logprobs", 0, kTextTopLogprobsMax);
    return top ? std::optional(static_cast<std::int32_t>(*top)) : std::nullopt;
  }
  const bool is_wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kTopLogprobsMax);
  if (top.value_or(0) > 0 && !is_wanted) fields.fail_field("top_logprobs", "needs \"logprobs\": true");
  return is_wanted ? std::optional(static_cast<std::int32_t>(top.value_or(0))) : std::nullopt;
}

// Whether the text should begin with its prompt, or with what the prompt has of the reply. Log probabilities are then also
// those of the prompt.
bool echo_field(json::FieldReader& fields, CompletionRequest& request) {
  if (!fields.boolean("echo").value_or(false)) return false;
  GenerateOptions& options = request.generate.options;
  if (request.prompts.front().infill && options.logprobs) fields.fail_field("echo", "with \"logprobs\" excludes \"suffix\"");
  if (!request.prompts.front().messages.empty()) {
    if (!options.chat.continues_reply)
      fields.fail_field("echo", "requires a last message of the assistant, which is continued");
    if (options.logprobs) fields.fail_field("echo", "excludes \"logprobs\" in a chat");
    return true;
  }
  if (!options.logprobs) return true;
  if (options.stream) fields.fail_field("echo", "with \"logprobs\" cannot be streamed: leave \"stream\" out");
  options.prompt_logprobs = true;
  return true;
}

// llama-server's field: "none" leaves the reasoning in the text.
bool splits_reasoning_field(json::FieldReader& fields) {
  constexpr std::array<std::string_view, 4> kSplit = {"", "auto", "deepseek", "deepseek-legacy"};
  const std::string format = fields.text("reasoning_format").value_or("");
  if (std::ranges::contains(kSplit, format)) return true;
  if (format != "none") fields.fail_field("reasoning_format", R"(must be "none", "auto" or "deepseek")");
  return false;
}

bool include_usage_field(json::FieldReader& fields) {
  const boost::json::object* options = fields.object("stream_options");
  if (options == nullptr) return false;
  json::FieldReader inner(*options, "stream_options.");
  const bool includes = inner.boolean("include_usage").value_or(false);
  if (!inner.ok()) fields.fail_as(inner);
  return includes;
}

// Reads umad's extensions under "uma".
void read_completion_options(json::FieldReader& fields, GenerateOptions& options) {
  const boost::json::object* object = fields.object("uma");
  if (object == nullptr) return;
  json::FieldReader own(*object, "uma.");
  read_own_options(own, options);
  if (!own.ok()) fields.fail_as(own);
}

CompletionRequest read_completion(CompletionKind kind, json::FieldReader& fields) {
  CompletionRequest request;
  GenerateRequest& generate = request.generate;
  generate.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  generate.agent = agent_of_fields(fields);
  if (kind == CompletionKind::chat) {
    if (fields.find("messages") == nullptr) fields.fail_field("messages", "is required");
    Input& input = request.prompts.emplace_back();
    input.messages = messages_field(fields, input.images);
    generate.options.chat = chat_options(fields, ToolShape::nested, &request.warnings);
    generate.options.chat.splits_reasoning = splits_reasoning_field(fields);
    read_continuation(fields, input.messages, generate.options.chat);
    if (parse_special_field(fields).value_or(false)) {
      fields.fail_field("parse_special", "is only valid for /v1/completions: text of messages never becomes control tokens");
    }
  } else {
    request.prompts = prompts_field(fields);
    // The client is the template of its text. The texts around a gap are its user's.
    const auto parses = parse_special_field(fields);
    for (Input& prompt : request.prompts) prompt.parses_special = parses.value_or(!prompt.infill);
  }
  GenerateOptions& options = generate.options;
  options.sampling.temperature = 1;
  read_common_sampling(fields, options.sampling);
  read_own_sampling(fields, options.sampling, NegativeTopK::off);
  options.stop = stop_field(fields);
  // The names of llama-server, of OpenAI's older clients, and the one that wins.
  for (const std::string_view name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    if (const auto count = max_tokens_field(fields, name)) options.max_tokens = count;
  }
  options.stream = fields.boolean("stream").value_or(false);
  options.logprobs = logprobs_field(kind, fields);
  read_counts(fields, request);
  request.echoes = echo_field(fields, request);
  request.includes_usage = include_usage_field(fields);
  read_grammar(fields, options);
  read_adapters(fields, options);
  read_completion_options(fields, options);
  read_constraints(fields, options);
  generate.comparison = openai_comparison(fields);
  return request;
}

// --- answers

// The abilities of the model, by Ollama's names.
std::vector<std::string_view> abilities_of(const ModelInfo& model) {
  if (model.capability == Capability::text_embedding) return {"embedding"};
  if (model.capability == Capability::rerank) return {"rerank"};
  if (model.capability == Capability::text_to_image) return {"image"};
  std::vector<std::string_view> abilities = {"completion"};
  if (model.calls_tools) abilities.emplace_back("tools");
  if (model.reads_images) abilities.emplace_back("vision");
  if (model.reads_audio) abilities.emplace_back("audio");
  if (model.reasons) abilities.emplace_back("thinking");
  if (model.fills_gaps) abilities.emplace_back("insert");
  return abilities;
}

using Names = std::vector<std::string_view>;

// The modalities that the model reads and makes, by OpenRouter's names.
Names input_modalities(const ModelInfo& model) {
  Names names = {"text"};
  if (model.reads_images) names.emplace_back("image");
  if (model.reads_audio) names.emplace_back("audio");
  return names;
}

std::string_view output_modality(Capability capability) {
  switch (capability) {
    case Capability::text_embedding:
      return "embeddings";
    case Capability::rerank:
      return "rerank";
    case Capability::text_to_image:
      return "image";
    case Capability::chat:
    case Capability::vision:
      break;
  }
  return "text";
}

// The fields of requests that change the model's answers, by OpenRouter's names or, where it has none, by ours.
Names supported_parameters(const ModelInfo& model) {
  if (model.capability == Capability::text_embedding) return {"dimensions", "encoding_format"};
  if (model.capability == Capability::rerank) return {"top_n"};
  if (model.capability == Capability::text_to_image) return {"n", "size", "seed", "response_format"};
  Names names = {"max_tokens",
                 "max_completion_tokens",
                 "temperature",
                 "top_p",
                 "top_k",
                 "min_p",
                 "typical_p",
                 "repeat_penalty",
                 "seed",
                 "stop",
                 "frequency_penalty",
                 "presence_penalty",
                 "logit_bias",
                 "logprobs",
                 "top_logprobs",
                 "n",
                 "response_format",
                 "structured_outputs",
                 "grammar",
                 "tools",
                 "tool_choice",
                 "parallel_tool_calls"};
  if (model.reasons) names.insert(names.end(), {"reasoning", "reasoning_effort", "thinking_budget"});
  return names;
}

void write_names(std::string& out, const Names& names) {
  json::append_array(out, names, [&](std::string_view name) { json::append_string(out, name); });
}

void write_modalities(json::ObjectWriter& parent, const ModelInfo& model) {
  const Names inputs = input_modalities(model);
  const Names outputs = {output_modality(model.capability)};
  std::string form;
  for (const std::string_view name : inputs) form += (form.empty() ? "" : "+") + std::string(name);
  json::ObjectWriter architecture(parent.begin("architecture"));
  architecture.field("modality", std::format("{}->{}", form, outputs.front()));
  write_names(architecture.begin("input_modalities"), inputs);
  write_names(architecture.begin("output_modalities"), outputs);
  architecture.close();
  json::ObjectWriter modalities(parent.begin("modalities"));
  write_names(modalities.begin("input"), inputs);
  write_names(modalities.begin("output"), outputs);
  modalities.close();
}

// The state as llama-server's router tells it.
void write_status(json::ObjectWriter& object, const ModelInfo& model) {
  json::ObjectWriter status(object.begin("status"));
  const bool has_failed = model.state == ModelState::failed;
  status.field("value", model.state == ModelState::ready ? "loaded" : has_failed ? "unloaded" : model_state_name(model.state));
  if (model.state == ModelState::loading) status.field("progress", model.load_progress);
  if (has_failed) status.field("failed", true);
  status.close();
}

void append_pull(std::string& out, const PullInProgress& pull) {
  json::ObjectWriter object(out);
  object.field("source", pull.source);
  if (!pull.progress.file.empty()) object.field("file", pull.progress.file);
  object.field("completed", pull.progress.bytes_done);
  if (pull.progress.bytes_total) object.field("total", *pull.progress.bytes_total);
  object.close();
}

}  // namespace

std::expected<CompletionRequest, RejectedBody> decode_completion(CompletionKind kind, std::string_view body) {
  const RequestRoute route = kind == CompletionKind::chat ? RequestRoute::chat : RequestRoute::completions;
  return decode_request<CompletionRequest>(route, body,
                                           [&](json::FieldReader& fields) { return read_completion(kind, fields); });
}

bool is_overflow(ErrorCode code) {
  return code == ErrorCode::limit_prompt || code == ErrorCode::limit_context;
}

std::string_view openai_code(ErrorCode code) {
  return is_overflow(code) ? "context_length_exceeded" : code_name(code);
}

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string error_json(const Error& error, int status, std::string_view field) {
  std::string out;
  json::ObjectWriter object(out);
  json::ObjectWriter inner(object.begin("error"));
  inner.field("message", error.message);
  inner.field("type", error_type(status));
  if (field.empty()) {
    inner.null_field("param");
  } else {
    inner.field("param", field);
  }
  inner.field("code", openai_code(error.code));
  if (is_overflow(error.code)) {
    json::ObjectWriter uma(inner.begin("uma"));
    uma.field("code", code_name(error.code));
    uma.close();
  }
  inner.close();
  object.close();
  return out;
}

std::string model_json(const ModelInfo& model, std::int64_t created_s) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("id", model.name);
  object.field("object", "model");
  object.field("created", created_s);
  object.field("owned_by", "uma");
  object.field("type", "model");
  object.field("display_name", model.name);
  object.field("created_at", rfc3339(created_s));
  const std::int32_t window = model.sequence_tokens_max;
  for (const std::string_view name : {"max_input_tokens", "max_tokens", "context_length", "max_model_len"}) {
    object.field(name, window);
  }
  json::ObjectWriter meta(object.begin("meta"));
  meta.field("n_ctx", window);
  meta.field("n_ctx_train", model.train_tokens);
  meta.field("n_params", model.parameters);
  meta.field("size", model.bytes);
  meta.close();
  if (!model.parent.empty()) object.field("parent", model.parent);
  object.field("state", model_state_name(model.state));
  write_status(object, model);
  if (!model.store.empty()) object.field("store", model.store);
  if (!model.complaint().empty()) object.field("problem", model.complaint());
  if (model.memory_bytes > 0) object.field("memory_bytes", model.memory_bytes);
  object.field("idle_unload_s", model.idle_unload_s);
  json::append_array(object.begin("capabilities"), abilities_of(model),
                     [&](std::string_view ability) { json::append_string(out, ability); });
  write_modalities(object, model);
  write_names(object.begin("supported_parameters"), supported_parameters(model));
  if (model.image_vectors != ImageVectors::none) object.field("image_vectors", image_vectors_name(model.image_vectors));
  object.close();
  return out;
}

std::vector<ModelInfo> with_adapters(std::span<const ModelInfo> models) {
  std::vector<ModelInfo> all;
  for (const ModelInfo& model : models) {
    all.push_back(model);
    for (const AdapterInfo& adapter : model.adapters) {
      ModelInfo& each = all.emplace_back(model);
      each.name = std::format("{}:{}", model.name, adapter.name);
      each.parent = model.name;
    }
  }
  return all;
}

std::string models_json(std::span<const ModelInfo> models, std::int64_t created_s, const std::vector<PullInProgress>* pulls) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("object", "list");
  json::append_array(object.begin("data"), models, [&](const ModelInfo& model) { out += model_json(model, created_s); });
  object.field("has_more", false);
  if (!models.empty()) {
    object.field("first_id", models.front().name);
    object.field("last_id", models.back().name);
  }
  if (pulls != nullptr) {
    json::ObjectWriter uma(object.begin("uma"));
    json::append_array(uma.begin("pulls"), *pulls, [&](const PullInProgress& pull) { append_pull(out, pull); });
    uma.close();
  }
  object.close();
  return out;
}

}  // namespace uma::wire
