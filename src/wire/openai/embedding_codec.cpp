#include "wire/openai/embedding_codec.h"

#include <bit>
#include <format>
#include <span>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include "base/base64.h"
#include "json/json_writer.h"
#include "wire/generate_fields.h"
#include "wire/image_fields.h"
#include "wire/own/request_codec.h"
#include "wire/request_fields.h"

namespace uma::wire {
namespace {

// --- requests

void check_count(json::FieldReader& fields, std::string_view name, std::size_t count) {
  if (count == 0) fields.fail_field(name, "must contain at least one text");
  if (count > kEmbedInputsMax)
    fields.fail_field(name, std::format("has {} inputs, but the limit is {}", count, kEmbedInputsMax));
}

std::vector<Token> tokens_of(json::FieldReader& fields, const std::string& name, const boost::json::array& array) {
  std::vector<Token> tokens;
  tokens.reserve(array.size());
  if (array.empty()) fields.fail_field(name, "must not be empty");
  for (const boost::json::value& value : array) {
    if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > json::kInt32Max) {
      fields.fail_field(name, "must contain token ids: integers from 0");
      break;
    }
    tokens.push_back(static_cast<Token>(value.get_int64()));
  }
  return tokens;
}

// Reads the inputs of a request for embeddings: a text, tokens or a part of a content, or an array of texts, tokens, parts, and
// arrays of parts. A part is {type: "text", text}, or an image or clip (image_part).
class InputsReader {
 public:
  InputsReader(json::FieldReader& fields, std::string_view name, EmbedRequest& request)
      : fields_(fields), name_(name), request_(request) {}

  void read() {
    const boost::json::value* field = fields_.find(name_);
    if (field == nullptr || field->is_string()) {
      request_.inputs.emplace_back(fields_.required_text(name_, {.min = 1}));
    } else if (field->is_object()) {
      add_parts(name_, std::span(field, 1));
    } else if (const boost::json::array* array = field->if_array()) {
      read_array(*array);
    } else {
      fields_.fail_field(name_, "must be a text, a part such as {\"type\": \"text\", \"text\": ...}, or an array of these");
    }
    if (request_.images.size() > kImagesPerRequestMax) {
      fields_.fail_field(
          name_, std::format("has {} images and clips, but the limit is {}", request_.images.size(), kImagesPerRequestMax));
    }
  }

 private:
  void read_array(const boost::json::array& array) {
    if (!array.empty() && array.front().is_number()) {
      request_.inputs.emplace_back(tokens_of(fields_, name_, array));
      return;
    }
    check_count(fields_, name_, array.size());
    for (std::size_t i = 0; i < array.size() && fields_.ok(); ++i) {
      const std::string element = std::format("{}[{}]", name_, i);
      const boost::json::array* inner = array[i].if_array();
      if (array[i].is_object()) {
        add_parts(element, std::span(&array[i], 1));
      } else if (inner != nullptr && !inner->empty() && inner->front().is_object()) {
        add_parts(element, *inner);
      } else if (inner != nullptr) {
        request_.inputs.emplace_back(tokens_of(fields_, element, *inner));
      } else {
        request_.inputs.emplace_back(fields_.checked_text(element, array[i], {.min = 1}).value_or(""));
      }
    }
  }

  // Adds an input that consists of these parts.
  void add_parts(const std::string& field, std::span<const boost::json::value> parts) {
    const std::size_t images_before = request_.images.size();
    std::string text;
    for (std::size_t i = 0; i < parts.size() && fields_.ok(); ++i) {
      add_part(parts.size() == 1 ? field : std::format("{}[{}]", field, i), parts[i], text);
    }
    if (fields_.ok() && text.empty() && request_.images.size() == images_before) {
      fields_.fail_field(field, "must not be empty");
    }
    request_.inputs.emplace_back(std::move(text));
  }

  void add_part(const std::string& field, const boost::json::value& value, std::string& text) {
    const boost::json::object* object = value.if_object();
    if (object == nullptr) return fields_.fail_field(field, "must be an object, a part of the input");
    json::FieldReader part(*object, field + ".");
    if (part.text("type").value_or("") == "text") {
      text += part.required_text("text");
    } else if (auto image = image_part(part)) {
      request_.images.push_back(
          {.message = request_.inputs.size(), .at = text.size(), .source = std::move(*image), .field = field});
    } else {
      part.fail_field("type", R"(must be "text", "image_url", "image" or "input_audio", with its content)");
    }
    if (!part.ok()) fields_.fail_as(part);
  }

  json::FieldReader& fields_;
  const std::string name_;
  EmbedRequest& request_;
};

// Reads an array of texts, or of objects with a text.
std::vector<std::string> documents_field(json::FieldReader& fields) {
  std::vector<std::string> documents;
  const boost::json::array* array = fields.array("documents");
  if (array == nullptr) {
    fields.fail_field("documents", "is required");
    return documents;
  }
  check_count(fields, "documents", array->size());
  for (std::size_t i = 0; i < array->size() && fields.ok(); ++i) {
    const boost::json::value& value = (*array)[i];
    if (const boost::json::object* object = value.if_object()) {
      json::FieldReader inner(*object, std::format("documents[{}].", i));
      documents.push_back(inner.required_text("text"));
      if (!inner.ok()) fields.fail_as(inner);
    } else {
      documents.push_back(fields.checked_text(std::format("documents[{}]", i), value, {}).value_or(""));
    }
  }
  return documents;
}

// Reads umad's extensions that embeddings and reranking share; an absent field leaves its value unchanged.
void read_options(json::FieldReader& fields, TextOptions& options, bool can_chunk) {
  if (const auto long_input = fields.text("long_input")) {
    if (*long_input == "refuse") {
      options.long_input = LongInput::refuse;
    } else if (*long_input == "truncate") {
      options.long_input = LongInput::truncate;
    } else if (*long_input == "chunk" && can_chunk) {
      options.long_input = LongInput::chunk;
    } else {
      fields.fail_field("long_input",
                        can_chunk ? R"(must be "refuse", "truncate" or "chunk")" : R"(must be "refuse" or "truncate")");
    }
  }
  if (fields.find("class") != nullptr) options.request_class = class_field(fields);
  if (const auto deadline = fields.integer("deadline_ms", 0, kTimeMsMax)) options.deadline_ms = deadline;
}

void read_embed_options(json::FieldReader& fields, EmbedRequest& request) {
  read_options(fields, request.options, /*can_chunk=*/true);
  if (auto task = fields.text("task")) request.task = *std::move(task);
  // llama-server's number of the norm: -1 is none, 2 the Euclidean one.
  if (const auto norm = fields.integer("embd_normalize", std::numeric_limits<std::int32_t>::min(), json::kInt32Max)) {
    if (*norm != -1 && *norm != 2) fields.fail_field("embd_normalize", "must be -1 (no scaling) or 2 (length 1)");
    request.normalize = *norm == 2;
  }
  if (const auto normalize = fields.boolean("normalize")) request.normalize = *normalize;
}

EmbeddingCall read_embedding_call(json::FieldReader& fields, std::string_view inputs_name) {
  EmbeddingCall call;
  call.embed.options.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  InputsReader(fields, inputs_name, call.embed).read();
  for (const std::string_view name : {"output_dimension", "dimensions"}) {
    if (const auto count = fields.integer(name, 1, json::kInt32Max)) call.embed.dimensions = static_cast<std::int32_t>(*count);
  }
  const std::string encoding = fields.text("encoding_format").value_or("float");
  if (encoding == "base64") {
    call.encoding = VectorEncoding::base64;
  } else if (encoding != "float") {
    fields.fail_field("encoding_format", R"(must be "float" or "base64")");
  }
  return call;
}

RerankCall read_rerank_call(json::FieldReader& fields) {
  RerankCall call;
  call.rerank.options.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  call.rerank.query = fields.required_text("query", {.min = 1});
  call.rerank.documents = documents_field(fields);
  call.rerank.top_n = static_cast<std::int32_t>(fields.integer("top_n", 1, json::kInt32Max).value_or(0));
  call.returns_documents = fields.boolean("return_documents").value_or(false);
  return call;
}

// Reads umad's extensions of a body: read(own) takes them from its top level, and from "uma", which counts if both have one.
template <class ReadT>
void read_own(json::FieldReader& fields, ReadT&& read) {
  read(fields);
  const boost::json::object* object = fields.object("uma");
  if (object == nullptr) return;
  json::FieldReader own(*object, "uma.");
  read(own);
  if (!own.ok()) fields.fail_as(own);
}

// --- answers

void append_vector(std::string& out, std::span<const float> vector, VectorEncoding encoding) {
  static_assert(std::endian::native == std::endian::little);
  if (encoding == VectorEncoding::numbers) {
    json::append_array(out, vector, [&](float value) { json::append_float(out, value); });
    return;
  }
  out += '"';
  append_base64(out, std::as_bytes(vector));
  out += '"';
}

void write_token_usage(json::ObjectWriter& parent, std::int64_t tokens) {
  json::ObjectWriter usage(parent.begin("usage"));
  usage.field("prompt_tokens", tokens);
  usage.field("total_tokens", tokens);
  usage.close();
}

void write_scores(json::ObjectWriter& parent, std::string_view score_name, const RerankResult& result, const RerankCall& call) {
  std::string& out = parent.begin("results");
  json::append_array(out, result.scores, [&](const RerankScore& score) {
    json::ObjectWriter object(out);
    object.field("index", score.index);
    json::append_float(object.begin(score_name), score.score);
    if (call.returns_documents) {
      json::ObjectWriter document(object.begin("document"));
      document.field("text", call.rerank.documents[score.index]);
      document.close();
    }
    object.close();
  });
}

}  // namespace

EmbeddingCall read_embed(json::FieldReader& fields) {
  EmbeddingCall call = read_embedding_call(fields, "texts");
  read_embed_options(fields, call.embed);
  return call;
}

RerankCall read_rerank(json::FieldReader& fields) {
  RerankCall call = read_rerank_call(fields);
  read_options(fields, call.rerank.options, /*can_chunk=*/false);
  return call;
}

std::expected<EmbeddingCall, RejectedBody> decode_embeddings(std::string_view body) {
  return decode_request<EmbeddingCall>(RequestRoute::embeddings, body, [](json::FieldReader& fields) {
    EmbeddingCall call = read_embedding_call(fields, "input");
    read_own(fields, [&](json::FieldReader& own) { read_embed_options(own, call.embed); });
    return call;
  });
}

std::expected<RerankCall, RejectedBody> decode_rerank(std::string_view body) {
  return decode_request<RerankCall>(RequestRoute::rerank, body, [](json::FieldReader& fields) {
    RerankCall call = read_rerank_call(fields);
    read_own(fields, [&](json::FieldReader& own) { read_options(own, call.rerank.options, /*can_chunk=*/false); });
    return call;
  });
}

void append_embedding(std::string& out, const FrameHead& head, const EmbedResult& result, VectorEncoding encoding) {
  append_reply(out, head, "embedding", [&](json::ObjectWriter& object) {
    object.begin("embeddings") += '[';
    for (std::size_t i = 0; i < result.count(); ++i) {
      if (i > 0) out += ',';
      append_vector(out, result.vector(i), encoding);
    }
    out += ']';
    object.field("model", result.model);
    object.field("dimensions", result.dimensions);
    write_token_usage(object, result.tokens);
  });
}

void append_rerank(std::string& out, const FrameHead& head, const RerankResult& result, const RerankCall& call) {
  append_reply(out, head, "rerank", [&](json::ObjectWriter& object) {
    write_scores(object, "score", result, call);
    object.field("model", result.model);
    write_token_usage(object, result.tokens);
  });
}

std::string embeddings_json(const EmbedResult& result, VectorEncoding encoding) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("object", "list");
  object.begin("data") += '[';
  for (std::size_t i = 0; i < result.count(); ++i) {
    if (i > 0) out += ',';
    json::ObjectWriter entry(out);
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
  json::ObjectWriter object(out);
  object.field("object", "list");
  object.field("model", result.model);
  write_scores(object, "relevance_score", result, call);
  write_token_usage(object, result.tokens);
  object.close();
  return out;
}

}  // namespace uma::wire
