// /v1/embeddings and /v1/rerank.
#include <optional>
#include <utility>

#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "wire/embedding_codec.h"

namespace uma::server {
namespace {

Error stopping() {
  return {ErrorCode::limit_wait, "the daemon is stopping and accepts no new requests"};
}

// Like HttpConnection::ask(), for a start(reply) that returns an id: the request is cancelled if the client leaves.
template <class T, class StartT>
Awaitable<std::optional<Expected<T>>> ask_with_id(HttpConnection& connection, StartT start) {
  RequestId id;
  auto answer = co_await connection.ask_until_gone<T>([&](Reply<T> reply) { id = start(std::move(reply)); });
  if (!answer) connection.service().cancel(id, [](Expected<bool>) {});
  co_return answer;
}

}  // namespace

handlers::Answer handlers::create_embeddings(HttpConnection& connection, const HttpRequest& request) {
  auto call = wire::decode_embeddings(request.body);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping(), false);
  call->embed.options.model = connection.choose_model(call->embed.options.model, Capability::text_embedding);
  auto result = co_await ask_with_id<EmbedResult>(connection, [&](Reply<EmbedResult> reply) {
    call->embed.options.client = connection.client();
    return connection.service().embed(connection.tenant(), std::move(call->embed), std::move(reply));
  });
  if (result && *result) connection.charge(result->value().tokens);
  co_return co_await connection.respond_with(
      std::move(result), request, [&](const EmbedResult& embedded) { return wire::embeddings_json(embedded, call->encoding); });
}

handlers::Answer handlers::create_rerank(HttpConnection& connection, const HttpRequest& request) {
  auto call = wire::decode_rerank(request.body);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping(), false);
  call->rerank.options.model = connection.choose_model(call->rerank.options.model, Capability::rerank);
  auto result = co_await ask_with_id<RerankResult>(connection, [&](Reply<RerankResult> reply) {
    call->rerank.options.client = connection.client();
    return connection.service().rerank(connection.tenant(), call->rerank, std::move(reply));
  });
  if (result && *result) connection.charge(result->value().tokens);
  co_return co_await connection.respond_with(std::move(result), request,
                                             [&](const RerankResult& ranked) { return wire::rerank_json(ranked, *call); });
}

}  // namespace uma::server
