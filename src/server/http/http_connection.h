// One HTTP client. One coroutine on the server's thread reads, checks and answers its requests one after another.
//
// A request is checked before its body is read: framing, Host, Origin, key, path, method, limits of the key. Then the handler
// of its path answers (routes.h). During a generation the connection is still read: a client that closes it, or its sending
// side, cancels the generation; bytes of a next request wait. The class is large because every kind of answer writes to the one
// socket that it owns; the handlers of the paths are elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <format>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/check.h"
#include "base/move_only_function.h"
#include "base/mutex.h"
#include "base/thrown.h"
#include "core/service.h"
#include "server/awaitable.h"
#include "server/awaited_reply.h"
#include "server/connection_shares.h"
#include "server/flush_queue.h"
#include "server/http/account.h"
#include "server/http/http_generation.h"
#include "server/http/http_peer.h"
#include "server/http/http_state.h"
#include "server/http/rules.h"
#include "server/http/socket_transport.h"
#include "server/server_state.h"
#include "server/wakeup.h"
#include "server/within.h"
#include "wire/json_body.h"

namespace uma::server {

inline constexpr std::string_view kJson = "application/json";

// The body of a request after its first wait, or another text that is read like one. Shared with the work that reads it.
struct KeptBody {
  std::string text;
  RequestShare share;  // Charged for it; null: it is empty.
};
using KeptBodyPtr = std::shared_ptr<const KeptBody>;

// How an answer is made of its value (HttpConnection::respond_with).
struct AnswerOptions {
  std::size_t bytes = 0;  // About the size of the body, beyond what the value tells.
  RequestShare share{};   // Charged for the value and the body before they were made; null: the answer is charged for them.
  bool has_etag = false;  // Clients read it again and again: it has an ETag, and is a 304 alone if the client has it already.
};

// A handler's view of the request. Borrowed: valid until the answer is written; the body only until the service is called.
struct HttpRequest {
  const boost::beast::http::fields& head;
  std::string_view path;         // Decoded, without the query.
  std::vector<std::string> ids;  // Values of the braces in the route's path.
  std::string_view query;        // Text after the question mark.
  std::string_view body;
  unsigned version = 11;
  bool keep_alive = false;  // Whether the connection stays open after a successful answer.
};

// Owned by HttpState::connections and by its coroutine. `server` outlives the connection.
class HttpConnection final : public Flushable, public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  // Serves the socket. Closes it at once beyond connections_max or beyond the peer's share.
  static void start(Socket socket, HttpPeer peer, HttpState& server);
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Called when the generation has events to write.
  void flush() override { has_events_.notify(); }
  // Closes the socket, which ends the coroutine and cancels its requests. Later calls do nothing.
  void close();
  // Whether the connection waits for a request, or for the rest of one.
  [[nodiscard]] bool is_idle() const { return !is_answering_; }

  // --- For handlers. Each answers once, with one of the calls that return whether the connection goes on.

  [[nodiscard]] HttpState& server() { return server_; }
  [[nodiscard]] Service& service() { return server_.service; }
  [[nodiscard]] const TenantId& tenant() const { return current_.caller->tenant(); }
  [[nodiscard]] const std::shared_ptr<Account>& caller() const { return current_.caller; }

  // Whether the caller may administer this server (HttpRoute::is_administrative): a program of this server's own user without a
  // key, or a key with admin=true. A page of another origin is not that user, though it runs in their browser.
  [[nodiscard]] bool is_administrator() const {
    if (needs_no_key()) return peer_.is_own_user && current_.cors_header.empty();
    return current_.caller && current_.caller->is_admin();
  }
  // Answers a caller who is not the administrator.
  Awaitable<bool> refuse_administration(bool keep_alive);

  [[nodiscard]] std::uint64_t client() const { return client_; }
  // The name of the model that answers a request for `asked`; `asked` itself if there is none. If it is another model, the
  // answer says so in its header. A chat model is followed by the adapter that `asked` means, as in "m:sql". Ollama's clients
  // write names with a tag: "m:latest" is "m".
  [[nodiscard]] std::string choose_model(const std::string& asked, Capability capability);
  // Adds a line x-uma-warning to the header of the answer: the request is served, but not in every point.
  void warn(std::string_view text);
  void warn(std::span<const std::string> texts);
  // Adds x-uma-schema-left-out, with the keywords of schemas that the answer's grammar does not enforce, if there are any.
  void note_schema_left_out(const std::vector<std::string>& places);
  // Names the session that the request used or made, for the header of the answer.
  void note_session(std::string_view id) { current_.session = id; }
  // Charges the caller with input tokens of an answer that is no generation.
  void charge(std::int64_t tokens);
  // Returns when the client has closed the connection or its sending side.
  Awaitable<void> watch_client();
  // The operation's result, or nullopt if the client left first.
  template <class T>
  Awaitable<std::optional<T>> until_gone(Awaitable<T> operation);

  // Answers with generations, either whole or as a stream; all have the same mode. If one fails, the answer fails.
  // `session_field` is the field that named their session, if any.
  Awaitable<bool> generate(std::vector<HttpGeneration> generations, const HttpRequest& request,
                           std::string_view session_field = "");
  // Runs generations to their end, and passes their output on. Ends early if the connection is closed, or the output ends it.
  Awaitable<bool> run_generations(std::vector<HttpGeneration> generations, GenerationOutput& output,
                                  std::string_view session_field);
  // Answers with a stream of `content_type`. next(out) appends what there is to send and returns false after the last of it;
  // it is called again after each wake-up (waker()). Ends early if the client leaves.
  Awaitable<bool> stream(std::string_view content_type, MoveOnlyFunction<bool(std::string& out)> next,
                         const HttpRequest& request);
  // From now on the daemon's shutdown does not wait for this answer, which has no end of its own.
  void leave_unawaited();
  // Wakes the connection, from any thread; does nothing after its end.
  [[nodiscard]] std::function<void()> waker();
  // Starts a request for pictures, which is charged to the caller by its receipt, also after the connection has ended.
  RequestId draw(PictureRequest request, std::shared_ptr<PictureSink> sink, Promise<PictureReceipt> reply);
  // Starts a generation that does not end with the connection.
  void generate_detached(GenerateRequest request, std::shared_ptr<EventSink> sink);
  // Returns read(body) of the request's own body. A long body is read apart (Service::run_apart); `read` owns what it refers
  // to, since the connection may end before. Throws if the connection was closed meanwhile, which ends its coroutine.
  template <class Read, class Result = std::invoke_result_t<Read&, std::string_view>>
  Awaitable<Result> read_body(std::string_view body, Read read);
  template <class Read, class Result = std::invoke_result_t<Read&, std::string_view>>
  Awaitable<Result> read_body(KeptBodyPtr body, Read read);
  // Takes the request's body, so that it is there after the service was called. It is counted until its last user is gone.
  [[nodiscard]] KeptBodyPtr keep_body();
  // Counts so many bytes of an answer for the caller as long as the share exists; up to 64 KiB, which every connection may
  // have, are free. Errors: E_LIMIT_003.
  [[nodiscard]] Expected<RequestShare> hold(std::size_t bytes);
  // Runs work of sinks that takes as long as its bytes for the caller; also after the end of the connection, from any thread.
  [[nodiscard]] RunApart apart();
  // Returns work(), which takes as long as its `bytes`, in the same way.
  template <class Work, class Result = std::invoke_result_t<Work&>>
  Awaitable<Result> run_apart(std::size_t bytes, Work work);
  // Calls the service by start(reply) and returns its reply, or nullopt if the connection was closed meanwhile.
  template <class T, class StartT>
  Awaitable<std::optional<Expected<T>>> ask(StartT start);
  // Like ask(), and returns nullopt also if the client has left.
  template <class T, class StartT>
  Awaitable<std::optional<Expected<T>>> ask_until_gone(StartT start);
  // Like ask_until_gone(), for a start(reply) that returns the request's id: it is cancelled if the client leaves.
  template <class T, class StartT>
  Awaitable<std::optional<Expected<T>>> ask_cancelling(StartT start);
  // Answers with the number of tokens of the request's input, which may continue nothing, as json(tokens) writes it.
  Awaitable<bool> count_tokens(GenerateRequest counted, const HttpRequest& request, std::string (*json)(std::int32_t tokens));
  // Answers with the result of ask(): json(value) is the body, or the reason to reject the request. bytes_of(value) is about
  // the size of a body that may be long: it is counted with its value, and written apart, so `json` owns what it refers to
  // (read_body()).
  template <class T, class JsonT>
  Awaitable<bool> respond_with(std::optional<Expected<T>> value, const HttpRequest& request, JsonT json,
                               std::type_identity_t<std::size_t (*)(const T&)> bytes_of = nullptr, AnswerOptions options = {});
  // `share` is charged for the body from now on; null: a share of its own is. Without room for a body of more than 64 KiB the
  // answer is E_LIMIT_003, so who changes or computes something charges a share before it begins.
  Awaitable<bool> respond(int status, std::string_view content_type, std::string body, bool keep_alive,
                          std::string_view header = "", RequestShare share = nullptr);
  Awaitable<bool> respond_error(int status, const Error& error, bool keep_alive, std::string_view field = "",
                                std::string_view header = "");
  // Answers with the status of the error's code. `field`: what has caused it.
  Awaitable<bool> respond_failed(const Error& error, const HttpRequest& request, std::string_view field = "");
  Awaitable<bool> respond_rejected(const wire::RejectedBody& rejected, const HttpRequest& request);
  // The error as the client should see it: choose_model() knows more of an unknown name than the engine.
  [[nodiscard]] const Error& shown_error(const Error& error) const {
    return error.code == ErrorCode::model_unknown && current_.unknown_model ? *current_.unknown_model : error;
  }

  // --- For a handler that makes a WebSocket of the connection.

  [[nodiscard]] SocketTransport transport() { return {socket_, tls_ ? &*tls_ : nullptr}; }
  [[nodiscard]] bool has_unread_bytes() const { return in_.size() > 0; }
  // The limit for a body at the request's path.
  [[nodiscard]] std::size_t body_bytes_max() const { return body_bytes_max_; }
  // Adds the headers of every answer to that of the upgrade, and notes its status.
  void describe_upgrade(boost::beast::http::fields& answer);
  // Whether an answer is in progress, which the daemon's shutdown waits for; otherwise it closes the connection.
  void begin_answer();
  void end_answer();
  // Forgets what the message before has left for the answer's header.
  void begin_message();
  // Why a message is not admitted, if it is not: the key's limits, or the key is not in effect any more, which ends the
  // connection.
  struct MessageRefusal {
    Error error;
    bool is_final = false;
  };
  [[nodiscard]] std::optional<MessageRefusal> refuse_message();
  // Waits if the caller sends bodies, or messages, faster than anybody needs to (Account::take_body), after so many bytes were
  // read. False: the wait was cancelled.
  Awaitable<bool> keep_pace(std::size_t bytes);
  // Counts bytes of an answer; nullopt: they could not be written.
  void note_written(std::optional<std::size_t> bytes);

 private:
  void warn_of_unseen(const GenerateRequest& request);
  [[nodiscard]] std::string with_adapter(const std::string& model, std::string_view asked) const;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  class BusyMark;

  // Tokens used by the generations of one request. Engine threads add, the server's thread reads.
  struct Spent {
    Counter generations;  // Generations that have ended, and other users of tokens.
    Counter prompt_tokens;
    Counter completion_tokens;
  };
  class GenerationGuard;
  class HttpOutput;
  class MeteredSink;

  // The request that is being read or answered.
  struct Current {
    std::string id;
    std::shared_ptr<Account> caller;       // Null until the caller is known.
    Agent agent{};                         // That the headers name.
    Agent last_agent{};                    // Agent of the last generation.
    std::string body;                      // Empty after it was passed on.
    RequestShare share;                    // Reserved memory for the body; null without a body.
    std::string cors_header;               // Header lines for every answer to a page of another origin.
    std::string warnings;                  // Header lines of warn() and note_schema_left_out().
    std::optional<Error> unknown_model{};  // Why choose_model() has found none.
    std::string session;                   // The session's id, for x-uma-session; empty: none, or not known yet.
    TimePoint began{};
    std::string method;
    std::string path;
    int status = 0;
    std::size_t bytes = 0;  // Bytes of the answer that were written.
    bool is_cut = false;    // The answer could not be written completely.
    std::shared_ptr<Spent> spent = std::make_shared<Spent>();
  };

  enum class ReadEnd : std::uint8_t { done, closed, timed_out, malformed, no_room };

  HttpConnection(Socket socket, HttpPeer peer, HttpState& server);

  Awaitable<void> run();
  // Handles one request from its first byte to the last byte of its answer; returns false if the connection ends.
  Awaitable<bool> serve_request();

  // Returns false if no further request can follow.
  Awaitable<bool> wait_for_request();
  Awaitable<bool> read_some(std::size_t bytes_max);
  Awaitable<ReadEnd> parse_head(Parser& parser);
  Awaitable<ReadEnd> parse_body(Parser& parser);
  void drop_body();
  ReadEnd parse_available(Parser& parser);
  Awaitable<bool> refuse_unread(ReadEnd end);
  struct Refusal {
    int status = 0;
    Error error;
    std::string header{};
  };
  [[nodiscard]] bool needs_no_key() const { return peer_.is_local || (!server_.keys.are_needed() && !peer_.refusal); }
  // Identifies the caller and checks its permission. Fills current_.
  std::optional<Refusal> check_head(const Parser& parser);
  std::optional<Refusal> check_origin(const Parser& parser);
  std::optional<Refusal> check_key(const Parser& parser);
  std::optional<Refusal> take_place_of_tenant();
  [[nodiscard]] bool is_monitoring() const;
  std::optional<Refusal> check_limits(bool uses_tokens);
  void log_access();
  void set_caller(GenerateRequest& request);

  [[nodiscard]] std::vector<std::shared_ptr<GenerationSink>> start_generations(std::vector<HttpGeneration> generations,
                                                                               const std::shared_ptr<Outbox>& outbox,
                                                                               GenerationGuard& guard);
  Awaitable<bool> write_stream(std::string_view content_type, MoveOnlyFunction<bool(std::string& out)> next,
                               const HttpRequest& request);
  [[nodiscard]] std::string stream_head(std::string_view content_type, const HttpRequest& request);
  // The beginning of an answer's header. `header` holds the lines that are specific to this answer.
  std::string head_bytes(int status, std::string_view content_type, bool keep_alive, std::string_view header);
  // ask(), which keeps the request's body.
  template <class T, class StartT>
  Awaitable<std::optional<Expected<T>>> answer_of(StartT start);
  // Returns false if the client is gone, or does not read a part in time. Counts the bytes that were written.
  Awaitable<bool> write(std::string head, std::string body = "");
  // Answers in place of a body that there is no room for.
  Awaitable<bool> refuse_body(const Error& error, bool keep_alive);
  Awaitable<bool> write_part(std::string_view first, std::string_view second);
  Awaitable<void> linger();

  HttpState& server_;
  Socket socket_;
  const HttpPeer peer_;
  std::optional<ConnectionShares::Place> place_;          // The peer's, until a key tells whose tenant's it is.
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;  // If set, all data passes through it.
  const std::uint64_t client_;
  boost::beast::flat_buffer in_;  // Received, but not parsed yet.
  Wakeup has_events_;             // Notified when there are events to write.
  boost::system::error_code parse_problem_;
  Error no_room_;                   // Why memory for the rest of the body could not be reserved.
  std::size_t body_bytes_max_ = 0;  // Body limit of the current request.
  Current current_;
  std::optional<TimePoint> idle_since_;  // When the wait for a request's first byte began; nullopt: there is one.
  bool is_open_ = true;
  bool is_answering_ = false;
  bool is_awaited_ = false;  // Counted in server_.busy.
};

template <class Read, class Result>
Awaitable<Result> HttpConnection::read_body(std::string_view body, Read read) {
  UMA_CHECK(body.data() == current_.body.data());
  if (body.size() < kApartBytes) co_return read(body);
  const auto kept = std::make_shared<std::string>(std::move(current_.body));
  Result result = co_await run_apart(kept->size(),
                                     [kept, share = current_.share, read = std::move(read)]() mutable { return read(*kept); });
  current_.body = std::move(*kept);  // The bytes are the same, at the same place.
  co_return result;
}

template <class Read, class Result>
Awaitable<Result> HttpConnection::read_body(KeptBodyPtr body, Read read) {
  const std::size_t bytes = body->text.size();
  return run_apart(bytes,
                   [body = std::move(body), read = std::move(read)]() mutable { return read(std::string_view(body->text)); });
}

template <class Work, class Result>
Awaitable<Result> HttpConnection::run_apart(std::size_t bytes, Work work) {
  if (bytes < kApartBytes) co_return work();
  auto done = co_await answer_of<Result>([&](Promise<Result> reply) {
    service().run_apart(current_.caller ? tenant() : TenantId(), bytes,
                        [work = std::move(work), reply = std::move(reply)]() mutable {
                          reply(contain([&]() -> Expected<Result> { return work(); }));
                        });
  });
  if (!done || !*done) throw boost::system::system_error(boost::asio::error::operation_aborted);
  co_return std::move(**done);
}

template <class T, class StartT>
Awaitable<std::optional<Expected<T>>> HttpConnection::ask(StartT start) {
  return answer_of<T>([this, start = std::move(start)](Promise<T> reply) mutable {
    start(std::move(reply));
    drop_body();
  });
}

template <class T, class StartT>
Awaitable<std::optional<Expected<T>>> HttpConnection::answer_of(StartT start) {
  AwaitedReply<T> answer;
  start(answer.reply(server_.flushes, weak_from_this()));
  co_return co_await answer.wait(has_events_, is_open_);
}

template <class T, class StartT>
Awaitable<std::optional<Expected<T>>> HttpConnection::ask_until_gone(StartT start) {
  auto answer = co_await until_gone(ask<T>(std::move(start)));
  co_return answer ? std::move(*answer) : std::nullopt;
}

template <class T, class StartT>
Awaitable<std::optional<Expected<T>>> HttpConnection::ask_cancelling(StartT start) {
  RequestId id;
  auto answer = co_await ask_until_gone<T>([&](Promise<T> reply) { id = start(std::move(reply)); });
  if (!answer) service().cancel(id, [](Expected<bool>) {});
  co_return answer;
}

template <class T>
Awaitable<std::optional<T>> HttpConnection::until_gone(Awaitable<T> operation) {
  using boost::asio::experimental::awaitable_operators::operator||;
  auto first = co_await (caught(std::move(operation)) || watch_client());
  if (first.index() != 0) co_return std::nullopt;
  co_return value_of(std::get<0>(std::move(first)));
}

template <class T, class JsonT>
Awaitable<bool> HttpConnection::respond_with(std::optional<Expected<T>> value, const HttpRequest& request, JsonT json,
                                             std::type_identity_t<std::size_t (*)(const T&)> bytes_of, AnswerOptions options) {
  if (!value) co_return false;
  if (!*value) co_return co_await respond_failed(value->error(), request, value->error().field);
  const std::size_t bytes = options.bytes + (bytes_of != nullptr ? bytes_of(**value) : 0);
  if (options.share == nullptr && bytes >= kApartBytes) {
    auto held = hold(2 * bytes);  // The value, while it waits for its turn, and the body.
    if (!held) {
      value.reset();
      co_return co_await refuse_body(held.error(), request.keep_alive);
    }
    options.share = *std::move(held);
  }
  struct Made {
    std::expected<std::string, wire::RejectedBody> body;
    std::string etag{};
  };
  Made made = co_await run_apart(
      bytes, [value = std::move(**value), json = std::move(json), share = options.share, has_etag = options.has_etag]() {
        Made written{.body = json(value)};
        if (has_etag && written.body) written.etag = etag_of(*written.body);
        return written;
      });
  if (!made.body) co_return co_await respond_rejected(made.body.error(), request);
  if (!options.has_etag) {
    co_return co_await respond(200, kJson, *std::move(made.body), request.keep_alive, "", std::move(options.share));
  }
  const std::string header = std::format("ETag: {}\r\nCache-Control: no-cache\r\n", made.etag);
  const bool is_known = request.head[boost::beast::http::field::if_none_match] == made.etag;
  if (is_known) made.body->clear();
  co_return co_await respond(is_known ? 304 : 200, kJson, *std::move(made.body), request.keep_alive, header,
                             std::move(options.share));
}

}  // namespace uma::server
