#include "server/http_connection.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <format>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>

#include "base/log.h"
#include "base/random.h"
#include "server/http_rules.h"
#include "server/outbox.h"

namespace uma::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using asio::experimental::awaitable_operators::operator||;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

constexpr std::size_t kReadBytes = 16'384;          // asked for at once
constexpr std::size_t kPipelinedBytesMax = 65'536;  // of later requests, while one is answered
constexpr std::chrono::seconds kLinger{2};          // for a client to read its last answer
constexpr std::string_view kJson = "application/json";

template <class T>
using Awaitable = asio::awaitable<T>;

// What the operation returns, or nothing where it took longer than `limit`; then it was cancelled.
template <class T>
Awaitable<std::optional<T>> within(Duration limit, Awaitable<T> operation) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  timer.expires_after(limit);
  auto first = co_await (std::move(operation) || timer.async_wait(kAwait));
  if (first.index() == 0) co_return std::get<0>(std::move(first));
  co_return std::nullopt;
}

std::int64_t unix_time_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Names an answer among all of all time, well enough.
std::string random_name() {
  static Random random(random_seed());  // one thread
  return std::format("{:016x}", random.next_u64());
}

std::string head_bytes(int status, std::string_view content_type, bool keep_alive, std::string_view header) {
  const std::string_view reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  return std::format("HTTP/1.1 {} {}\r\nServer: umad\r\nContent-Type: {}\r\nConnection: {}\r\n{}", status, reason, content_type,
                     keep_alive ? "keep-alive" : "close", header);
}

// The way back of one generation. Engine threads own it too, and may outlive the connection: then the outbox is sealed.
class GenerationSink final : public EventSink {
 public:
  GenerationSink(std::shared_ptr<Outbox> outbox, wire::CompletionHead head, bool stream)
      : outbox_(std::move(outbox)), head_(std::move(head)), stream_(stream) {}

  bool deliver(const Event& event) override {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      if (token->text.empty()) return true;
      has_text_ = true;
      return outbox_->append_unless_full([&](std::string& out) { wire::append_text_chunk(out, head_, token->text); });
    }
    if (const auto* part = std::get_if<ReplyPart>(&event)) {
      has_text_ = true;
      return outbox_->append_unless_full([&](std::string& out) { wire::append_part_chunk(out, head_, *part); });
    }
    if (const auto* eos = std::get_if<EosEvent>(&event)) {
      end(*eos);
    } else if (const auto* failure = std::get_if<FailureEvent>(&event)) {
      failure_ = failure->error;
      outbox_->append_last("", [](std::string&) {});
    }
    return true;
  }

  // Set where the whole answer is an error. To be asked after the outbox said that the generation has ended.
  [[nodiscard]] const std::optional<Error>& failure() const { return failure_; }
  [[nodiscard]] const wire::CompletionHead& head() const { return head_; }

 private:
  void end(const EosEvent& eos) {
    const bool is_whole_answer_lost = eos.error && (!stream_ || !has_text_);
    if (is_whole_answer_lost) failure_ = eos.error;
    // Encoded before the outbox is locked.
    std::string bytes;
    if (stream_) {
      wire::append_last_chunks(bytes, head_, eos);
    } else {
      bytes = wire::completion_json(head_, eos);
    }
    outbox_->append_last("", [&](std::string& out) {
      if (!is_whole_answer_lost) out += bytes;
    });
  }

  const std::shared_ptr<Outbox> outbox_;
  const wire::CompletionHead head_;
  const bool stream_;
  bool has_text_ = false;         // the engine's, which delivers one event at a time
  std::optional<Error> failure_;  // written before the outbox hears of the end, read after
};

// Cancels a generation whose answer nobody takes any more.
class GenerationGuard {
 public:
  GenerationGuard(Service& service, std::shared_ptr<Outbox> outbox) : service_(service), outbox_(std::move(outbox)) {}
  ~GenerationGuard() {
    outbox_->seal();
    if (running_) service_.cancel(*running_, [](Expected<bool>) {});
  }
  GenerationGuard(const GenerationGuard&) = delete;
  GenerationGuard& operator=(const GenerationGuard&) = delete;

  void set_running(RequestId id) { running_ = id; }
  void set_ended() { running_.reset(); }

 private:
  Service& service_;
  const std::shared_ptr<Outbox> outbox_;
  std::optional<RequestId> running_;
};

struct Refusal {
  int status = 0;
  Error error;
};

// What is wrong with a head, whatever it asks for.
template <class FieldsT>
std::optional<Refusal> check_head(const FieldsT& head) {
  const auto bad = [](std::string message) { return Refusal{400, {ErrorCode::proto_field, std::move(message)}}; };
  const std::size_t hosts = head.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && head.version() >= 11)) return bad("the request must have exactly one Host header");
  const std::string_view host = head[http::field::host];
  if (hosts == 1 && !is_loopback_authority(host)) {
    return Refusal{403,
                   {ErrorCode::auth,
                    "without keys only this machine is served: the Host header must be localhost, 127.0.0.1 or "
                    "[::1]"}};
  }
  if (head.count(http::field::origin) > 1 ||
      (head.count(http::field::origin) == 1 && !is_same_origin(head[http::field::origin], host))) {
    return Refusal{403, {ErrorCode::auth, "requests from web pages of other origins are refused"}};
  }
  // The parser knows chunked; another coding around or before it would be taken for the body.
  const bool has_codings = head.count(http::field::transfer_encoding) > 0;
  if (has_codings && (head.count(http::field::transfer_encoding) > 1 ||
                      !boost::beast::iequals(head[http::field::transfer_encoding], "chunked"))) {
    return bad("the only transfer coding that is served is chunked");
  }
  if (has_codings && head.version() < 11) return bad("HTTP/1.0 has no transfer codings");
  if (head.count(http::field::content_encoding) > 0 &&
      !boost::beast::iequals(head[http::field::content_encoding], "identity")) {
    return Refusal{415, {ErrorCode::proto_field, "the body must not be compressed"}};
  }
  return std::nullopt;
}

constexpr std::string_view kChatPath = "/v1/chat/completions";
constexpr std::string_view kTextPath = "/v1/completions";
constexpr std::string_view kModelsPath = "/v1/models";
constexpr std::string_view kModelPath = "/v1/models/";

// The method that a path takes; unknown where there is no such path.
http::verb method_of(std::string_view path) {
  if (path == kChatPath || path == kTextPath) return http::verb::post;
  const bool is_known = path == "/health" || path == "/ready" || path == "/metrics" || path == kModelsPath ||
                        (path.starts_with(kModelPath) && path.size() > kModelPath.size());
  return is_known ? http::verb::get : http::verb::unknown;
}

}  // namespace

// While a request is answered: the daemon's end waits for it.
class HttpConnection::BusyMark {
 public:
  explicit BusyMark(HttpConnection& connection) : connection_(connection) {
    connection_.is_answering_ = true;
    connection_.server_.busy.add(1);
  }
  ~BusyMark() {
    connection_.is_answering_ = false;
    connection_.server_.busy.add(-1);
  }
  BusyMark(const BusyMark&) = delete;
  BusyMark& operator=(const BusyMark&) = delete;

 private:
  HttpConnection& connection_;
};

void HttpConnection::start(Socket socket, HttpState& server) {
  const std::shared_ptr<HttpConnection> connection(new HttpConnection(std::move(socket), server));
  server.connections.insert(connection);
  server.connections_count.add(1);
  asio::co_spawn(server.io, connection->run(), [connection](const std::exception_ptr& problem) {
    try {
      if (problem) std::rethrow_exception(problem);
    } catch (const std::exception& what) {  // out of memory, or cancelled while it waited
      log_debug("an HTTP connection ended: {}", what.what());
    }
    connection->close();
  });
}

HttpConnection::HttpConnection(Socket socket, HttpState& server)
    : server_(server),
      socket_(std::move(socket)),
      client_(next_client_number()),
      in_(kPipelinedBytesMax + kReadBytes),
      wake_(server.io) {}

void HttpConnection::close() {
  if (!is_open_) return;
  is_open_ = false;
  const std::shared_ptr<HttpConnection> self = shared_from_this();  // the set below may hold the last reference
  server_.connections.erase(self);
  server_.connections_count.add(-1);
  error_code ignored;
  socket_.close(ignored);
  wake_.cancel();
}

Awaitable<void> HttpConnection::run() {
  while (co_await serve_request()) {
  }
  co_await linger();
}

// --- reading

Awaitable<bool> HttpConnection::read_some() {
  const auto [problem, size] = co_await socket_.async_read_some(in_.prepare(kReadBytes), kAwait);
  in_.commit(size);
  co_return !problem;
}

// Parses what is there. `done` means that the parser stopped where it was asked to, or needs more.
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
  return ReadEnd::done;
}

Awaitable<HttpConnection::ReadEnd> HttpConnection::parse_head(Parser& parser) {
  while (true) {
    if (parse_available(parser) == ReadEnd::malformed) co_return ReadEnd::malformed;
    if (parser.is_header_done()) co_return ReadEnd::done;
    if (!co_await read_some()) co_return ReadEnd::closed;
  }
}

Awaitable<HttpConnection::ReadEnd> HttpConnection::parse_body(Parser& parser) {
  parser.eager(true);
  while (true) {
    if (parse_available(parser) == ReadEnd::malformed) co_return ReadEnd::malformed;
    if (parser.is_done()) co_return ReadEnd::done;
    if (!co_await read_some()) co_return ReadEnd::closed;
  }
}

// Says why a request was not read to its end.
Awaitable<bool> HttpConnection::refuse_unread(ReadEnd end) {
  if (!is_open_) co_return false;
  if (end == ReadEnd::timed_out) {
    co_return co_await respond_error(408, {ErrorCode::limit_wait, "the rest of the request did not come"}, false);
  }
  if (end == ReadEnd::closed) {
    co_return co_await respond_error(400, {ErrorCode::proto_json, "the request ends too early"}, false);
  }
  if (parse_problem_ == http::error::body_limit) {
    co_return co_await respond_error(
        413, {ErrorCode::proto_frame, std::format("the body is larger than {} bytes", server_.options.limits.max_frame_bytes)},
        false);
  }
  if (parse_problem_ == http::error::header_limit || parse_problem_ == http::error::buffer_overflow) {
    co_return co_await respond_error(
        431, {ErrorCode::proto_frame, std::format("the header is larger than {} bytes", server_.options.header_bytes_max)},
        false);
  }
  co_return co_await respond_error(400, {ErrorCode::proto_json, "the request is not HTTP: " + parse_problem_.message()}, false);
}

Awaitable<bool> HttpConnection::serve_request() {
  if (in_.size() == 0) {
    const auto begun = co_await within(server_.options.idle_timeout, read_some());
    if (!begun || !*begun) co_return false;
  }
  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(server_.options.header_bytes_max));
  parser.body_limit(server_.options.limits.max_frame_bytes);
  parser.eager(false);
  const auto head_end = co_await within(server_.options.header_timeout, parse_head(parser));
  if (head_end != ReadEnd::done) co_return co_await refuse_unread(head_end.value_or(ReadEnd::timed_out));

  // What is refused before its body is read ends the connection, unless there is none.
  const bool may_stay = parser.is_done() && parser.get().keep_alive();
  if (const auto refusal = check_head(parser.get()))
    co_return co_await respond_error(refusal->status, refusal->error, may_stay);
  const std::string path = target_path(parser.get().target());
  const http::verb method = method_of(path);
  if (method == http::verb::unknown) {
    const Error error{ErrorCode::proto_type,
                      "no such path: this version serves /v1/chat/completions, /v1/completions, "
                      "/v1/models, /health, /ready and /metrics"};
    co_return co_await respond_error(404, error, may_stay);
  }
  if (parser.get().method() != method) {
    const std::string name(http::to_string(method));
    const Error error{ErrorCode::proto_type, std::format("this path takes {}", name)};
    co_return co_await respond_error(405, error, may_stay, "", std::format("Allow: {}\r\n", name));
  }
  if (!parser.is_done()) {
    if (boost::beast::iequals(parser.get()[http::field::expect], "100-continue") && in_.size() == 0) {
      if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
    }
    const auto body_end = co_await within(server_.options.body_timeout, parse_body(parser));
    if (body_end != ReadEnd::done) co_return co_await refuse_unread(body_end.value_or(ReadEnd::timed_out));
  }
  co_return co_await answer(parser, path);
}

// --- answering

Awaitable<bool> HttpConnection::answer(const Parser& parser, const std::string& path) {
  const BusyMark busy(*this);
  const bool keep_alive = parser.get().keep_alive() && !server_.draining;
  if (path == kChatPath || path == kTextPath) {
    const auto kind = path == kChatPath ? wire::CompletionKind::chat : wire::CompletionKind::text;
    co_return co_await answer_completion(kind, parser.get().body(), parser.get().version(), keep_alive);
  }
  if (path == "/metrics") {
    co_return co_await respond(200, "text/plain; version=0.0.4", wire::metrics_text(server_.service.metrics()), keep_alive);
  }
  const std::vector<ModelInfo> models = server_.service.models();
  if (path == "/health") co_return co_await respond(200, kJson, R"({"status":"ok"})", keep_alive);
  if (path == "/ready") {
    const bool is_ready = !server_.draining && std::ranges::contains(models, ModelState::ready, &ModelInfo::state);
    co_return co_await respond(is_ready ? 200 : 503, kJson, is_ready ? R"({"status":"ready"})" : R"({"status":"not ready"})",
                               keep_alive);
  }
  if (path == kModelsPath) co_return co_await respond(200, kJson, wire::models_json(models, server_.started_s), keep_alive);
  const auto model = std::ranges::find(models, path.substr(kModelPath.size()), &ModelInfo::name);
  if (model == models.end()) co_return co_await respond_error(404, {ErrorCode::model_unknown, "no such model"}, keep_alive);
  co_return co_await respond(200, kJson, wire::model_json(*model, server_.started_s), keep_alive);
}

Awaitable<bool> HttpConnection::answer_completion(wire::CompletionKind kind, std::string_view body, unsigned version,
                                                  bool keep_alive) {
  auto request = wire::decode_completion(kind, body);
  if (!request) {
    const wire::RejectedCompletion& rejected = request.error();
    co_return co_await respond_error(http_status(rejected.error.code), rejected.error, keep_alive, rejected.field);
  }
  if (server_.draining) {
    co_return co_await respond_error(503, {ErrorCode::limit_wait, "the daemon is stopping and takes no new generations"},
                                     false);
  }
  const std::vector<ModelInfo> models = server_.service.models();
  wire::CompletionHead head(kind, random_name(), unix_time_s(), models.empty() ? "" : models.front().name,
                            request->includes_usage);
  auto first = co_await (run_generation(std::move(*request), std::move(head), version, keep_alive) || watch_client());
  co_return first.index() == 0 && std::get<0>(first);
}

Awaitable<bool> HttpConnection::run_generation(wire::CompletionRequest request, wire::CompletionHead head, unsigned version,
                                               bool keep_alive) {
  const bool is_stream = request.generate.options.stream;
  const bool is_chunked = version >= 11;
  // Engine threads copy the weak pointer and never hold the connection: it is destroyed on the server's thread.
  const auto outbox = std::make_shared<Outbox>(server_.options.limits.tx_bytes_max,
                                               [flushes = server_.flushes, self = weak_from_this()] { flushes->push(self); });
  const auto sink = std::make_shared<GenerationSink>(outbox, std::move(head), is_stream);
  GenerationGuard guard(server_.service, outbox);
  request.generate.client = client_;
  guard.set_running(server_.service.generate(server_.tenant, std::move(request.generate), sink));

  bool has_begun = false;
  std::string bytes;
  std::vector<std::string> ended;
  while (is_open_) {
    bytes.clear();
    outbox->take(bytes, ended);
    const bool has_ended = !ended.empty();
    if (has_ended) guard.set_ended();
    if (has_ended && sink->failure() && !has_begun) {
      const Error error = *sink->failure();
      const int status = http_status(error.code);
      co_return co_await respond_error(status, error, keep_alive, "", status == 503 ? "Retry-After: 1\r\n" : "");
    }
    if (bytes.empty() && !has_ended) {
      wake_.expires_at(asio::steady_timer::time_point::max());
      co_await wake_.async_wait(kAwait);
      continue;
    }
    if (!is_stream) co_return co_await respond(200, kJson, std::move(bytes), keep_alive);
    const std::size_t events_bytes = bytes.size();
    std::string out;
    if (!has_begun) {
      out = head_bytes(
          200, "text/event-stream", keep_alive && is_chunked,
          is_chunked ? "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n" : "Cache-Control: no-cache\r\n\r\n");
      std::string first;
      wire::append_first_chunk(first, sink->head());
      bytes.insert(0, first);
      has_begun = true;
    }
    if (!is_chunked) {
      out += bytes;
    } else if (!bytes.empty()) {
      out += std::format("{:x}\r\n", bytes.size());
      out += bytes;
      out += "\r\n";
    }
    if (has_ended && is_chunked) out += "0\r\n\r\n";
    if (!co_await write(std::move(out))) co_return false;
    outbox->mark_written(events_bytes);
    if (has_ended) co_return keep_alive&& is_chunked;
  }
  co_return false;
}

// Returns when the client is gone: it has closed the connection, or its sending side.
Awaitable<void> HttpConnection::watch_client() {
  while (in_.size() < kPipelinedBytesMax) {
    if (!co_await read_some()) co_return;
  }
  // It has sent so much ahead that its end would not be seen; writing notices it.
  asio::steady_timer never(server_.io, asio::steady_timer::time_point::max());
  co_await never.async_wait(kAwait);
}

// --- writing

Awaitable<bool> HttpConnection::respond(int status, std::string_view content_type, std::string body, bool keep_alive,
                                        std::string_view header) {
  std::string bytes = head_bytes(status, content_type, keep_alive, header);
  bytes += std::format("Content-Length: {}\r\n\r\n", body.size());
  bytes += body;
  co_return co_await write(std::move(bytes)) && keep_alive;
}

Awaitable<bool> HttpConnection::respond_error(int status, const Error& error, bool keep_alive, std::string_view field,
                                              std::string_view header) {
  co_return co_await respond(status, kJson, wire::error_json(error, status, field), keep_alive, header);
}

// False when the client is gone, or does not take the bytes in time.
Awaitable<bool> HttpConnection::write(std::string bytes) {
  const auto written = co_await within(server_.options.write_timeout, asio::async_write(socket_, asio::buffer(bytes), kAwait));
  co_return written && !std::get<0>(*written);
}

// Ends the sending side and reads what the client still sends, for a moment: a socket closed with unread bytes could take the
// answer with it.
Awaitable<void> HttpConnection::linger() {
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);  // fails only when the client is gone, which the read notices
  const TimePoint end = SteadyClock().now() + kLinger;
  while (is_open_ && SteadyClock().now() < end) {
    in_.clear();
    const auto more = co_await within(end - SteadyClock().now(), read_some());
    if (!more || !*more) co_return;
  }
}

}  // namespace uma::server
