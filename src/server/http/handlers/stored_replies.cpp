#include "server/http/handlers/stored_replies.h"

#include <format>
#include <utility>

#include "core/capability.h"
#include "core/service.h"
#include "server/http/http_connection.h"
#include "wire/ollama/ollama_models.h"

namespace uma::server {

Awaitable<std::optional<Expected<ResponseDetail>>> ask_for_response(HttpConnection& connection, wire::ResponseId id) {
  co_return co_await connection.ask<ResponseDetail>([&](Promise<ResponseDetail> reply) {
    connection.service().get_response(connection.tenant(), std::move(id.session), std::move(id.response), std::move(reply));
  });
}

void keep_model_of_session(HttpConnection& connection, std::string& asked) {
  const Service& service = connection.service();
  const std::string plain(wire::without_latest_tag(asked));
  if (asked.empty() || service.resolve_model(plain) || !service.choose_model(plain, Capability::chat)) return;
  connection.warn(std::format("model {} is unknown here; the model of the conversation answers", asked));
  asked.clear();
}

}  // namespace uma::server
