#include "wire/embedding_codec.h"

#include <bit>
#include <format>
#include <span>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include "base/base64.h"
#include "wire/frame.h"
#include "wire/generate_fields.h"
#include "wire/json_writer.h"
#include "wire/request_codec.h"

namespace uma::wire {
namespace {

namespace json = boost::json;

// --- requests

void check_count(FieldReader& fields, std::string_view name, std::size_t count) {
  if (count == 0) fields.fail_field(name, "must hold at least one text");
  if (count > kEmbedInputsMax)
    fields.fail_field(name, std::format("holds {}, at most {} are accepted", count, kEmbedInputsMax));
}

std::vector<Token> tokens_of(FieldReader& fields, const std::string& name, const json::array& array) {
  std::vector<Token> tokens;
  tokens.reserve(array.size());
  if (array.empty()) fields.fail_field(name, "must not be empty");
  for (const json::value& value : array) {
    if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > kInt32Max) {
      fields.fail_field(name, "must hold tokens: whole numbers from 0");
      break;
    }
    tokens.push_back(static_cast<Token>(value.get_int64()));
  }
  return tokens;
}

// A text, tokens, or an array of texts or of tokens.
std::vector<EmbedInput> inputs_field(FieldReader& fields, std::string_view name) {
  std::vector<EmbedInput> inputs;
  const json::value* field = fields.find(name);
  if (field == nullptr || field->is_string()) {
    inputs.emplace_back(fields.required_text(name, {.min = 1}));
    return inputs;
  }
  if (!field->is_array()) {
    fields.fail_field(name, "must be a text or an array of texts");
    return inputs;
  }
  const json::array& array = field->get_array();
  if (!array.empty() && array.front().is_number()) {
    inputs.emplace_back(tokens_of(fields, std::string(name), array));
    return inputs;
  }
  check_count(fields, name, array.size());
  for (std::size_t i = 0; i < array.size() && fields.ok(); ++i) {
    const std::string element = std::format("{}[{}]", name, i);
    if (const json::array* tokens = array[i].if_array()) {
      inputs.emplace_back(tokens_of(fields, element, *tokens));
    } else {
      inputs.emplace_back(fields.checked_text(element, array[i], {.min = 1}).value_or(""));
    }
  }
  return inputs;
}

// Texts, or objects with a text.
std::vector<std::string> documents_field(FieldReader& fields) {
  std::vector<std::string> documents;
  const json::array* array = fields.array("documents");
  if (array == nullptr) {
    fields.fail_field("documents", "is required");
    return documents;
  }
  check_count(fields, "documents", array->size());
  for (std::size_t i = 0; i < array->size() && fields.ok(); ++i) {
    const json::value& value = (*array)[i];
    if (const json::object* object = value.if_object()) {
      FieldReader inner(*object, std::format("documents[{}].", i));
      documents.push_back(inner.required_text("text"));
      if (!inner.ok()) fields.fail_as(inner);
    } else {
      documents.push_back(fields.checked_text(std::format("documents[{}]", i), value, {}).value_or(""));
    }
  }
  return documents;
}

// Those of our own that both have.
void read_options(FieldReader& fields, TextOptions& options, bool can_chunk) {
  const std::string long_input = fields.text("long_input").value_or("refuse");
  if (long_input == "truncate") {
    options.long_input = LongInput::truncate;
  } else if (long_input == "chunk" && can_chunk) {
    options.long_input = LongInput::chunk;
  } else if (long_input != "refuse") {
    fields.fail_field("long_input",
                      can_chunk ? R"(must be "refuse", "truncate" or "chunk")" : R"(must be "refuse" or "truncate")");
  }
  options.request_class = class_field(fields);
  options.deadline_ms = fields.integer("deadline_ms", 0, kTimeMsMax);
}

void read_embed_options(FieldReader& fields, EmbedRequest& request) {
  read_options(fields, request.options, /*can_chunk=*/true);
  request.task = fields.text("task").value_or("");
  request.normalize = fields.boolean("normalize").value_or(true);
}

EmbeddingCall read_embedding_call(FieldReader& fields, std::string_view inputs_name) {
  EmbeddingCall call;
  call.embed.options.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  call.embed.inputs = inputs_field(fields, inputs_name);
  call.embed.dimensions = static_cast<std::int32_t>(fields.integer("dimensions", 1, kInt32Max).value_or(0));
  const std::string encoding = fields.text("encoding_format").value_or("float");
  if (encoding == "base64") {
    call.encoding = VectorEncoding::base64;
  } else if (encoding != "float") {
    fields.fail_field("encoding_format", R"(must be "float" or "base64")");
  }
  return call;
}

RerankCall read_rerank_call(FieldReader& fields) {
  RerankCall call;
  call.rerank.options.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  call.rerank.query = fields.required_text("query", {.min = 1});
  call.rerank.documents = documents_field(fields);
  call.rerank.top_n = static_cast<std::int32_t>(fields.integer("top_n", 1, kInt32Max).value_or(0));
  call.returns_documents = fields.boolean("return_documents").value_or(false);
  return call;
}

// Our options of a body: read(own) takes them from "uma".
template <class ReadT>
void read_own(FieldReader& fields, ReadT&& read) {
  const json::object* object = fields.object("uma");
  if (object == nullptr) return;
  FieldReader own(*object, "uma.");
  read(own);
  if (!own.ok()) fields.fail_as(own);
}

// --- answers

void append_vector(std::string& out, std::span<const float> vector, VectorEncoding encoding) {
  static_assert(std::endian::native == std::endian::little);
  if (encoding == VectorEncoding::numbers) {
    append_json_array(out, vector, [&](float value) { append_json_float(out, value); });
    return;
  }
  out += '"';
  append_base64(out, std::as_bytes(vector));
  out += '"';
}

void write_token_usage(ObjectWriter& parent, std::int64_t tokens) {
  ObjectWriter usage(parent.begin("usage"));
  usage.field("prompt_tokens", tokens);
  usage.field("total_tokens", tokens);
  usage.close();
}

void write_scores(ObjectWriter& parent, std::string_view score_name, const RerankResult& result, const RerankCall& call) {
  std::string& out = parent.begin("results");
  append_json_array(out, result.scores, [&](const RerankScore& score) {
    ObjectWriter object(out);
    object.field("index", score.index);
    append_json_float(object.begin(score_name), score.score);
    if (call.returns_documents) {
      ObjectWriter document(object.begin("document"));
      document.field("text", call.rerank.documents[score.index]);
      document.close();
    }
    object.close();
  });
}

}  // namespace

EmbeddingCall read_embed(FieldReader& fields) {
  EmbeddingCall call = read_embedding_call(fields, "texts");
  read_embed_options(fields, call.embed);
  return call;
}

RerankCall read_rerank(FieldReader& fields) {
  RerankCall call = read_rerank_call(fields);
  read_options(fields, call.rerank.options, /*can_chunk=*/false);
  return call;
}

std::expected<EmbeddingCall, RejectedBody> decode_embeddings(std::string_view body) {
  return decode_body<EmbeddingCall>(body, [](FieldReader& fields) {
    EmbeddingCall call = read_embedding_call(fields, "input");
    read_own(fields, [&](FieldReader& own) { read_embed_options(own, call.embed); });
    return call;
  });
}

std::expected<RerankCall, RejectedBody> decode_rerank(std::string_view body) {
  return decode_body<RerankCall>(body, [](FieldReader& fields) {
    RerankCall call = read_rerank_call(fields);
    read_own(fields, [&](FieldReader& own) { read_options(own, call.rerank.options, /*can_chunk=*/false); });
    return call;
  });
}

void append_embedding(std::string& out, const FrameHead& head, const EmbedResult& result, VectorEncoding encoding) {
  const std::size_t start = begin_frame(out);
  ObjectWriter object(out, head.bytes());
  object.field("event", "embedding");
  object.begin("embeddings") += '[';
  for (std::size_t i = 0; i < result.count(); ++i) {
    if (i > 0) out += ',';
    append_vector(out, result.vector(i), encoding);
  }
  out += ']';
  object.field("model", result.model);
  object.field("dimensions", result.dimensions);
  write_token_usage(object, result.tokens);
  object.close();
  end_frame(out, start);
}

void append_rerank(std::string& out, const FrameHead& head, const RerankResult& result, const RerankCall& call) {
  const std::size_t start = begin_frame(out);
  ObjectWriter object(out, head.bytes());
  object.field("event", "rerank");
  write_scores(object, "score", result, call);
  object.field("model", result.model);
  write_token_usage(object, result.tokens);
  object.close();
  end_frame(out, start);
}

std::string embeddings_json(const EmbedResult& result, VectorEncoding encoding) {
  std::string out;
  ObjectWriter object(out);
  object.field("object", "list");
  object.begin("data") += '[';
  for (std::size_t i = 0; i < result.count(); ++i) {
    if (i > 0) out += ',';
    ObjectWriter entry(out);
    entry.field("object", "embedding");
    entry.field("index", i);
    append_vector(entry.begin("embedding"), result.vector(i), encoding);
    entry.close();
  }
  out += ']';
  object.field("model", result.model);
  write_token_usage(object, result.tokens);
  object.close();
  return out;
}

std::string rerank_json(const RerankResult& result, const RerankCall& call) {
  std::string out;
  ObjectWriter object(out);
  object.field("object", "list");
  object.field("model", result.model);
  write_scores(object, "relevance_score", result, call);
  write_token_usage(object, result.tokens);
  object.close();
  return out;
}

}  // namespace uma::wire
