// One HTTP client: its requests one after the other, each read, checked, answered, by one coroutine on the server's thread.
//
// A request is checked before its body is read: Host, Origin, framing, path, method. Then the handler of its path answers
// (http_routes.h). While a generation runs, the connection goes on reading: a client that closes it, or its sending side,
// cancels the generation; bytes of a next request wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/mutex.h"
#include "core/service.h"
#include "server/flush_queue.h"
#include "server/http_generation.h"
#include "server/http_rules.h"
#include "server/http_server.h"
#include "server/server_state.h"
#include "wire/json_body.h"

namespace uma::server {

class HttpConnection;

inline constexpr std::string_view kJson = "application/json";

// What the connections of one HTTP server share. Its thread only, but for what says otherwise.
struct HttpState {
  boost::asio::io_context& io;
  Service& service;
  const HttpServerOptions options;
  const TenantId tenant;
  const std::int64_t started_s;  // Unix time
  const std::shared_ptr<FlushQueue> flushes;

  std::unordered_set<std::shared_ptr<HttpConnection>> connections;
  bool draining = false;

  BusyCount busy;           // any thread
  Gauge connections_count;  // written here, read by any thread
};

// What a handler knows of the request. Borrows it: valid until it is answered.
struct HttpRequest {
  std::vector<std::string> ids;  // what stands in the braces of the route's path
  std::string_view query;        // behind the ?
  std::string_view body;
  unsigned version = 11;
  bool keep_alive = false;  // if the answer goes well
};

// Owned by HttpState::connections and by its coroutine. `server` outlives it.
class HttpConnection final : public Flushable, public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  static void start(Socket socket, HttpState& server);
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // There are events of the generation to write.
  void flush() override { wake_.cancel(); }
  // Closes the socket, which ends the coroutine, which cancels what runs. Later calls do nothing.
  void close();
  // Waits for the next request, or for the rest of one.
  [[nodiscard]] bool is_idle() const { return !is_answering_; }

  // --- For handlers. Each answers once, with one of the calls that return whether the connection goes on.

  template <class T>
  using Awaitable = boost::asio::awaitable<T>;

  [[nodiscard]] HttpState& server() { return server_; }
  [[nodiscard]] Service& service() { return server_.service; }
  [[nodiscard]] const TenantId& tenant() const { return server_.tenant; }

  // Answers with a generation, whole or as a stream. `session_field` is the field that named its session, if any.
  Awaitable<bool> generate(GenerateRequest generate, std::unique_ptr<AnswerEncoder> encoder, const HttpRequest& request,
                           std::string_view session_field = "");
  // What a call of the service replies: start(reply) makes it. Nothing where the connection was closed meanwhile.
  template <class T, class StartT>
  Awaitable<std::optional<Expected<T>>> ask(StartT start);
  // Answers with what ask() returned: json(value) is the body, or what is wrong with the request after all.
  template <class T, class JsonT>
  Awaitable<bool> respond_with(std::optional<Expected<T>> value, const HttpRequest& request, JsonT json);
  Awaitable<bool> respond(int status, std::string_view content_type, std::string body, bool keep_alive,
                          std::string_view header = "");
  Awaitable<bool> respond_error(int status, const Error& error, bool keep_alive, std::string_view field = "",
                                std::string_view header = "");
  Awaitable<bool> respond_rejected(const wire::RejectedBody& rejected, const HttpRequest& request);

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  class BusyMark;

  enum class ReadEnd : std::uint8_t { done, closed, timed_out, malformed };

  HttpConnection(Socket socket, HttpState& server);

  Awaitable<void> run();
  // One request from its first byte to the last of its answer; false when the connection ends.
  Awaitable<bool> serve_request();

  Awaitable<bool> read_some();
  Awaitable<ReadEnd> parse_head(Parser& parser);
  Awaitable<ReadEnd> parse_body(Parser& parser);
  ReadEnd parse_available(Parser& parser);
  Awaitable<bool> refuse_unread(ReadEnd end);

  Awaitable<bool> run_generation(GenerateRequest generate, std::unique_ptr<AnswerEncoder> encoder, const HttpRequest& request,
                                 std::string_view session_field);
  Awaitable<void> watch_client();

  Awaitable<bool> write(std::string bytes);
  Awaitable<void> linger();

  HttpState& server_;
  Socket socket_;
  const std::uint64_t client_;
  boost::beast::flat_buffer in_;    // received and not yet parsed
  boost::asio::steady_timer wake_;  // cancelled when there are events to write
  boost::system::error_code parse_problem_;
  std::size_t body_bytes_max_ = 0;  // of the request that is read
  bool is_open_ = true;
  bool is_answering_ = false;
};

template <class T, class StartT>
boost::asio::awaitable<std::optional<Expected<T>>> HttpConnection::ask(StartT start) {
  // Shared with the reply, which may come when the connection is gone.
  struct Answer {
    Mutex mutex;
    std::optional<Expected<T>> value GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  start(Reply<T>([answer, flushes = server_.flushes, self = weak_from_this()](Expected<T> value) {
    {
      const MutexLock lock(answer->mutex);
      answer->value = std::move(value);
    }
    flushes->push(self);
  }));
  while (is_open_) {
    {
      const MutexLock lock(answer->mutex);
      if (answer->value) co_return std::move(answer->value);
    }
    wake_.expires_at(boost::asio::steady_timer::time_point::max());
    co_await wake_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
  }
  co_return std::nullopt;
}

template <class T, class JsonT>
boost::asio::awaitable<bool> HttpConnection::respond_with(std::optional<Expected<T>> value, const HttpRequest& request,
                                                          JsonT json) {
  if (!value) co_return false;
  if (*value) {
    std::expected<std::string, wire::RejectedBody> body = json(**value);
    if (!body) co_return co_await respond_rejected(body.error(), request);
    co_return co_await respond(200, kJson, std::move(*body), request.keep_alive);
  }
  const Error& error = value->error();
  const int status = http_status(error.code);
  co_return co_await respond_error(status, error, request.keep_alive, "", status == 503 ? "Retry-After: 1\r\n" : "");
}

}  // namespace uma::server
