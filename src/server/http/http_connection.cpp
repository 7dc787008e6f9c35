#include "server/http/http_connection.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <format>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>

#include "base/clock.h"
#include "base/log.h"
#include "base/move_only_function.h"
#include "base/thrown.h"
#include "core/limits.h"
#include "server/http/agent_headers.h"
#include "server/http/http_generation.h"
#include "server/http/routes.h"
#include "server/http/rules.h"
#include "wire/anthropic/messages_encoder.h"
#include "wire/ollama/ollama_encoder.h"
#include "wire/openai/openai_codec.h"

namespace uma::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kReadBytes = 16'384;          // Bytes of one read.
constexpr std::size_t kBodyReadBytes = 65'536;      // Bytes of one read of a body that has so many.
constexpr std::size_t kPipelinedBytesMax = 65'536;  // Limit for bytes of later requests while one is answered.
constexpr std::size_t kWrittenBytesMax = 65'536;    // Part of an answer that one time limit covers.
constexpr std::chrono::seconds kHttpLinger{2};      // Time for a client to read its last answer.

// Headers for a browser's CORS preflight.
std::string preflight_header(const http::fields& head) {
  std::string header = "Access-Control-Allow-Methods: GET, POST, PUT, PATCH, DELETE\r\nAccess-Control-Max-Age: 600\r\n";
  const std::string_view wanted = head[http::field::access_control_request_headers];
  if (is_header_list(wanted)) header += std::format("Access-Control-Allow-Headers: {}\r\n", wanted);
  return header;
}

// The text as a header may have it.
std::string header_text(std::string_view text, std::size_t bytes_max) {
  std::string line(text.substr(0, bytes_max));
  std::ranges::replace_if(line, [](char c) { return c < ' ' || c > '~'; }, '?');
  return line;
}

}  // namespace

// Marks that a request is being answered, which the daemon's shutdown waits for.
class HttpConnection::BusyMark {
 public:
  explicit BusyMark(HttpConnection& connection) : connection_(connection) { connection_.begin_answer(); }
  ~BusyMark() { connection_.end_answer(); }
  BusyMark(const BusyMark&) = delete;
  BusyMark& operator=(const BusyMark&) = delete;

 private:
  HttpConnection& connection_;
};

void HttpConnection::start(Socket socket, HttpPeer peer, HttpState& server) {
  if (server.connections.size() >= server.options.connections_max) return;  // Returning closes the socket.
  std::optional<ConnectionShares::Place> place;
  if (peer.share) {
    place = server.shares.take(*peer.share, server.options.connections_max - server.connections.size() - 1);
    if (!place) return;
  }
  const std::shared_ptr<HttpConnection> connection(new HttpConnection(std::move(socket), std::move(peer), server));
  connection->place_ = std::move(place);
  server.connections.insert(connection);
  server.connections_count.add(1);
  asio::co_spawn(server.io, connection->run(), [connection](const std::exception_ptr& problem) {
    try {
      if (problem) std::rethrow_exception(problem);
    } catch (const boost::system::system_error& what) {  // Cancelled while it waited.
      log_debug("an HTTP connection ended: {}", what.what());
    } catch (...) {
      note_thrown();
    }
    connection->close();
  });
}

HttpConnection::HttpConnection(Socket socket, HttpPeer peer, HttpState& server)
    : server_(server),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      client_(next_client_number()),
      in_(kPipelinedBytesMax + kBodyReadBytes),
      has_events_(server.io) {
  if (server.tls && !peer_.is_local) tls_.emplace(socket_, *server.tls);
}

void HttpConnection::close() {
  if (!is_open_) return;
  is_open_ = false;
  const std::shared_ptr<HttpConnection> self = shared_from_this();  // The set below may hold the last reference.
  server_.connections.erase(self);
  place_.reset();
  server_.connections_count.add(-1);
  error_code ignored;
  socket_.close(ignored);
  has_events_.notify();
}

Awaitable<void> HttpConnection::run() {
  bool goes_on = true;
  if (tls_) {
    const auto shaken =
        co_await within(server_.options.header_timeout, tls_->async_handshake(asio::ssl::stream_base::server, kAwait));
    if (!shaken || std::get<0>(*shaken)) co_return;
  }
  while (goes_on) {
    current_ = {};
    goes_on = co_await serve_request();
    if (current_.began != TimePoint()) log_access();
  }
  co_await linger();
}

void HttpConnection::log_access() {
  constexpr int kClientLeft = 499;
  const Spent& spent = *current_.spent;
  AccessRecord record{.method = current_.method,
                      .path = current_.path,
                      .status = current_.status != 0 ? current_.status : kClientLeft,
                      .bytes = current_.bytes,
                      .is_cut = current_.is_cut,
                      .took = SteadyClock().now() - current_.began,
                      .tenant = {},
                      .key = {},
                      .request_id = current_.id,
                      .agent = current_.last_agent,
                      .tokens = std::nullopt};
  if (current_.caller) {
    record.tenant = current_.caller->tenant().value;
    record.key = current_.caller->key_name();
  }
  if (spent.generations.value() > 0) {
    record.tokens = AccessTokens{.prompt = spent.prompt_tokens.value(), .completion = spent.completion_tokens.value()};
  }
  server_.access_log.write(record);
}

// --- reading

Awaitable<bool> HttpConnection::wait_for_request() {
  if (tls_) co_return (co_await within(server_.options.idle_timeout, read_some(kReadBytes))).value_or(false);
  in_.shrink_to_fit();  // An idle connection holds no buffer.
  const auto begun = co_await within(server_.options.idle_timeout, socket_.async_wait(Socket::wait_read, kAwait));
  if (!begun || std::get<0>(*begun)) co_return false;
  co_return co_await read_some(kReadBytes);
}

Awaitable<bool> HttpConnection::read_some(std::size_t bytes_max) {
  const auto room = in_.prepare(bytes_max);
  auto reading = tls_ ? tls_->async_read_some(room, kAwait) : socket_.async_read_some(room, kAwait);
  const auto [problem, size] = co_await std::move(reading);
  in_.commit(size);
  co_return !problem;
}

// Parses the received bytes. `done` means that the parser stopped where it was asked to, or needs more bytes.
HttpConnection::ReadEnd HttpConnection::parse_available(Parser& parser) {
  while (in_.size() > 0 && !parser.is_done() && (parser.eager() || !parser.is_header_done())) {
    error_code problem;
    const std::size_t size = parser.put(in_.data(), problem);
    in_.consume(size);
    if (problem == http::error::need_more) break;
    if (problem) {
      parse_problem_ = problem;
      return ReadEnd::malformed;
    }
    if (size == 0) break;
  }
  // The parser waits for the end of a line, such as a chunk's, that has become too long.
  if (!parser.is_done() && in_.size() >= kPipelinedBytesMax && (parser.eager() || !parser.is_header_done())) {
    parse_problem_ = http::error::buffer_overflow;
    return ReadEnd::malformed;
  }
  return ReadEnd::done;
}

Awaitable<HttpConnection::ReadEnd> HttpConnection::parse_head(Parser& parser) {
  while (true) {
    if (parse_available(parser) == ReadEnd::malformed) co_return ReadEnd::malformed;
    if (parser.is_header_done()) co_return ReadEnd::done;
    if (!co_await read_some(kReadBytes)) co_return ReadEnd::closed;
  }
}

Awaitable<HttpConnection::ReadEnd> HttpConnection::parse_body(Parser& parser) {
  parser.eager(true);
  while (true) {
    const std::size_t read = in_.size();
    if (parse_available(parser) == ReadEnd::malformed) co_return ReadEnd::malformed;
    if (auto held = current_.share->resize(parser.get().body().size()); !held) {
      no_room_ = std::move(held.error());
      co_return ReadEnd::no_room;
    }
    if (!co_await keep_pace(read)) co_return ReadEnd::closed;
    if (parser.is_done()) {
      if (in_.capacity() > kReadBytes) in_.shrink_to_fit();  // A large buffer does not stay while the reply is made.
      co_return ReadEnd::done;
    }
    const bool is_large = parser.content_length_remaining().value_or(0) >= kBodyReadBytes;
    if (!co_await read_some(is_large ? kBodyReadBytes : kReadBytes)) co_return ReadEnd::closed;
  }
}

Awaitable<bool> HttpConnection::keep_pace(std::size_t bytes) {
  constexpr Duration kPauseMin = std::chrono::milliseconds(1);  // A shorter one is waited for with the next bytes.
  Account& account = current_.caller ? *current_.caller : *server_.own_account;
  const Duration pause = account.take_body(bytes, SteadyClock().now());
  if (pause < kPauseMin) co_return true;
  asio::steady_timer timer(server_.io, pause);
  const auto [problem] = co_await timer.async_wait(kAwait);
  co_return !problem;
}

// Answers a request that could not be read to its end.
Awaitable<bool> HttpConnection::refuse_unread(ReadEnd end) {
  if (!is_open_) co_return false;
  if (end == ReadEnd::timed_out) {
    co_return co_await respond_error(408, {ErrorCode::limit_wait, "the rest of the request did not arrive in time"}, false);
  }
  if (end == ReadEnd::no_room) co_return co_await respond_error(503, no_room_, false, "", "Retry-After: 1\r\n");
  if (end == ReadEnd::closed) {
    co_return co_await respond_error(400, {ErrorCode::proto_json, "the request ends too early"}, false);
  }
  if (parse_problem_ == http::error::body_limit) {
    co_return co_await respond_error(
        413, {ErrorCode::proto_frame, std::format("the body is larger than {} bytes", body_bytes_max_)}, false);
  }
  if (parse_problem_ == http::error::header_limit || parse_problem_ == http::error::buffer_overflow) {
    co_return co_await respond_error(
        431,
        {ErrorCode::proto_frame,
         std::format("the header is larger than {} bytes, or a line of the body is", server_.options.header_bytes_max)},
        false);
  }
  co_return co_await respond_error(400, {ErrorCode::proto_json, "the request is not HTTP: " + parse_problem_.message()}, false);
}

Awaitable<bool> HttpConnection::serve_request() {
  if (in_.size() == 0) {
    idle_since_ = SteadyClock().now();
    if (!co_await wait_for_request()) co_return false;
    idle_since_.reset();
  }
  current_.began = SteadyClock().now();
  current_.id = random_name();
  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(server_.options.header_bytes_max));
  body_bytes_max_ = std::max(server_.options.limits.max_frame_bytes, kConversationBytesMax);  // Large enough for any path.
  parser.body_limit(body_bytes_max_);
  parser.eager(false);
  const auto head_end = co_await within(server_.options.header_timeout, parse_head(parser));
  if (head_end != ReadEnd::done) co_return co_await refuse_unread(head_end.value_or(ReadEnd::timed_out));

  // An error before the body is read ends the connection, unless there is no body.
  const bool may_stay = parser.is_done() && parser.get().keep_alive();
  const std::string path = meant_path(target_path(parser.get().target()), parser.get().method());
  current_.method = parser.get().method_string();
  current_.path = path;
  if (const auto id = parser.get()["x-request-id"]; is_request_id(id)) current_.id = id;
  current_.agent = agent_of(parser.get());
  auto refusal = check_head(parser);
  if (!refusal) refusal = check_origin(parser);
  if (!refusal && !current_.cors_header.empty() && parser.get().method() == http::verb::options) {
    co_return co_await respond(200, "text/plain", "", may_stay, preflight_header(parser.get()));
  }
  if (!refusal) refusal = check_key(parser);
  if (refusal) co_return co_await respond_error(refusal->status, refusal->error, may_stay, "", refusal->header);
  RouteMatch match = find_route(path, parser.get().method());
  if (match.route == nullptr && match.allowed.empty()) {
    const Error error{ErrorCode::proto_type, no_such_path(path)};
    co_return co_await respond_error(404, error, may_stay);
  }
  if (match.route == nullptr) {
    const Error error{ErrorCode::proto_type,
                      std::format("{} accepts only {}, not {}", loggable(path), match.allowed, loggable(current_.method))};
    co_return co_await respond_error(405, error, may_stay, "", std::format("Allow: {}\r\n", match.allowed));
  }
  if (match.route->is_administrative && !is_administrator()) co_return co_await refuse_administration(may_stay);
  const bool has_images = match.route->takes_images && std::ranges::any_of(server_.service.models(), &ModelInfo::reads_files);
  if (!match.route->takes_file && !has_images) {
    body_bytes_max_ = server_.options.limits.max_frame_bytes;
    parser.body_limit(body_bytes_max_);
    parse_problem_ = http::error::body_limit;
    if (parser.content_length().value_or(0) > body_bytes_max_) co_return co_await refuse_unread(ReadEnd::malformed);
  }
  if (current_.caller && !is_monitoring()) refusal = check_limits(match.route->method == http::verb::post);
  if (refusal) co_return co_await respond_error(refusal->status, refusal->error, may_stay, "", refusal->header);
  if (!parser.is_done()) {
    if (boost::beast::iequals(parser.get()[http::field::expect], "100-continue") && in_.size() == 0) {
      if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
    }
    current_.share = server_.service.open_share(current_.caller ? current_.caller->tenant() : TenantId());
    const auto body_end = co_await within(server_.options.body_timeout, parse_body(parser));
    if (body_end != ReadEnd::done) co_return co_await refuse_unread(body_end.value_or(ReadEnd::timed_out));
    // The key may have been deleted while the body was on its way.
    refusal = check_key(parser);
    if (refusal) co_return co_await respond_error(refusal->status, refusal->error, false, "", refusal->header);
    if (match.route->is_administrative && !is_administrator()) co_return co_await refuse_administration(false);
  }
  current_.body = std::move(parser.get().body());
  const BusyMark busy(*this);
  const HttpRequest request{.head = parser.get(),
                            .path = path,
                            .ids = std::move(match.ids),
                            .query = target_query(parser.get().target()),
                            .body = current_.body,
                            .version = parser.get().version(),
                            .keep_alive = parser.get().keep_alive() && !server_.is_leaving && !server_.draining};
  co_return co_await match.route->handler(*this, request);
}

void HttpConnection::drop_body() {
  std::string().swap(current_.body);
  if (current_.share) current_.share->give_back();
}

KeptBodyPtr HttpConnection::keep_body() {
  return std::make_shared<const KeptBody>(
      KeptBody{.text = std::exchange(current_.body, {}), .share = std::exchange(current_.share, nullptr)});
}

RunApart HttpConnection::apart() {
  return [&service = server_.service, tenant = tenant()](std::size_t bytes, MoveOnlyFunction<void()> work) {
    service.run_apart(tenant, bytes, std::move(work));
  };
}

// --- answering

void HttpConnection::begin_answer() {
  is_answering_ = true;
  is_awaited_ = true;
  server_.busy->add(1);
}

void HttpConnection::end_answer() {
  is_answering_ = false;
  leave_unawaited();
}

void HttpConnection::leave_unawaited() {
  if (std::exchange(is_awaited_, false)) server_.busy->add(-1);
}

std::function<void()> HttpConnection::waker() {
  return [flushes = server_.flushes, self = weak_from_this()] { flushes->push(self); };
}

Awaitable<bool> HttpConnection::refuse_administration(bool keep_alive) {
  // Holders of keys may be remote: what users this machine has is none of their business.
  const std::string user = !server_.keys.are_needed() ? std::format("the user whom umad runs as (uid {})", ::geteuid())
                                                      : std::string("the user whom umad runs as");
  const Error error{
      ErrorCode::auth,
      std::format(
          "only programs of {} may change models and keys and read cards, the configuration and the trace, without a key from "
          "this machine, or with a key that has admin=true; pages of http.cors_origins need such a key",
          user)};
  co_return co_await respond_error(403, error, keep_alive);
}

void HttpConnection::warn(std::string_view text) {
  current_.warnings += std::format("x-uma-warning: {}\r\n", header_text(text, 256));
}

void HttpConnection::note_schema_left_out(const std::vector<std::string>& places) {
  if (places.empty()) return;
  std::string line;
  for (const std::string& place : places) line += (line.empty() ? "" : ", ") + place;
  current_.warnings += std::format("x-uma-schema-left-out: {}\r\n", header_text(line, 2048));
}

void HttpConnection::warn(std::span<const std::string> texts) {
  for (const std::string& text : texts) warn(std::string_view(text));
}

Awaitable<void> HttpConnection::watch_client() {
  while (in_.size() < kPipelinedBytesMax) {
    if (!co_await read_some(kReadBytes)) co_return;
  }
  // The client has sent too many bytes ahead for its end to be seen; the next write notices it.
  asio::steady_timer never(server_.io, asio::steady_timer::time_point::max());
  co_await never.async_wait(kAwait);
}

// --- WebSocket

void HttpConnection::describe_upgrade(http::fields& answer) {
  constexpr int kSwitchingProtocols = 101;
  current_.status = kSwitchingProtocols;
  answer.set(http::field::server, "umad");
  answer.set("x-request-id", current_.id);
  if (!server_.options.node.empty()) answer.set("x-uma-node", server_.options.node);
}

void HttpConnection::begin_message() {
  current_.warnings.clear();
  current_.session.clear();
  current_.unknown_model.reset();
}

std::optional<HttpConnection::MessageRefusal> HttpConnection::refuse_message() {
  if (!server_.keys.is_in_effect(*current_.caller))
    return MessageRefusal{{ErrorCode::auth, "the key is not known to this server any more"}, /*is_final=*/true};
  auto refusal = check_limits(/*uses_tokens=*/true);
  if (!refusal) return std::nullopt;
  return MessageRefusal{std::move(refusal->error)};
}

void HttpConnection::note_written(std::optional<std::size_t> bytes) {
  current_.bytes += bytes.value_or(0);
  if (!bytes) current_.is_cut = true;
}

// --- writing

std::string HttpConnection::head_bytes(int status, std::string_view content_type, bool keep_alive, std::string_view header) {
  current_.status = status;
  const std::string_view reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  const std::string limits = current_.caller ? current_.caller->header(SteadyClock().now()) : "";
  std::string id = is_messages_path(current_.path) ? std::format("request-id: {}\r\n", current_.id) : "";
  if (!server_.options.node.empty()) {
    id += std::format("x-uma-node: {}\r\n", server_.options.node);
    if (!current_.session.empty()) id += std::format("x-uma-session: {}\r\n", current_.session);
  }
  return std::format(
      "HTTP/1.1 {} {}\r\nServer: umad\r\nContent-Type: {}\r\nX-Content-Type-Options: nosniff\r\nConnection: "
      "{}\r\nx-request-id: {}\r\n{}{}{}{}{}",
      status, reason, content_type, keep_alive ? "keep-alive" : "close", current_.id, id, current_.cors_header,
      current_.warnings, limits, header);
}

Awaitable<bool> HttpConnection::respond(int status, std::string_view content_type, std::string body, bool keep_alive,
                                        std::string_view header, RequestShare share) {
  if (share == nullptr && body.size() > kApartBytes) {
    share = server_.service.open_share(current_.caller ? tenant() : TenantId());
  }
  if (share != nullptr) {  // Until the last byte is written.
    if (const auto held = share->resize(body.size()); !held) {
      std::string().swap(body);
      share->give_back();
      co_return co_await refuse_body(held.error(), keep_alive);
    }
  }
  std::string head = head_bytes(status, content_type, keep_alive, header);
  constexpr int kNotModified = 304;  // Its Content-Length would be that of the whole answer.
  head += status == kNotModified ? "\r\n" : std::format("Content-Length: {}\r\n\r\n", body.size());
  if (current_.method == "HEAD") body.clear();  // The client would take a body for the next answer.
  co_return co_await write(std::move(head), std::move(body)) && keep_alive;
}

// SDKs repeat a request after such an error; one that has changed or computed something would do it again.
Awaitable<bool> HttpConnection::refuse_body(const Error& error, bool keep_alive) {
  const bool may_repeat = current_.method == "GET" || current_.method == "HEAD";
  co_return co_await respond_error(http_status(error.code), error, keep_alive, "",
                                   may_repeat ? retry_header(error.code) : "x-should-retry: false\r\n");
}

Expected<RequestShare> HttpConnection::hold(std::size_t bytes) {
  RequestShare share = server_.service.open_share(current_.caller ? tenant() : TenantId());
  if (const auto held = share->grow(bytes > kApartBytes ? bytes : 0); !held) return std::unexpected(held.error());
  return share;
}

Awaitable<bool> HttpConnection::respond_failed(const Error& error, const HttpRequest& request, std::string_view field) {
  co_return co_await respond_error(http_status(error.code), error, request.keep_alive, field, retry_header(error.code));
}

Awaitable<bool> HttpConnection::respond_rejected(const wire::RejectedBody& rejected, const HttpRequest& request) {
  co_return co_await respond_error(http_status(rejected.error.code), rejected.error, request.keep_alive, rejected.field);
}

Awaitable<bool> HttpConnection::respond_error(int status, const Error& error, bool keep_alive, std::string_view field,
                                              std::string_view header) {
  const Error& shown = shown_error(error);
  std::string body = is_messages_path(current_.path)      ? wire::message_error_json(shown, status, field, current_.id)
                     : current_.path.starts_with("/api/") ? wire::ollama_error_json(shown)
                                                          : wire::error_json(shown, status, field);
  // OpenAI's and Anthropic's SDKs repeat a request after 408, 409, 429 and 5xx, unless this header forbids it.
  if (error.code == ErrorCode::outcome_unknown) header = "x-should-retry: false\r\n";
  co_return co_await respond(status, kJson, std::move(body), keep_alive, header);
}

// Writes in parts, so that a slow client gets the time limit for each part. The body is not copied.
Awaitable<bool> HttpConnection::write(std::string head, std::string body) {
  std::string_view head_left = head;
  std::string_view body_left = body;
  while (!head_left.empty() || !body_left.empty()) {
    const std::string_view first = head_left.substr(0, kWrittenBytesMax);
    const std::string_view second = body_left.substr(0, kWrittenBytesMax - first.size());
    head_left.remove_prefix(first.size());
    body_left.remove_prefix(second.size());
    const bool is_written = (co_await within(server_.options.write_timeout, write_part(first, second))).value_or(false);
    if (!is_written) {
      current_.is_cut = true;
      co_return false;
    }
  }
  co_return true;
}

// Counts the written bytes, even if the write is cancelled.
Awaitable<bool> HttpConnection::write_part(std::string_view first, std::string_view second) {
  while (!first.empty() || !second.empty()) {
    const std::array<asio::const_buffer, 2> buffers{asio::buffer(first), asio::buffer(second)};
    auto writing = tls_ ? tls_->async_write_some(buffers, kAwait) : socket_.async_write_some(buffers, kAwait);
    const auto [problem, size] = co_await std::move(writing);
    current_.bytes += size;
    if (problem) co_return false;
    const std::size_t of_first = std::min(size, first.size());
    first.remove_prefix(of_first);
    second.remove_prefix(size - of_first);
  }
  co_return true;
}

// Ends the sending side and reads the client's remaining bytes for a moment: closing a socket with unread bytes could destroy
// the answer on its way.
Awaitable<void> HttpConnection::linger() {
  if (tls_ && is_open_) co_await within(kHttpLinger, tls_->async_shutdown(kAwait));
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);  // Fails only if the client is gone, which the read notices.
  const TimePoint end = SteadyClock().now() + kHttpLinger;
  while (is_open_ && SteadyClock().now() < end) {
    in_.clear();
    const auto more = co_await within(end - SteadyClock().now(), socket_.async_read_some(in_.prepare(kReadBytes), kAwait));
    if (!more || std::get<0>(*more)) co_return;
  }
}

}  // namespace uma::server
