// Embeddings and reranking: the frames of the Unix socket, and over HTTP OpenAI's embeddings and the rerank API of Jina and
// Cohere. docs/protocol/openai.md lists the fields.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "core/embedding.h"
#include "json/field_reader.h"
#include "wire/json_body.h"
#include "wire/own/event_codec.h"

namespace uma::wire {

enum class VectorEncoding : std::uint8_t {
  numbers,
  base64,  // Base64 of 32-bit floats, little-endian.
};

struct EmbeddingCall {
  EmbedRequest embed;
  VectorEncoding encoding = VectorEncoding::numbers;
  std::vector<std::string> warnings{};  // A few sentences about what is not served in every point.
};

struct RerankCall {
  RerankRequest rerank;
  bool returns_documents = false;
  std::vector<std::string> warnings{};
};

// Decodes the fields of a frame.
[[nodiscard]] EmbeddingCall read_embed(json::FieldReader& fields);
[[nodiscard]] RerankCall read_rerank(json::FieldReader& fields);
// Decodes an HTTP body. Pure.
[[nodiscard]] std::expected<EmbeddingCall, RejectedBody> decode_embeddings(std::string_view body);
[[nodiscard]] std::expected<RerankCall, RejectedBody> decode_rerank(std::string_view body);

void append_embedding(std::string& out, const FrameHead& head, const EmbedResult& result, VectorEncoding encoding);
// `call` is the request, whose documents are repeated.
void append_rerank(std::string& out, const FrameHead& head, const RerankResult& result, const RerankCall& call);
[[nodiscard]] std::string embeddings_json(const EmbedResult& result, VectorEncoding encoding);
[[nodiscard]] std::string rerank_json(const RerankResult& result, const RerankCall& call);

}  // namespace uma::wire
