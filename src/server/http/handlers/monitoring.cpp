// Models, health, metrics and the trace of the daemon.
#include "wire/own/monitoring.h"

#include <algorithm>
#include <chrono>
#include <format>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/trace.h"
#include "core/model_library.h"
#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "wire/ollama/ollama_models.h"
#include "wire/openai/openai_codec.h"
#include "wire/own/metrics_codec.h"
#include "wire/own/trace_json.h"
#include "wire/query.h"

namespace uma::server {

handlers::Answer handlers::list_models(HttpConnection& connection, const HttpRequest& request) {
  const ModelLibrary* const library = connection.server().options.library;
  std::optional<std::vector<PullInProgress>> pulls;
  if (library != nullptr && connection.is_administrator()) pulls = library->pulls();
  using Models = std::vector<ModelInfo>;
  return connection.respond_with<Models>(
      Expected<Models>(wire::with_adapters(connection.service().models())), request,
      [pulls = std::move(pulls), started_s = connection.server().started_s](const Models& models) {
        return wire::models_json(models, started_s, pulls ? &*pulls : nullptr);
      },
      nullptr, {.has_etag = true});
}

handlers::Answer handlers::get_model(HttpConnection& connection, const HttpRequest& request) {
  const std::vector<ModelInfo> models = wire::with_adapters(connection.service().models());
  const std::string& asked = request.ids.at(0);
  auto model = std::ranges::find(models, asked, &ModelInfo::name);
  if (model == models.end()) {
    const auto known = connection.service().resolve_model(std::string(wire::without_latest_tag(asked)));
    if (!known) co_return co_await connection.respond_error(404, known.error(), request.keep_alive);
    model = std::ranges::find(models, *known, &ModelInfo::name);
    if (model == models.end()) {
      co_return co_await connection.respond_error(404, {ErrorCode::model_unknown, "no such model"}, request.keep_alive);
    }
  }
  co_return co_await connection.respond(200, kJson, wire::model_json(*model, connection.server().started_s),
                                        request.keep_alive);
}

handlers::Answer handlers::get_health(HttpConnection& connection, const HttpRequest& request) {
  const MetricsSnapshot metrics = connection.service().metrics();
  const std::vector<ModelInfo> models = connection.service().models();
  const ModelState state = models.empty() ? ModelState::loading : models.front().state;
  return connection.respond(wire::is_healthy(metrics, state) ? 200 : 503, kJson, wire::health_json(metrics, state),
                            request.keep_alive);
}

handlers::Answer handlers::get_readiness(HttpConnection& connection, const HttpRequest& request) {
  const std::string database = wire::query_value(request.query, "database");
  if (!database.empty() && database != "required" && database != "optional") {
    co_return co_await connection.respond_error(
        400, {ErrorCode::proto_field, R"(parameter "database": it is "required" or "optional")", "database"},
        request.keep_alive);
  }
  std::string_view reason;
  if (connection.server().is_leaving || connection.server().draining) {
    reason = "stopping";
  } else if (!connection.service().is_ready()) {
    reason = "model";
  } else if (database == "required" && connection.service().metrics().catalog_reachable == 0) {
    reason = "database";
  }
  if (reason.empty()) co_return co_await connection.respond(200, kJson, R"({"status":"ready"})", request.keep_alive);
  co_return co_await connection.respond(503, kJson, std::format(R"({{"status":"not ready","reason":"{}"}})", reason),
                                        request.keep_alive);
}

handlers::Answer handlers::get_metrics(HttpConnection& connection, const HttpRequest& request) {
  return connection.respond(200, "text/plain; version=0.0.4", wire::metrics_text(connection.service().metrics()),
                            request.keep_alive);
}

handlers::Answer handlers::get_trace(HttpConnection& connection, const HttpRequest& request) {
  const auto seconds = wire::query_number(request.query, "seconds", wire::kTraceDefault.count(), 1, wire::kTraceMax.count());
  if (!seconds) co_return co_await connection.respond_error(400, seconds.error(), request.keep_alive);
  std::string body;
  wire::append_trace(body, read_trace(SteadyClock().now() - std::chrono::seconds(*seconds), wire::kTraceSpansMax));
  co_return co_await connection.respond(200, kJson, body, request.keep_alive);
}

}  // namespace uma::server
