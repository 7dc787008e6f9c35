#include "wire/request_fields.h"

#include <algorithm>
#include <array>
#include <format>
#include <optional>
#include <ranges>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/check.h"

namespace uma::wire {
namespace {

namespace table {

using enum FieldClass;

constexpr std::uint32_t bit(RequestRoute route) {
  return 1u << std::to_underlying(route);
}

constexpr std::uint32_t chat = bit(RequestRoute::chat);
constexpr std::uint32_t text = bit(RequestRoute::completions);
constexpr std::uint32_t responses = bit(RequestRoute::responses);
constexpr std::uint32_t messages = bit(RequestRoute::messages);
constexpr std::uint32_t ollama_chat = bit(RequestRoute::ollama_chat);
constexpr std::uint32_t ollama_generate = bit(RequestRoute::ollama_generate);
constexpr std::uint32_t ollama_embed = bit(RequestRoute::ollama_embed);
constexpr std::uint32_t ollama_embeddings = bit(RequestRoute::ollama_embeddings);
constexpr std::uint32_t embeddings = bit(RequestRoute::embeddings);
constexpr std::uint32_t rerank = bit(RequestRoute::rerank);
constexpr std::uint32_t images = bit(RequestRoute::images);
constexpr std::uint32_t infill = bit(RequestRoute::infill);
constexpr std::uint32_t completion = bit(RequestRoute::completion);

constexpr std::uint32_t openai = chat | text | responses;
constexpr std::uint32_t llama = infill | completion;
constexpr std::uint32_t constrained = openai | completion;
constexpr std::uint32_t ollama = ollama_chat | ollama_generate;
constexpr std::uint32_t vectors = embeddings | ollama_embed | ollama_embeddings;

// tools/fields_tables.py reads these rows.
constexpr RequestField kFields[] = {
    // --- What is asked
    {openai | messages | ollama | vectors | rerank | images | llama, "model", served, ""},
    {ollama | ollama_embed | ollama_embeddings, "name", served, "as `model`"},
    {chat | messages | ollama_chat, "messages", served, ""},
    {chat | messages | ollama_chat, "continue_final_message add_generation_prompt", served, ""},
    {text | llama, "prompt", served, ""},
    {ollama_generate | ollama_embeddings, "prompt", served, ""},
    {text | ollama_generate, "suffix", served, "for models that fill gaps"},
    {chat, "suffix", refused, "only /v1/completions fills gaps"},
    {responses, "input instructions conversation previous_response_id", served, ""},
    {messages | ollama_generate, "system", served, ""},
    {ollama_generate, "images raw", served, ""},
    {text | ollama_generate | llama, "parse_special uma.parse_special", served, "whether marks in the text are control tokens"},
    {infill, "input_prefix input_suffix input_extra[].filename input_extra[].text", served, ""},
    {responses, "prompt", refused, "stored prompts are not served: send the text as `instructions` or `input`"},
    {ollama_generate, "template", refused, "the model's own template is used, and none with `raw`: true"},
    {ollama_generate, "context", refused, "send the conversation as messages to /api/chat"},
    {messages, "thread.type thread.previous_message_id", served, "not in `count_tokens`"},
    {messages, "container", refused, "code is not run here"},
    {messages, "compaction", refused, "summaries are not made here: ask for one as a message"},
    {chat | responses, "chat_template documents", served, ""},
    {text, "chat_template", refused, "a plain text has no template"},

    // --- How long, how often, in which form
    {chat | text | messages, "max_tokens", served, "0: only the prompt is computed; -1: no limit"},
    {chat | text, "max_completion_tokens n_predict", served, "as `max_tokens`"},
    {responses, "max_output_tokens", served, "-1: no limit"},
    {llama, "n_predict", served, ""},
    {openai | text | llama, "stop", served, ""},
    {messages, "stop_sequences", served, ""},
    {messages, "stop", refused, "use `stop_sequences`"},
    {responses, "max_tokens max_completion_tokens", refused, "use `max_output_tokens`"},
    {openai | messages | ollama | llama | images, "stream", served, ""},
    {chat | text, "stream_options.include_usage", served, ""},
    {openai, "stream_options.include_obfuscation", ignored, "nothing is padded"},
    {chat | text, "n", served, ""},
    {chat | text, "best_of", served, "equal to `n` only: every choice is returned"},
    {responses, "n", refused, "a response has one reply; /v1/chat/completions has several", "1"},
    {text, "echo", served, "with `logprobs` also the log probabilities of the prompt, not streamed"},
    {chat, "echo", served, "for a reply that is continued"},
    {chat | text | ollama, "logprobs", served, ""},
    {chat | responses | ollama, "top_logprobs", served, ""},
    {text, "top_logprobs", refused, "`logprobs` is the number here", "0"},
    {chat | text, "prompt_logprobs", refused, "/v1/completions has them with `echo` and `logprobs`"},
    {llama, "n_probs", refused, "/v1/completions has `logprobs`", "0"},
    {chat | text, "n_probs", refused, "use `logprobs`", "0"},
    {responses, "background store metadata truncation include", served, ""},
    {chat | text, "store", ignored, "chat completions are not stored; /v1/responses are"},
    {chat | text | messages, "metadata", served, "a session in it names the agent that asks"},

    // --- Sampling
    {openai | messages | llama, "temperature top_p", served, ""},
    {openai | messages | llama, "presence_penalty frequency_penalty seed", served, ""},
    {openai | messages, "logit_bias", served, ""},
    {openai | messages | llama,
     "top_k min_p typical_p repeat_penalty repeat_last_n dry_multiplier dry_base dry_allowed_length dry_penalty_last_n "
     "dry_sequence_breakers xtc_probability xtc_threshold mirostat mirostat_tau mirostat_eta ignore_eos",
     served, ""},
    {openai | messages | llama, "repetition_penalty", served, "as `repeat_penalty` over the whole text"},
    {openai, "uma.repetition_penalty", served, "as `repeat_penalty` over the whole text"},
    {ollama, "options.repetition_penalty", served, "as `repeat_penalty` over the whole text"},
    {openai, "dynatemp_range", refused, "use `temperature`", "0"},
    {openai, "dynatemp_exponent", ignored, "it belongs to `dynatemp_range`"},
    {openai, "top_n_sigma", refused, "use `min_p`", "-1 0"},
    {chat | text, "use_beam_search", refused, "there is one way of choosing tokens: sampling"},
    {chat | text, "length_penalty", ignored, "it belongs to `use_beam_search`"},
    {chat | text, "min_tokens", refused, "use `ignore_eos` or a schema", "0"},
    {chat | text, "stop_token_ids", refused, "use `stop`"},
    {chat | text, "include_stop_str_in_output", refused, "the text ends before the stop string"},
    {chat | text, "bad_words allowed_token_ids", refused, "use `logit_bias`"},
    {chat | text, "skip_special_tokens", refused, "control tokens are never part of the text", "true"},
    {chat | text, "truncate_prompt_tokens", refused, "a prompt is never cut: shorten it"},
    {chat | text, "logits_processors logits_processor", refused, "use `logit_bias` or a grammar"},
    {chat | text, "return_token_ids return_tokens_as_token_ids", refused, "/tokenize has the tokens of a text"},

    // --- Constraints
    {constrained,
     "response_format.type response_format.schema response_format.json_schema.name response_format.json_schema.schema "
     "response_format.json_schema.strict",
     served, ""},
    {constrained, "response_format.json_schema.description", ignored, "the schema decides"},
    {constrained,
     "text.format.type text.format.name text.format.schema text.format.strict text.format.json_schema.name "
     "text.format.json_schema.schema text.format.json_schema.strict",
     served, "the form of /v1/responses of `response_format`"},
    {constrained, "text.format.description text.format.json_schema.description", ignored, "the schema decides"},
    {constrained, "json_schema", served, "a schema, as in llama-server"},
    {constrained, "guided_json guided_choice guided_regex guided_grammar regex ebnf", served, "as in vLLM and SGLang"},
    {constrained,
     "structured_outputs.json structured_outputs.choice structured_outputs.regex structured_outputs.grammar "
     "structured_outputs.json_object",
     served, "as in vLLM"},
    {constrained,
     "guided_whitespace_pattern structured_outputs.whitespace_pattern structured_outputs.disable_any_whitespace "
     "structured_outputs.disable_additional_properties structured_outputs.structural_tag structural_tag",
     refused, "write what is wanted as a schema or a grammar"},
    {constrained, "guided_decoding_backend structured_outputs.disable_fallback structured_outputs._backend", ignored,
     "there is one implementation"},
    {openai | llama, "grammar", served, "GBNF"},
    {openai | llama, "lora[].name lora[].id lora[].scale", served, ""},
    {openai, "format output_format schema guided_decoding", refused, "use `response_format`"},
    {openai, "extra_body", refused, "its fields belong to the body itself"},
    {messages,
     "response_format json_schema guided_json guided_choice guided_regex guided_grammar structured_outputs grammar "
     "uma.grammar format",
     refused, "use `output_config.format`"},
    {ollama,
     "response_format json_schema guided_json guided_choice guided_regex guided_grammar structured_outputs grammar "
     "options.grammar output_format",
     refused, "use `format`"},
    {messages, "output_config.format.type output_config.format.schema output_format.type output_format.schema", served, ""},
    {ollama, "format", served, ""},

    // --- Tools
    {chat, "tools[].type tools[].function.name tools[].function.description tools[].function.parameters", served, ""},
    {chat | ollama_chat, "tools[].function.strict", served, ""},
    {completion, "logit_bias", served, ""},
    {completion, "image_data", refused, "/v1/chat/completions reads images"},
    {chat, "tools[].custom.name tools[].custom.description tools[].custom.format", served, ""},
    {ollama_chat, "tools[].type tools[].function.name tools[].function.description tools[].function.parameters", served, ""},
    {ollama_chat, "tools[].items tools[].function.type", ignored, "the schema decides"},
    {responses, "tools[].type tools[].name tools[].description tools[].parameters tools[].strict tools[].format tools[].tools",
     served, ""},
    {responses | messages, "tools[].defer_loading", ignored, "the model sees all tools"},
    {responses | messages, "tools[].allowed_callers", ignored, "only the model calls tools"},
    {responses, "tools[].output_schema", ignored, "results are not checked"},
    {messages, "tools[].type tools[].name tools[].description tools[].input_schema tools[].strict", served, ""},
    {messages, "tools[].cache_control tools[].eager_input_streaming", ignored,
     "what was computed is found again, and calls are streamed"},
    {messages, "tools[].input_examples", warned, "the model sees descriptions and schemas only"},
    {chat | responses | messages | ollama_chat, "tool_choice", served, ""},
    {chat | responses | ollama_chat, "parallel_tool_calls", served, ""},
    {text, "tool_choice parallel_tool_calls", ignored, "they belong to `tools`"},
    {responses, "max_tool_calls", served, "repeated in the answer; it limits tools of OpenAI's servers, and here are none"},
    {text, "tools", refused, "only chat/completions has tools"},
    {text, "functions function_call", refused, "only chat/completions has tools"},
    {chat, "functions", refused, "the older form of `tools`: use that"},
    {chat, "function_call", refused, "the older form of `tool_choice`: use that", "auto none"},
    {chat, "web_search_options", warned, "web search is not available on this server"},
    {messages, "mcp_servers", warned, "this server connects to no MCP servers"},
    {chat | responses, "mcp_servers", warned, "this server connects to no MCP servers"},

    // --- Reasoning
    {chat | responses | messages, "chat_template_kwargs", served, ""},
    {chat | responses,
     "thinking_budget thinking_budget_tokens thinking_token_budget reasoning_budget reasoning_budget_tokens enable_thinking "
     "think reasoning_effort reasoning.effort reasoning.max_tokens reasoning.enabled thinking.type thinking.budget_tokens",
     served, ""},
    {messages,
     "thinking.type thinking.budget_tokens output_config.effort thinking_budget thinking_budget_tokens thinking_token_budget "
     "reasoning_budget reasoning_budget_tokens enable_thinking think reasoning_effort reasoning.effort reasoning.max_tokens "
     "reasoning.enabled",
     served, ""},
    {ollama, "think", served, ""},
    {ollama, "options.think reasoning_effort enable_thinking", refused, "use `think`"},
    {ollama, "chat_template_kwargs", refused, "/v1/chat/completions has it"},
    {chat, "reasoning_format", served, "`none`: reasoning stays in the text"},
    {chat, "include_reasoning", warned, "reasoning is sent in its own field"},
    {chat | responses, "reasoning.exclude", warned, "reasoning is sent in its own field"},
    {chat | responses, "reasoning.summary reasoning.generate_summary", ignored,
     "no summaries are made: reasoning is sent in full"},
    {responses, "reasoning.context", ignored, "the model's template decides which reasoning it sees again"},
    {chat, "reasoning.context", ignored, "the model's template decides which reasoning it sees again"},
    {chat | responses, "reasoning.mode", ignored, "models have one mode"},
    {messages, "thinking.display", ignored, "reasoning is sent in full"},
    {messages, "output_config.task_budget", warned, "a reply has `max_tokens` only"},
    {chat, "verbosity", ignored, "no model here has such a setting"},
    {openai, "text.verbosity", ignored, "no model here has such a setting"},
    {responses, "personality", ignored, "no model here has such a setting"},

    // --- What only some services have
    {chat, "modalities", refused, "replies are texts", "text"},
    {chat, "audio", refused, "replies are texts"},
    {chat, "prediction", ignored, "it makes replies faster elsewhere; umad drafts by itself"},
    {chat | responses, "moderation", refused, "nothing is moderated here"},
    {responses, "context_management", refused, "`truncation` says what happens with a full context"},
    {messages, "context_management", warned, "nothing is removed from the conversation"},
    {openai, "user", served, "is shown as who asks"},
    {chat | text, "safety_identifier", ignored, "it names a user for OpenAI"},
    {responses, "safety_identifier", served, "repeated in the answer"},
    {openai, "prompt_cache_key", served, "names the agent that asks; what was computed is found again without it"},
    {openai, "prompt_cache_options.comparison_response_id", served, "`prompt_cache_diagnostics` says where the prompts differ"},
    {openai, "prompt_cache_options.mode prompt_cache_options.ttl prompt_cache_retention", ignored,
     "what was computed is found again without it"},
    {openai | messages, "cache_control", ignored, "what was computed is found again without it"},
    {chat | text | llama, "cache_prompt id_slot", ignored, "what was computed is found again without it"},
    {chat | text, "cache_salt", ignored, "tenants share nothing"},
    {openai | messages, "service_tier", ignored, "there is one tier"},
    {chat | text, "priority", ignored, "`uma.class` says which requests may wait"},
    {chat | text, "request_id", ignored, "answers have an id of their own"},
    {messages, "speed inference_geo billing_policy fallback_credit_token", ignored, "it is about Anthropic's servers"},
    {messages, "diagnostics.previous_message_id", served, "`diagnostics` says where the prompts differ"},
    {messages, "user_profile_id workspace_id betas", ignored, "SDKs send it as a header"},
    {messages, "fallbacks", ignored, "a request has one model"},
    {openai, "timings_per_token return_progress", ignored, "`uma.usage` has the times"},
    {llama, "timings_per_token response_fields t_max_prompt_ms return_progress", ignored, "it changes no text"},
    {llama, "t_max_predict_ms", warned, "a filling ends with its tokens only"},
    {llama, "samplers", warned, "samplers have one order"},
    {chat | text, "samplers", warned, "samplers have one order"},

    // --- umad's own
    {openai,
     "uma.class uma.deadline_ms uma.timeout_ms uma.target_ttft_ms uma.target_tbt_ms uma.grammar uma.lora[].name uma.lora[].id "
     "uma.lora[].scale uma.split_reasoning uma.strict_schema",
     served, ""},
    {openai,
     "uma.top_k uma.min_p uma.typical_p uma.repeat_penalty uma.repeat_last_n uma.dry_multiplier uma.dry_base "
     "uma.dry_allowed_length uma.dry_penalty_last_n uma.dry_sequence_breakers uma.xtc_probability uma.xtc_threshold "
     "uma.mirostat "
     "uma.mirostat_tau uma.mirostat_eta uma.ignore_eos",
     served, ""},
    {responses, "uma.regenerate", served, ""},
    {messages | ollama, "uma.strict_schema", served, ""},
    {openai, "uma.session_id", refused, "use `conversation` or `previous_response_id` of /v1/responses"},
    {openai, "uma.progress", refused, "only the socket reports progress"},

    // --- Ollama
    {ollama | ollama_embed | ollama_embeddings, "keep_alive", served,
     "without a prompt; else how long a model stays is the daemon's setting"},
    {ollama,
     "options.temperature options.top_k options.top_p options.min_p options.typical_p options.repeat_penalty "
     "options.repeat_last_n options.presence_penalty options.frequency_penalty options.mirostat options.mirostat_tau "
     "options.mirostat_eta options.dry_multiplier options.dry_base options.dry_allowed_length options.dry_penalty_last_n "
     "options.dry_sequence_breakers options.xtc_probability options.xtc_threshold options.ignore_eos options.seed "
     "options.num_predict options.stop",
     served, ""},
    {ollama,
     "temperature top_k top_p min_p typical_p repeat_penalty repeat_last_n presence_penalty frequency_penalty seed num_predict "
     "num_ctx stop",
     served, "as in `options`, which wins"},
    {ollama, "max_tokens max_completion_tokens", refused, "use `options.num_predict`"},
    {ollama, "options.num_ctx", served, "a warning if it is larger than the window"},
    {ollama, "options.num_keep", ignored, "a prompt is never cut"},
    {ollama | ollama_embed | ollama_embeddings,
     "options.num_batch options.num_gpu options.main_gpu options.low_vram options.f16_kv options.logits_all options.vocab_only "
     "options.use_mmap options.use_mlock options.embedding_only options.num_thread options.numa",
     ignored, "how a model is loaded is the daemon's setting"},
    {ollama, "options.tfs_z", refused, "use `min_p`", "1"},
    {ollama, "options.penalize_newline", refused, "line breaks are penalized like other tokens", "true"},
    {ollama_embed | ollama_embeddings,
     "options.temperature options.top_k options.top_p options.min_p options.seed options.num_predict options.stop "
     "options.repeat_penalty options.repeat_last_n options.num_keep options.presence_penalty options.frequency_penalty "
     "options.mirostat options.mirostat_tau options.mirostat_eta options.penalize_newline options.tfs_z options.typical_p",
     ignored, "vectors are not sampled"},
    {ollama_embed | ollama_embeddings, "options.num_ctx", ignored, "`truncate` says what happens with a text that is too long"},
    {ollama, "truncate shift", ignored, "a prompt is never cut"},
    {ollama_generate, "width height steps", refused, "/v1/images/generations draws pictures", "0"},

    // --- Vectors
    {embeddings | ollama_embed, "input dimensions", served, ""},
    {ollama_embed, "truncate", served, ""},
    {embeddings, "encoding_format", served, ""},
    {embeddings, "task normalize long_input class deadline_ms uma.task uma.normalize uma.long_input uma.class uma.deadline_ms",
     served, ""},
    {embeddings, "truncate truncate_prompt_tokens", refused, "`long_input` says what happens with a text that is too long"},
    {embeddings, "input_type prompt_name", refused, "`task` chooses what stands before a text"},
    {embeddings, "embd_normalize", served, "-1 as `normalize`: false, 2 as true"},
    {embeddings, "output_dimension", served, "as `dimensions`"},
    {embeddings, "output_dtype", refused, "vectors are floats", "float"},
    {embeddings, "pooling", refused, "the model decides how it pools"},
    {embeddings, "instruction", refused, "`task` chooses what stands before a text"},
    {embeddings, "add_special_tokens", refused, "a text has the tokens that the model was trained with", "true"},
    {ollama_embed | ollama_embeddings, "normalize", refused, "/v1/embeddings has it", "true"},
    {ollama_embeddings, "dimensions", refused, "/api/embed has it"},
    {embeddings, "user", ignored, "it names a user for OpenAI"},
    {rerank, "query documents top_n return_documents", served, ""},
    {rerank, "long_input class deadline_ms uma.long_input uma.class uma.deadline_ms", served, ""},
    {rerank, "truncate truncation max_chunks_per_doc max_tokens_per_doc", warned,
     "`long_input` says what happens with a text that is too long"},
    {rerank, "rank_fields", refused, "send documents as texts"},
    {rerank, "user priority", ignored, "it is about other servers"},

    // --- Pictures
    {images, "prompt n size partial_images response_format output_format background", served, ""},
    {images, "negative_prompt steps guidance cfg_scale seed sampler schedule image.data strength metadata class deadline_ms",
     served, ""},
    {images,
     "uma.negative_prompt uma.steps uma.guidance uma.cfg_scale uma.seed uma.sampler uma.schedule uma.image.data uma.strength "
     "uma.metadata uma.class uma.deadline_ms",
     served, ""},
    {images, "device uma.device", refused, "a model's card chooses its devices"},
    {images, "quality", warned, "`steps` decides how carefully a picture is drawn"},
    {images, "style", warned, "the caption decides"},
    {images, "moderation output_compression user", ignored, "nothing is moderated, and PNG files lose nothing"},
};

}  // namespace table

struct FieldIndex {
  std::unordered_map<std::string_view, const RequestField*> fields;
  std::unordered_set<std::string_view> parents;  // Paths with fields inside; those of arrays end with "[]".
};

FieldIndex index_of(std::uint32_t route) {
  FieldIndex index;
  for (const RequestField& row : table::kFields) {
    if ((row.routes & route) == 0) continue;
    for (const auto part : row.paths | std::views::split(' ')) {
      const std::string_view path(part);
      UMA_CHECK(index.fields.emplace(path, &row).second);
      for (std::size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
        index.parents.insert(path.substr(0, dot));
      }
    }
  }
  return index;
}

const FieldIndex& index_of(RequestRoute route) {
  static const auto all = [] {
    std::array<FieldIndex, kRequestRoutes> made;
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = index_of(1u << i);
    return made;
  }();
  return all[std::to_underlying(route)];
}

bool asks_nothing(const boost::json::value& value) {
  if (const boost::json::object* object = value.if_object()) {
    return std::ranges::all_of(*object, [](const auto& entry) { return asks_nothing(entry.value()); });
  }
  return value.is_null() || value == false || (value.is_array() && value.get_array().empty()) ||
         (value.is_string() && value.get_string().empty());
}

// Whether the value is one of those, or a list of them.
bool is_harmless(const boost::json::value& value, std::string_view harmless) {
  if (value == false && harmless == "true") return false;  // A field that is on by itself.
  if (asks_nothing(value)) return true;
  if (harmless.empty() || value.is_object()) return false;
  if (const boost::json::array* array = value.if_array()) {
    return std::ranges::all_of(*array, [&](const boost::json::value& each) { return is_harmless(each, harmless); });
  }
  const std::string written = value.is_string()   ? std::string(value.get_string())
                              : value.is_double() ? std::format("{}", value.get_double())
                                                  : boost::json::serialize(value);
  return std::ranges::contains(harmless | std::views::split(' '), written, [](auto part) { return std::string_view(part); });
}

// Reads a note as a part of a message: names of fields are in backquotes there.
std::string in_message(std::string_view note) {
  std::string text(note);
  std::ranges::replace(text, '`', '"');
  return text;
}

void refuse_as(json::FieldReader& fields, std::string_view place, const RequestField& row) {
  fields.fail_field(place, std::format("is not supported: {}", in_message(row.note)));
}

class FieldChecker {
 public:
  FieldChecker(json::FieldReader& fields, RequestRoute route) : fields_(fields), index_(index_of(route)) {}

  // `path` is the object's path in the table, `place` the one in the request; both end with a dot, or are empty.
  void check(const boost::json::object& object, const std::string& path, const std::string& place) {
    for (const auto& [key, value] : object) {
      if (!fields_.ok()) return;
      if (!value.is_null()) check_field(value, path + std::string(key), place + std::string(key));
    }
  }

  [[nodiscard]] std::vector<std::string> take_warnings() {
    if (unknown_count_ == 0) return std::move(warnings_);
    const std::string more = unknown_count_ > kShownMax ? std::format(" and {} more", unknown_count_ - kShownMax) : "";
    warnings_.push_back(std::format("unknown fields are ignored: {}{}", unknown_, more));
    return std::move(warnings_);
  }

 private:
  static constexpr std::size_t kShownMax = 8;
  static constexpr std::size_t kShownBytesMax = 64;

  void check_field(const boost::json::value& value, const std::string& path, const std::string& place) {
    const auto known = index_.fields.find(path);
    if (known != index_.fields.end()) return check_known(value, *known->second, place);
    if (index_.parents.contains(path)) {
      // The decoder refuses another type.
      if (const boost::json::object* inner = value.if_object()) check(*inner, path + ".", place + ".");
      return;
    }
    if (index_.parents.contains(path + "[]")) return check_elements(value, path + "[].", place);
    if (++unknown_count_ > kShownMax) return;
    unknown_ += (unknown_.empty() ? "" : ", ") + place.substr(0, kShownBytesMax);
  }

  void check_elements(const boost::json::value& value, const std::string& path, const std::string& place) {
    const boost::json::array* array = value.if_array();
    for (std::size_t i = 0; array != nullptr && i < array->size() && fields_.ok(); ++i) {
      const boost::json::object* element = (*array)[i].if_object();
      if (element != nullptr && is_described(*element)) check(*element, path, std::format("{}[{}].", place, i));
    }
  }

  // Whether the table has the fields of such an element: tools that other servers run have their own, and are left out whole.
  static bool is_described(const boost::json::object& element) {
    const boost::json::value* type = element.if_contains("type");
    return type == nullptr || *type == "function" || *type == "custom" || *type == "namespace";
  }

  void check_known(const boost::json::value& value, const RequestField& row, const std::string& place) {
    if (row.kind == FieldClass::refused && !is_harmless(value, row.harmless)) return refuse_as(fields_, place, row);
    if (row.kind != FieldClass::warned || is_harmless(value, row.harmless)) return;
    std::string sentence = std::format("field {} is left out: {}", place, in_message(row.note));
    if (warnings_.size() < kShownMax) warnings_.push_back(std::move(sentence));
  }

  json::FieldReader& fields_;
  const FieldIndex& index_;
  std::vector<std::string> warnings_;
  std::string unknown_;
  std::size_t unknown_count_ = 0;
};

}  // namespace

std::span<const RequestField> request_fields() {
  return table::kFields;
}

std::vector<std::string> check_request_fields(json::FieldReader& fields, const boost::json::object& body, RequestRoute route) {
  FieldChecker checker(fields, route);
  checker.check(body, "", "");
  return checker.take_warnings();
}

void refuse_field(json::FieldReader& fields, RequestRoute route, std::string_view path) {
  const auto row = index_of(route).fields.find(path);
  UMA_CHECK(row != index_of(route).fields.end() && row->second->kind == FieldClass::refused);
  const boost::json::value* value = fields.find(path);
  if (value != nullptr && !is_harmless(*value, row->second->harmless)) refuse_as(fields, path, *row->second);
}

}  // namespace uma::wire
