// One HTTP client: its requests one after the other, each read, checked, answered, by one coroutine on the server's thread.
//
// A request is checked before its body is read: framing, Host, Origin, key, path, method, limits of the key. While a generation
// runs, the connection goes on reading: a client that closes it, or its sending side, cancels the generation; bytes of a next
// request wait.
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

#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/sha256.h"
#include "core/service.h"
#include "server/access_log.h"
#include "server/account.h"
#include "server/flush_queue.h"
#include "server/http_server.h"
#include "server/server_state.h"
#include "wire/openai_codec.h"

namespace uma::server {

class HttpConnection;

// What the connections of one HTTP server share. Its thread only, but for what says otherwise.
struct HttpState {
  boost::asio::io_context& io;
  Service& service;
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

// Owned by HttpState::connections and by its coroutine. `server` outlives it.
class HttpConnection final : public Flushable, public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  // `is_local`: from a Unix socket, whose file says who may connect. Beyond connections_max the socket is closed.
  static void start(Socket socket, bool is_local, HttpState& server);
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // There are events of the generation to write.
  void flush() override { wake_.cancel(); }
  // Closes the socket, which ends the coroutine, which cancels what runs. Later calls do nothing.
  void close();
  // Waits for the next request, or for the rest of one.
  [[nodiscard]] bool is_idle() const { return !is_answering_; }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  template <class T>
  using Awaitable = boost::asio::awaitable<T>;
  class BusyMark;

  // What the generations of one request have used. Engine threads add, the server's thread reads.
  struct Spent {
    Counter generations;  // that have ended
    Counter prompt_tokens;
    Counter completion_tokens;
  };
  class MeteredSink;

  // The request that is being read or answered.
  struct Current {
    std::string id;
    std::shared_ptr<Account> caller;  // null until it is known
    std::string cors_header;          // lines that every answer to a page of another origin has
    TimePoint began{};
    std::string method;
    std::string path;
    int status = 0;
    std::size_t bytes = 0;  // of the answer so far
    std::shared_ptr<Spent> spent = std::make_shared<Spent>();
  };

  enum class ReadEnd : std::uint8_t { done, closed, timed_out, malformed };

  HttpConnection(Socket socket, bool is_local, HttpState& server);

  Awaitable<void> run();
  // One request from its first byte to the last of its answer; false when the connection ends.
  Awaitable<bool> serve_request();

  // False when no request can follow.
  Awaitable<bool> wait_for_request();
  Awaitable<bool> read_some();
  Awaitable<ReadEnd> parse_head(Parser& parser);
  Awaitable<ReadEnd> parse_body(Parser& parser);
  ReadEnd parse_available(Parser& parser);
  Awaitable<bool> refuse_unread(ReadEnd end);
  struct Refusal;
  [[nodiscard]] bool needs_no_key() const { return is_local_ || server_.keys.empty(); }
  // Finds out who asks, and whether that may be. Fills current_.
  std::optional<Refusal> check_head(const Parser& parser);
  std::optional<Refusal> check_origin(const Parser& parser);
  std::optional<Refusal> check_key(const Parser& parser);
  std::optional<Refusal> check_limits();
  void log_access();

  Awaitable<bool> answer(const Parser& parser, const std::string& path);
  Awaitable<bool> answer_completion(wire::CompletionKind kind, std::string_view body, unsigned version, bool keep_alive);
  // As Service::generate(), for the current request's caller, who is charged with the tokens.
  RequestId generate(GenerateRequest request, std::shared_ptr<EventSink> sink);
  Awaitable<bool> run_generation(wire::CompletionRequest request, wire::CompletionHead head, unsigned version, bool keep_alive);
  Awaitable<void> watch_client();

  // The beginning of an answer's header; `header` ends the lines that only this answer has.
  std::string head_bytes(int status, std::string_view content_type, bool keep_alive, std::string_view header);
  Awaitable<bool> respond(int status, std::string_view content_type, std::string body, bool keep_alive,
                          std::string_view header = "");
  Awaitable<bool> respond_error(int status, const Error& error, bool keep_alive, std::string_view field = "",
                                std::string_view header = "");
  Awaitable<bool> write(std::string bytes);
  Awaitable<void> linger();

  HttpState& server_;
  Socket socket_;
  const bool is_local_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;  // what is read and written goes through it
  const std::uint64_t client_;
  boost::beast::flat_buffer in_;    // received and not yet parsed
  boost::asio::steady_timer wake_;  // cancelled when there are events to write
  boost::system::error_code parse_problem_;
  Current current_;
  bool is_open_ = true;
  bool is_answering_ = false;
};

}  // namespace uma::server
