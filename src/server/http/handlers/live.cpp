// The live view of the daemon, as server-sent events.
#include <chrono>
#include <format>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/http_connection.h"
#include "server/http/key_ring.h"
#include "server/http/routes.h"
#include "server/http/rules.h"
#include "server/live_feed.h"
#include "wire/own/live_json.h"
#include "wire/query.h"

namespace uma::server {
namespace {

Expected<wire::LiveRequest> live_request(std::string_view query) {
  using wire::LiveRequest;
  LiveRequest request;
  const auto interval = wire::query_number(query, "interval_ms", request.interval.count(), LiveRequest::kIntervalMin.count(),
                                           LiveRequest::kIntervalMax.count());
  if (!interval) return std::unexpected(interval.error());
  const auto history = wire::query_number(query, "history_s", request.history.count(), 0, LiveRequest::kHistoryMax.count());
  if (!history) return std::unexpected(history.error());
  request.interval = std::chrono::milliseconds(*interval);
  request.history = std::chrono::seconds(*history);
  return request;
}

void append_event(std::string& out, std::string_view name, std::string_view json) {
  if (!json.empty()) out += std::format("event: {}\ndata: {}\n\n", name, json);
}

}  // namespace

handlers::Answer handlers::watch_daemon(HttpConnection& connection, const HttpRequest& request) {
  const auto wanted = live_request(request.query);
  if (!wanted) co_return co_await connection.respond_error(400, wanted.error(), request.keep_alive);
  LiveFeed* const live = connection.server().options.live;
  auto watcher =
      live == nullptr
          ? Expected<std::unique_ptr<LiveWatcher>>(fail(ErrorCode::limit_wait, "this daemon does not offer to be watched"))
          : live->watch({.is_administrator = connection.is_administrator(), .tenant = connection.tenant().value}, *wanted,
                        connection.waker());
  if (!watcher) {
    const std::string_view header = live == nullptr ? "" : retry_header(watcher.error().code);
    co_return co_await connection.respond_error(503, watcher.error(), request.keep_alive, "", header);
  }
  connection.leave_unawaited();
  // The keys outlive the connections. The view of a key that is deleted ends at once.
  KeyRing& keys = connection.server().keys;
  auto next = [watcher = std::move(*watcher), caller = connection.caller(), &keys,
               change = keys.on_change(connection.waker())](std::string& out) {
    if (!keys.is_in_effect(*caller)) return false;
    const LiveWatcher::News news = watcher->take();
    append_event(out, "history", news.history);
    append_event(out, "snapshot", news.snapshot);
    return !news.is_end;
  };
  co_return co_await connection.stream("text/event-stream", std::move(next), request);
}

}  // namespace uma::server
