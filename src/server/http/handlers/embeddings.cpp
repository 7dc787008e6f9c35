// /v1/embeddings, /v1/images/embeddings and /v1/rerank; of Ollama's API /api/embed and /api/embeddings.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "wire/image_fields.h"
#include "wire/ollama/ollama_decoder.h"
#include "wire/ollama/ollama_encoder.h"
#include "wire/ollama/ollama_models.h"
#include "wire/openai/embedding_codec.h"

namespace uma::server {
namespace {

// Charged for the vectors that a request asks for and for their JSON, as far as the size of a vector is known, so that nothing
// is computed whose answer there is no room for; null: they are few, or the size is not known yet.
Expected<RequestShare> hold_vectors(HttpConnection& connection, const std::string& model, std::size_t count,
                                    std::int32_t dimensions_asked) {
  if (count <= 1) return RequestShare();
  const std::vector<ModelInfo> models = connection.service().models();
  const auto info = std::ranges::find(models, model, &ModelInfo::name);
  if (info == models.end()) return RequestShare();
  const std::int32_t own = info->dimensions > 0 ? info->dimensions : info->file.embedding_length;
  const std::int32_t dimensions = dimensions_asked > 0 ? std::min(dimensions_asked, own) : own;
  const std::size_t bytes = count * static_cast<std::size_t>(dimensions) * (sizeof(float) + kNumberBytes);
  if (bytes <= kApartBytes) return RequestShare();
  return connection.hold(bytes);
}

// The vectors of a request; nullopt if the client left. Charges their tokens.
Awaitable<std::optional<Expected<EmbedResult>>> embed_for(HttpConnection& connection, EmbedRequest embed) {
  auto result = co_await connection.ask_cancelling<EmbedResult>([&](Promise<EmbedResult> reply) {
    embed.options.client = connection.client();
    return connection.service().embed(connection.tenant(), std::move(embed), std::move(reply));
  });
  if (result && *result) connection.charge(result->value().tokens);
  co_return result;
}

// A request, and what its answer repeats of it.
struct RerankRead {
  RerankRequest asked;
  wire::RerankCall repeated;  // Without documents, unless they are wanted.
};

std::expected<RerankRead, wire::RejectedBody> decode_rerank(std::string_view body) {
  auto call = wire::decode_rerank(body);
  if (!call) return std::unexpected(std::move(call.error()));
  RerankRead read{.asked = std::move(call->rerank), .repeated = *std::move(call)};
  read.repeated.rerank = {};
  if (read.repeated.returns_documents) read.repeated.rerank.documents = read.asked.documents;
  return read;
}

using DecodeOllamaEmbed = std::expected<wire::OllamaEmbedCall, wire::RejectedBody> (*)(std::string_view body);
using OllamaEmbedJson = std::string (*)(const EmbedResult& result, std::string_view model, Duration took);

handlers::Answer answer_ollama_embed(HttpConnection& connection, const HttpRequest& request, DecodeOllamaEmbed decode,
                                     OllamaEmbedJson json) {
  const TimePoint began = SteadyClock().now();
  auto call = co_await connection.read_body(request.body, decode);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  connection.warn(call->warnings);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping_error(), false);
  const std::string asked = call->embed.options.model;
  // Without a text the request loads the model, which takes registered names only.
  const std::string plain(wire::without_latest_tag(asked));
  const std::string model = call->is_empty ? connection.service().resolve_model(plain).value_or(plain)
                                           : connection.choose_model(asked, Capability::text_embedding);
  auto share = hold_vectors(connection, model, call->embed.inputs.size(), call->embed.dimensions);
  if (!share) co_return co_await connection.respond_failed(share.error(), request);
  std::optional<Expected<EmbedResult>> result;
  if (call->is_empty) {
    const auto loaded =
        co_await connection.ask<Unit>([&](Promise<Unit> reply) { connection.service().load_model(model, std::move(reply)); });
    if (loaded) result = loaded->transform([](Unit) { return EmbedResult(); });
  } else {
    call->embed.options.model = model;
    result = co_await embed_for(connection, std::move(call->embed));
  }
  const Duration took = SteadyClock().now() - began;
  co_return co_await connection.respond_with(
      std::move(result), request,
      [json, took, name = asked.empty() ? model : asked](const EmbedResult& embedded) { return json(embedded, name, took); },
      answer_bytes, {.share = *std::move(share)});
}

}  // namespace

handlers::Answer handlers::create_embeddings(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await connection.read_body(request.body, wire::decode_embeddings);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  connection.warn(call->warnings);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping_error(), false);
  call->embed.options.model = connection.choose_model(call->embed.options.model, Capability::text_embedding);
  auto share = hold_vectors(connection, call->embed.options.model, call->embed.inputs.size(), call->embed.dimensions);
  if (!share) co_return co_await connection.respond_failed(share.error(), request);
  auto result = co_await embed_for(connection, std::move(call->embed));
  co_return co_await connection.respond_with(
      std::move(result), request,
      [encoding = call->encoding](const EmbedResult& embedded) { return wire::embeddings_json(embedded, encoding); },
      answer_bytes, {.share = *std::move(share)});
}

handlers::Answer handlers::embed_images(HttpConnection& connection, const HttpRequest& request) {
  auto asked = co_await connection.read_body(request.body, [](std::string_view body) {
    return wire::decode_body<EmbedImagesRequest>(body, wire::embed_images_fields);
  });
  if (!asked) co_return co_await connection.respond_rejected(asked.error(), request);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping_error(), false);
  const std::string model = connection.choose_model(asked->options.model, Capability::vision);
  asked->options.model = model;
  auto share = hold_vectors(connection, model, asked->images.size(), /*dimensions_asked=*/0);
  if (!share) co_return co_await connection.respond_failed(share.error(), request);
  auto made = co_await connection.ask_cancelling<ImageEmbeddings>([&](Promise<ImageEmbeddings> reply) {
    asked->options.client = connection.client();
    return connection.service().embed_images(connection.tenant(), std::move(*asked), std::move(reply));
  });
  if (made && *made) connection.charge((*made)->rows);
  co_return co_await connection.respond_with(
      std::move(made), request,
      [model](const ImageEmbeddings& embeddings) { return wire::image_embeddings_json(embeddings, model); }, answer_bytes,
      {.share = *std::move(share)});
}

handlers::Answer handlers::create_rerank(HttpConnection& connection, const HttpRequest& request) {
  auto read = co_await connection.read_body(request.body, [](std::string_view body) { return decode_rerank(body); });
  if (!read) co_return co_await connection.respond_rejected(read.error(), request);
  connection.warn(read->repeated.warnings);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping_error(), false);
  const std::size_t bytes = answer_bytes(read->repeated, read->asked.documents.size());
  auto share = connection.hold(2 * bytes);  // The documents, and the body that repeats them.
  if (!share) co_return co_await connection.respond_failed(share.error(), request);
  read->asked.options.model = connection.choose_model(read->asked.options.model, Capability::rerank);
  auto result = co_await connection.ask_cancelling<RerankResult>([&](Promise<RerankResult> reply) {
    read->asked.options.client = connection.client();
    return connection.service().rerank(connection.tenant(), std::move(read->asked), std::move(reply));
  });
  if (result && *result) connection.charge(result->value().tokens);
  co_return co_await connection.respond_with(
      std::move(result), request,
      [call = std::move(read->repeated)](const RerankResult& ranked) { return wire::rerank_json(ranked, call); }, nullptr,
      {.bytes = bytes, .share = *std::move(share)});
}

handlers::Answer handlers::ollama_embed(HttpConnection& connection, const HttpRequest& request) {
  return answer_ollama_embed(connection, request, wire::decode_ollama_embed, wire::ollama_embed_json);
}

handlers::Answer handlers::ollama_embeddings(HttpConnection& connection, const HttpRequest& request) {
  return answer_ollama_embed(connection, request, wire::decode_ollama_embeddings, wire::ollama_embeddings_json);
}

}  // namespace uma::server
