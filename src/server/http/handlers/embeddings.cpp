// /v1/embeddings, /v1/images/embeddings and /v1/rerank; of Ollama's API /api/embed and /api/embeddings.
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

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

// The vectors of a request; nullopt if the client left. Charges their tokens.
Awaitable<std::optional<Expected<EmbedResult>>> embed_for(HttpConnection& connection, EmbedRequest embed) {
  auto result = co_await connection.ask_cancelling<EmbedResult>([&](Promise<EmbedResult> reply) {
    embed.options.client = connection.client();
    return connection.service().embed(connection.tenant(), std::move(embed), std::move(reply));
  });
  if (result && *result) connection.charge(result->value().tokens);
  co_return result;
}

constexpr std::size_t kNumberBytes = 12;  // Size of a number of a vector in JSON.

std::size_t json_bytes(const EmbedResult& result) {
  return result.values.size() * kNumberBytes;
}

std::size_t json_bytes(const ImageEmbeddings& result) {
  std::size_t numbers = 0;
  for (const std::vector<float>& each : result.embeddings) numbers += each.size();
  return numbers * kNumberBytes;
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
      json_bytes);
}

}  // namespace

handlers::Answer handlers::create_embeddings(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await connection.read_body(request.body, wire::decode_embeddings);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  connection.warn(call->warnings);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping_error(), false);
  call->embed.options.model = connection.choose_model(call->embed.options.model, Capability::text_embedding);
  auto result = co_await embed_for(connection, std::move(call->embed));
  co_return co_await connection.respond_with(
      std::move(result), request,
      [encoding = call->encoding](const EmbedResult& embedded) { return wire::embeddings_json(embedded, encoding); },
      json_bytes);
}

handlers::Answer handlers::embed_images(HttpConnection& connection, const HttpRequest& request) {
  auto asked = co_await connection.read_body(request.body, [](std::string_view body) {
    return wire::decode_body<EmbedImagesRequest>(body, wire::embed_images_fields);
  });
  if (!asked) co_return co_await connection.respond_rejected(asked.error(), request);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping_error(), false);
  const std::string model = connection.choose_model(asked->options.model, Capability::vision);
  asked->options.model = model;
  auto made = co_await connection.ask_cancelling<ImageEmbeddings>([&](Promise<ImageEmbeddings> reply) {
    asked->options.client = connection.client();
    return connection.service().embed_images(connection.tenant(), std::move(*asked), std::move(reply));
  });
  if (made && *made) connection.charge((*made)->rows);
  co_return co_await connection.respond_with(
      std::move(made), request,
      [model](const ImageEmbeddings& embeddings) { return wire::image_embeddings_json(embeddings, model); }, json_bytes);
}

handlers::Answer handlers::create_rerank(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await connection.read_body(request.body, wire::decode_rerank);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  connection.warn(call->warnings);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping_error(), false);
  call->rerank.options.model = connection.choose_model(call->rerank.options.model, Capability::rerank);
  auto result = co_await connection.ask_cancelling<RerankResult>([&](Promise<RerankResult> reply) {
    call->rerank.options.client = connection.client();
    return connection.service().rerank(connection.tenant(), call->rerank, std::move(reply));
  });
  if (result && *result) connection.charge(result->value().tokens);
  co_return co_await connection.respond_with(std::move(result), request,
                                             [&](const RerankResult& ranked) { return wire::rerank_json(ranked, *call); });
}

handlers::Answer handlers::ollama_embed(HttpConnection& connection, const HttpRequest& request) {
  return answer_ollama_embed(connection, request, wire::decode_ollama_embed, wire::ollama_embed_json);
}

handlers::Answer handlers::ollama_embeddings(HttpConnection& connection, const HttpRequest& request) {
  return answer_ollama_embed(connection, request, wire::decode_ollama_embeddings, wire::ollama_embeddings_json);
}

}  // namespace uma::server
