// One HTTP client: its requests one after the other, each read, checked, answered, by one coroutine on the server's thread.
//
// A request is checked before its body is read: framing, Host, Origin, key, path, method, limits of the key. Then the handler
// of its path answers (http_routes.h). While a generation runs, the connection goes on reading: a client that closes it, or its
// sending side, cancels the generation; bytes of a next request wait.
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
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/mutex.h"
#include "base/sha256.h"
#include "core/service.h"
#include "server/access_log.h"
#include "server/account.h"
#include "server/connection_shares.h"
#include "server/flush_queue.h"
#include "server/http_generation.h"
#include "server/http_peer.h"
#include "server/http_rules.h"
#include "server/http_server.h"
#include "server/server_state.h"
#include "server/within.h"
#include "wire/json_body.h"

namespace uma::server {

class HttpConnection;

inline constexpr std::string_view kJson = "application/json";

// What the connections of one HTTP server share. Its thread only, but for what says otherwise.
struct HttpState {
  boost::asio::io_context& io;
  Service& service;
  ConnectionShares shares;
  const HttpServerOptions options;
  const std::int64_t started_s;  // Unix time
  const std::shared_ptr<FlushQueue> flushes;
  const std::shared_ptr<Account> own_account;  // of who needs no key
  std::vector<std::pair<Sha256Digest, std::shared_ptr<Account>>> keys;
  AccessLog access_log;
  std::optional<boost::asio::ssl::context> tls;  // of connections that are not local; nothing: none

  std::unordered_set<std::shared_ptr<HttpConnection>> connections;
  bool draining = false;

  BusyCount busy;           // any thread
  Gauge connections_count;  // written here, read by any thread
};

// What a handler knows of the request. Borrows it: valid until it is answered, the body until the service is asked.
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
  using Socket = boost::asio::generic::stream_protocol::socket;

  // Beyond connections_max, and beyond the share of its peer, the socket is closed.
  static void start(Socket socket, HttpPeer peer, HttpState& server);
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
  [[nodiscard]] const TenantId& tenant() const { return current_.caller->tenant(); }

  [[nodiscard]] std::uint64_t client() const { return client_; }
  // The caller has used so many tokens of input, for an answer that is no generation.
  void charge(std::int64_t tokens);
  // Returns when the client is gone: it has closed the connection, or its sending side.
  Awaitable<void> watch_client();
  // What the operation returns; nothing where the client left first.
  template <class T>
  Awaitable<std::optional<T>> until_gone(Awaitable<T> operation);

  // Answers with generations, whole or as a stream; they all are one or the other. Where one of them fails all do.
  // `session_field` is the field that named their session, if any.
  Awaitable<bool> generate(std::vector<HttpGeneration> generations, const HttpRequest& request,
                           std::string_view session_field = "");
  // What a call of the service replies: start(reply) makes it. Nothing where the connection was closed meanwhile.
  template <class T, class StartT>
  Awaitable<std::optional<Expected<T>>> ask(StartT start);
  // Likewise; nothing, too, where the client has left.
  template <class T, class StartT>
  Awaitable<std::optional<Expected<T>>> ask_until_gone(StartT start);
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

  // What the generations of one request have used. Engine threads add, the server's thread reads.
  struct Spent {
    Counter generations;  // that have ended, or what else used tokens
    Counter prompt_tokens;
    Counter completion_tokens;
  };
  class MeteredSink;

  // The request that is being read or answered.
  struct Current {
    std::string id;
    std::shared_ptr<Account> caller;  // null until it is known
    std::string body;                 // empty when what it says has been handed on
    RequestShare share;               // of memory, for the body; null: there was none
    std::string cors_header;          // lines that every answer to a page of another origin has
    TimePoint began{};
    std::string method;
    std::string path;
    int status = 0;
    std::size_t bytes = 0;  // of the answer that were written
    bool is_cut = false;    // not all of it could be
    std::shared_ptr<Spent> spent = std::make_shared<Spent>();
  };

  enum class ReadEnd : std::uint8_t { done, closed, timed_out, malformed, no_room };

  HttpConnection(Socket socket, HttpPeer peer, HttpState& server);

  Awaitable<void> run();
  // One request from its first byte to the last of its answer; false when the connection ends.
  Awaitable<bool> serve_request();

  // False when no request can follow.
  Awaitable<bool> wait_for_request();
  Awaitable<bool> read_some();
  Awaitable<ReadEnd> parse_head(Parser& parser);
  Awaitable<ReadEnd> parse_body(Parser& parser);
  void drop_body();
  ReadEnd parse_available(Parser& parser);
  Awaitable<bool> refuse_unread(ReadEnd end);
  struct Refusal;
  [[nodiscard]] bool needs_no_key() const { return peer_.is_local || (server_.keys.empty() && !peer_.refusal); }
  // Finds out who asks, and whether that may be. Fills current_.
  std::optional<Refusal> check_head(const Parser& parser);
  std::optional<Refusal> check_origin(const Parser& parser);
  std::optional<Refusal> check_key(const Parser& parser);
  [[nodiscard]] bool is_monitoring() const;
  std::optional<Refusal> check_limits(bool uses_tokens);
  void log_access();

  Awaitable<bool> run_generations(std::vector<HttpGeneration> generations, const HttpRequest& request,
                                  std::string_view session_field);

  // The beginning of an answer's header; `header` ends the lines that only this answer has.
  std::string head_bytes(int status, std::string_view content_type, bool keep_alive, std::string_view header);
  // False when the client is gone, or does not take a part in time; what it has taken is counted.
  Awaitable<bool> write(std::string head, std::string body = "");
  Awaitable<bool> write_part(std::string_view first, std::string_view second);
  Awaitable<void> linger();

  HttpState& server_;
  Socket socket_;
  const HttpPeer peer_;
  std::optional<ConnectionShares::Place> place_;          // until a key has shown that the peer may ask
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;  // what is read and written goes through it
  const std::uint64_t client_;
  boost::beast::flat_buffer in_;    // received and not yet parsed
  boost::asio::steady_timer wake_;  // cancelled when there are events to write
  boost::system::error_code parse_problem_;
  Error no_room_;                   // for the rest of the body
  std::size_t body_bytes_max_ = 0;  // of the request that is read
  Current current_;
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
  drop_body();
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

template <class T, class StartT>
boost::asio::awaitable<std::optional<Expected<T>>> HttpConnection::ask_until_gone(StartT start) {
  auto answer = co_await until_gone(ask<T>(std::move(start)));
  co_return answer ? std::move(*answer) : std::nullopt;
}

template <class T>
boost::asio::awaitable<std::optional<T>> HttpConnection::until_gone(boost::asio::awaitable<T> operation) {
  using boost::asio::experimental::awaitable_operators::operator||;
  auto first = co_await (caught(std::move(operation)) || watch_client());
  if (first.index() != 0) co_return std::nullopt;
  auto outcome = std::get<0>(std::move(first));
  if (!outcome) std::rethrow_exception(outcome.error());
  co_return std::move(*outcome);
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
  co_return co_await respond_error(http_status(error.code), error, request.keep_alive, "", retry_header(error.code));
}

}  // namespace uma::server
