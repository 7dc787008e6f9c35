// /v1/images/embeddings.
#include <stop_token>
#include <utility>

#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "wire/image_fields.h"

namespace uma::server {

handlers::Answer handlers::embed_images(HttpConnection& connection, const HttpRequest& request) {
  auto asked = wire::decode_body<EmbedImagesRequest>(request.body, wire::embed_images_fields);
  if (!asked) co_return co_await connection.respond_rejected(asked.error(), request);
  const std::string model = connection.choose_model(asked->model, Capability::vision);
  asked->model = model;
  std::stop_source end;
  asked->end = end.get_token();
  auto made = co_await connection.ask_until_gone<ImageEmbeddings>([&](Reply<ImageEmbeddings> reply) {
    connection.service().embed_images(connection.tenant(), std::move(*asked), std::move(reply));
  });
  if (!made) (void)end.request_stop();
  if (made && *made) connection.charge((*made)->rows);
  co_return co_await connection.respond_with(
      std::move(made), request, [&](const ImageEmbeddings& embeddings) -> std::expected<std::string, wire::RejectedBody> {
        return wire::image_embeddings_json(embeddings, model);
      });
}

}  // namespace uma::server
