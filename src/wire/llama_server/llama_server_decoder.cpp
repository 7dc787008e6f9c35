#include "wire/llama_server/llama_server_decoder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <format>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "core/sampling_fields.h"
#include "json/field_reader.h"
#include "wire/generate_fields.h"
#include "wire/own/request_codec.h"
#include "wire/request_fields.h"

namespace uma::wire {
namespace {

constexpr std::size_t kInfillFilesMax = 256;
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

std::string model_field(json::FieldReader& fields) {
  return fields.text("model", {0, kModelBytesMax}).value_or("");
}

TokenizeRequest read_tokenize(json::FieldReader& fields) {
  TokenizeRequest request;
  request.model = model_field(fields);
  request.text = fields.required_text("content");
  request.adds_special = fields.boolean("add_special").value_or(false);
  request.parses_special = fields.boolean("parse_special").value_or(true);
  request.wants_texts = fields.boolean("with_pieces").value_or(false);
  return request;
}

DetokenizeRequest read_detokenize(json::FieldReader& fields) {
  DetokenizeRequest request;
  request.model = model_field(fields);
  const boost::json::array* tokens = fields.array("tokens");
  if (tokens == nullptr) {
    fields.fail_field("tokens", "is required");
    return request;
  }
  request.tokens.reserve(tokens->size());
  for (const boost::json::value& token : *tokens) {
    if (!token.is_int64() || token.get_int64() < 0 || token.get_int64() > std::numeric_limits<Token>::max()) {
      fields.fail_field(std::format("tokens[{}]", request.tokens.size()), "must be the id of a token");
      break;
    }
    request.tokens.push_back(static_cast<Token>(token.get_int64()));
  }
  return request;
}

std::vector<InfillFile> files_field(json::FieldReader& fields) {
  std::vector<InfillFile> files;
  const boost::json::array* given = fields.array("input_extra");
  if (given == nullptr) return files;
  if (given->size() > kInfillFilesMax) {
    fields.fail_field("input_extra", std::format("has {} files, but the limit is {}", given->size(), kInfillFilesMax));
  }
  for (std::size_t i = 0; i < given->size() && fields.ok(); ++i) {
    const boost::json::object* object = (*given)[i].if_object();
    const std::string field = std::format("input_extra[{}]", i);
    if (object == nullptr) {
      fields.fail_field(field, R"(must be {"filename": ..., "text": ...})");
      break;
    }
    json::FieldReader file(*object, field + ".");
    InfillFile& read = files.emplace_back();
    read.name = file.text("filename").value_or("tmp");
    read.text = file.required_text("text");
    if (!file.ok()) fields.fail_as(file);
  }
  return files;
}

// Llama-server's defaults, which a model's card replaces, and what the request states.
SamplingParams text_sampling(json::FieldReader& fields) {
  SamplingParams sampling;
  sampling.temperature = 0.8;
  sampling.top_k = 40;
  sampling.top_p = 0.95;
  sampling.min_p = 0.05;
  if (const auto temperature = fields.number("temperature", {-kTemperatureMax, kTemperatureMax})) {
    sampling.temperature = std::max(0.0, *temperature);
    set_given(sampling, SamplingField::temperature);
  }
  using enum SamplingField;
  read_sampling_fields(fields, std::array{top_p, presence_penalty, frequency_penalty}, sampling);
  read_own_sampling(fields, sampling, NegativeTopK::off);
  sampling.seed = seed_field(fields);
  return sampling;
}

void read_text_options(json::FieldReader& fields, TextCall& call) {
  GenerateOptions& options = call.generate.options;
  options.sampling = text_sampling(fields);
  // Negative: until the model ends the text.
  if (const auto count = fields.integer("n_predict", kInt64Min, kInt64Max); count && *count >= 0) {
    options.max_tokens = static_cast<std::int32_t>(std::min(*count, json::kInt32Max));
  }
  options.stop = stop_field(fields);
  options.stream = fields.boolean("stream").value_or(false);
  read_grammar(fields, options);
  read_adapters(fields, options);
}

TextCall read_infill(json::FieldReader& fields) {
  TextCall call;
  GenerateRequest& generate = call.generate;
  generate.model = model_field(fields);
  generate.input.text = fields.text("input_prefix").value_or("");
  generate.input.infill = Infill{.suffix = fields.text("input_suffix").value_or(""),
                                 .begun = fields.text("prompt").value_or(""),
                                 .files = files_field(fields)};
  generate.input.parses_special = parse_special_field(fields).value_or(false);
  read_text_options(fields, call);
  return call;
}

TextCall read_plain_completion(json::FieldReader& fields) {
  TextCall call;
  Input& input = call.generate.input;
  call.generate.model = model_field(fields);
  const boost::json::value* prompt = fields.find("prompt");
  const bool is_in_list = prompt != nullptr && prompt->is_array() && prompt->get_array().size() == 1;
  if (is_in_list && !prompt->get_array().front().is_number()) prompt = &prompt->get_array().front();
  const boost::json::array* ids = prompt == nullptr ? nullptr : prompt->if_array();
  auto tokens = ids == nullptr ? std::nullopt : token_ids(*ids);
  if (tokens && !tokens->empty()) {
    input.tokens = std::move(*tokens);
  } else if (prompt != nullptr && prompt->is_string()) {
    input.text = fields.checked_text("prompt", *prompt, {.min = 1}).value_or("");
  } else {
    fields.fail_field("prompt", "must be a text or an array of token ids, which is not empty: /v1/completions takes several");
  }
  input.parses_special = parse_special_field(fields).value_or(true);
  read_text_options(fields, call);
  read_constraints(fields, call.generate.options);
  if (const boost::json::value* bias = fields.find("logit_bias")) {
    const boost::json::object alone{{"logit_bias", *bias}};
    json::FieldReader inner(alone);
    SamplingParams sampling;
    read_common_sampling(inner, sampling);
    call.generate.options.sampling.logit_bias = std::move(sampling.logit_bias);
    call.generate.options.sampling.logit_bias_texts = std::move(sampling.logit_bias_texts);
    if (!inner.ok()) fields.fail_as(inner);
  }
  return call;
}

}  // namespace

std::expected<TokenizeRequest, RejectedBody> decode_tokenize(std::string_view body) {
  return decode_body<TokenizeRequest>(body, read_tokenize);
}

std::expected<DetokenizeRequest, RejectedBody> decode_detokenize(std::string_view body) {
  return decode_body<DetokenizeRequest>(body, read_detokenize);
}

std::expected<TextCall, RejectedBody> decode_infill(std::string_view body) {
  return decode_request<TextCall>(RequestRoute::infill, body, read_infill);
}

std::expected<TextCall, RejectedBody> decode_plain_completion(std::string_view body) {
  return decode_request<TextCall>(RequestRoute::completion, body, read_plain_completion);
}

}  // namespace uma::wire
