// WebSocket mode of /v1/responses: GET with an upgrade. docs/protocol/openai.md#websocket-mode.
//
// Two coroutines share the connection: one reads the client's events, the other answers them one after another. A third ends a
// connection that nobody uses. When one of them ends, the others are cancelled, and with them a generation in progress.
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <boost/beast/websocket/stream.hpp>

#include "base/clock.h"
#include "server/http/handlers/response_requests.h"
#include "server/http/handlers/response_sinks.h"
#include "server/http/http_connection.h"
#include "server/http/http_generation.h"
#include "server/http/routes.h"
#include "server/http/rules.h"
#include "server/http/socket_transport.h"
#include "server/wakeup.h"
#include "server/within.h"
#include "wire/openai/response_events.h"

namespace uma::server {
namespace {

namespace asio = boost::asio;
namespace websocket = boost::beast::websocket;
using Upgrade = boost::beast::http::request<boost::beast::http::empty_body>;
using websocket::close_code;

constexpr std::size_t kFrameBytes = 65'536;        // Size of one read, and of one frame that is written.
constexpr std::size_t kEventsMax = 16;             // Client's events that wait.
constexpr std::size_t kHeldMax = 8;                // Responses that are not stored.
constexpr std::size_t kHeldBytesMax = 4ul << 20;   // Limit of all held responses.
constexpr std::chrono::hours kSocketIdle{1};       // Without an event of the client.
constexpr std::chrono::seconds kSocketClosing{2};  // For the client to answer the end of the connection.
constexpr std::chrono::minutes kIdleCheck{1};

// Writes a response whose prompt alone is computed.
class WarmedWriter final : public AnswerEncoder {
 public:
  explicit WarmedWriter(wire::ResponseEncoder encoder) : encoder_(std::move(encoder)) {}

  void append_first(std::string& out) override { encoder_.append_first(out); }
  void append_text(std::string&, const TokenEvent&) override {}
  void append_last(std::string& out, const EosEvent& eos) override { encoder_.append_warmed(out, eos); }
  std::string whole(const EosEvent&) override { return ""; }
  void append_keep_alive(std::string& out) override { encoder_.append_in_progress(out); }
  std::size_t end_bytes(const EosEvent&) override { return encoder_.bytes(); }

 private:
  wire::ResponseEncoder encoder_;
};

// The part of a response that only this connection keeps; nullopt: the event is no end that can be continued.
std::optional<wire::HeldResponse> response_to_hold(const wire::ServerEvent& last, const wire::CreateEvent& create) {
  auto response = wire::held_response(last);
  if (!response) return std::nullopt;
  response->previous = create.stored_previous;
  response->items = create.items + (create.items.empty() || response->items.empty() ? "" : ",") + response->items;
  return response;
}

// The responses that only this connection knows. An event is read apart, which may outlive the connection, and nothing is added
// meanwhile: the next response comes when the event is answered.
class HeldHere final : public wire::HeldResponses {
 public:
  [[nodiscard]] const wire::HeldResponse* find(std::string_view id) const override {
    const auto found = std::ranges::find(held_, id, [](const Held& held) { return std::string_view(held.response.id); });
    return found == held_.end() ? nullptr : &found->response;
  }
  // Makes room for a response of this size: the oldest ones go. False: it is too large.
  [[nodiscard]] bool make_room(std::size_t bytes) {
    if (bytes > kHeldBytesMax) return false;
    const auto bytes_held = [&] {
      std::size_t total = bytes;
      for (const Held& held : held_) total += held.response.items.size();
      return total;
    };
    while (!held_.empty() && (held_.size() >= kHeldMax || bytes_held() > kHeldBytesMax)) held_.pop_front();
    return true;
  }
  // `share` is charged for it.
  void add(wire::HeldResponse response, RequestShare share) {
    held_.push_back({.response = std::move(response), .share = std::move(share)});
  }

 private:
  struct Held {
    wire::HeldResponse response;
    RequestShare share;
  };
  std::deque<Held> held_;
};

class ResponseSocket final : public GenerationOutput {
 public:
  explicit ResponseSocket(HttpConnection& connection)
      : connection_(connection), stream_(connection.transport()), arrived_(connection.server().io) {}

  // Answers the upgrade, and serves the connection to its end.
  Awaitable<void> run(const Upgrade& upgrade);

  // --- The output of a generation: each of its events is a message.
  Awaitable<bool> refuse(const Error& error, std::string_view field) override;
  Awaitable<bool> write(std::string bytes, bool is_last) override;

 private:
  struct Event {
    boost::beast::flat_buffer bytes;
    RequestShare share;  // Charged for it.

    [[nodiscard]] std::string_view text() const { return {static_cast<const char*>(bytes.data().data()), bytes.size()}; }
  };
  // Marks that a response is being made, which the daemon's shutdown waits for.
  class Answering {
   public:
    explicit Answering(HttpConnection& connection) : connection_(connection) { connection_.begin_answer(); }
    ~Answering() { connection_.end_answer(); }
    Answering(const Answering&) = delete;
    Answering& operator=(const Answering&) = delete;

   private:
    HttpConnection& connection_;
  };

  // These three return when the connection ends.
  Awaitable<bool> read_events();
  Awaitable<bool> answer_events();
  Awaitable<bool> watch_idle();

  Awaitable<std::optional<Event>> read_event();
  // These return false if the connection ends.
  Awaitable<bool> answer(Event event);
  Awaitable<bool> begin(wire::CreateEvent create);
  Awaitable<bool> warm(PreparedResponse made);
  Awaitable<bool> send(std::string_view text);

  // `events` are the text that `last` is a part of.
  Awaitable<void> hold(std::shared_ptr<const std::string> events, wire::ServerEvent last);
  void end_with(close_code code, const char* why) {
    if (reason_.code == close_code::none) reason_ = {code, why};
  }

  HttpConnection& connection_;
  websocket::stream<SocketTransport> stream_;
  websocket::close_reason reason_{close_code::none};
  std::deque<Event> events_;  // The client's that wait.
  std::size_t events_bytes_ = 0;
  Wakeup arrived_;  // Notified when there is an event.
  TimePoint last_event_ = SteadyClock().now();
  bool is_answering_ = false;
  std::string stream_id_;  // Stream of the event that is being answered.
  // The event whose response only this connection will know; null: there is none. Shared with the work that reads it.
  std::shared_ptr<const wire::CreateEvent> to_hold_;
  const std::shared_ptr<HeldHere> held_ = std::make_shared<HeldHere>();  // Shared with the event that is being read.
};

// --- reading

Awaitable<std::optional<ResponseSocket::Event>> ResponseSocket::read_event() {
  Event event{.bytes = {}, .share = connection_.service().open_share(connection_.tenant())};
  std::optional<TimePoint> deadline;
  do {
    const std::size_t before = event.bytes.size();
    auto reading = stream_.async_read_some(event.bytes, kFrameBytes, kAwait);
    const Duration limit = deadline ? *deadline - SteadyClock().now() : Duration::max();
    const auto got = deadline ? co_await within(limit, std::move(reading)) : std::optional(co_await std::move(reading));
    if (!got) end_with(close_code::policy_error, "the rest of the event did not arrive in time");
    if (!got || std::get<0>(*got)) co_return std::nullopt;
    if (!deadline) deadline = SteadyClock().now() + connection_.server().options.body_timeout;
    if (!event.share->resize(event.bytes.size())) {
      end_with(close_code::try_again_later, "no memory for the event now");
      co_return std::nullopt;
    }
    if (!co_await connection_.keep_pace(event.bytes.size() - before)) co_return std::nullopt;
  } while (!stream_.is_message_done());
  if (!stream_.got_text()) {
    end_with(close_code::unknown_data, "events are text");
    co_return std::nullopt;
  }
  co_return event;
}

Awaitable<bool> ResponseSocket::read_events() {
  while (auto event = co_await read_event()) {
    last_event_ = SteadyClock().now();
    events_bytes_ += event->text().size();
    if (events_.size() >= kEventsMax || events_bytes_ > connection_.body_bytes_max()) {
      end_with(close_code::policy_error, "too many events wait for the end of a response");
      co_return false;
    }
    events_.push_back(*std::move(event));
    arrived_.notify();
  }
  co_return false;
}

Awaitable<bool> ResponseSocket::watch_idle() {
  asio::steady_timer timer(connection_.server().io);
  while (true) {
    timer.expires_after(kIdleCheck);
    if (const auto [problem] = co_await timer.async_wait(kAwait); problem) co_return false;
    if (is_answering_ || SteadyClock().now() < last_event_ + kSocketIdle) continue;
    end_with(close_code::going_away, "no event for an hour");
    co_return false;
  }
}

// --- answering

Awaitable<bool> ResponseSocket::answer_events() {
  while (true) {
    while (events_.empty()) co_await arrived_.wait();
    Event event = std::move(events_.front());
    events_.pop_front();
    events_bytes_ -= event.text().size();
    is_answering_ = true;
    const bool goes_on = co_await answer(std::move(event));
    is_answering_ = false;
    last_event_ = SteadyClock().now();
    if (!goes_on) co_return false;
  }
}

Awaitable<bool> ResponseSocket::answer(Event event) {
  connection_.begin_message();
  stream_id_.clear();
  to_hold_.reset();
  if (const auto refusal = connection_.refuse_message()) {
    const bool is_told = co_await refuse(refusal->error, "");
    if (refusal->is_final) end_with(close_code::policy_error, "the key is not known to this server any more");
    co_return is_told && !refusal->is_final;
  }
  const std::size_t bytes = event.text().size();
  auto create = co_await connection_.run_apart(
      bytes, [event = std::move(event), held = held_] { return wire::decode_create_event(event.text(), *held); });
  if (!create) co_return co_await refuse(create.error().error, create.error().field);
  stream_id_ = create->stream;
  if (connection_.server().draining) {
    co_await refuse(stopping_error(), "");
    end_with(close_code::service_restart, "the daemon is stopping");
    co_return false;
  }
  const Answering answering(connection_);
  co_return co_await begin(*std::move(create));
}

Awaitable<bool> ResponseSocket::begin(wire::CreateEvent create) {
  auto body_share = connection_.hold(create.body.size());
  if (!body_share) co_return co_await refuse(body_share.error(), "");
  const auto items_share = connection_.hold(create.items.size());  // Until the response has ended.
  if (!items_share) co_return co_await refuse(items_share.error(), "");
  const std::string previous = create.is_held ? create.previous : "";
  auto made = co_await prepare_response(
      connection_, std::make_shared<const KeptBody>(std::move(create.body), *std::move(body_share)), previous);
  if (!made) co_return co_await refuse(made.error().error, made.error().field);
  const bool generates = create.generates;
  if (create.is_stored) {
    (*items_share)->give_back();
  } else {
    to_hold_ = std::make_shared<const wire::CreateEvent>(std::move(create));
  }
  if (!generates) co_return co_await warm(*std::move(made));
  const RequestShare share = std::move(made->share);
  std::vector<HttpGeneration> generations;
  generations.emplace_back(std::move(made->generate))
      .encoders.push_back(std::make_unique<ResponseWriter>(std::move(made->encoder), connection_.server().live,
                                                           connection_.tenant(), /*is_stream=*/true));
  co_return co_await connection_.run_generations(std::move(generations), *this, made->session_field);
}

// Computes the prompt where it is a whole one. What continues a stored response is computed with the next response.
Awaitable<bool> ResponseSocket::warm(PreparedResponse made) {
  if (!made.generate.session.empty()) {
    std::string events;
    made.encoder.append_first(events);
    made.encoder.append_warmed(events, EosEvent{.reason = FinishReason::stop, .usage = {}, .text = "", .error = std::nullopt});
    co_return co_await write(std::move(events), /*is_last=*/true);
  }
  made.generate.options.max_tokens = 0;
  const RequestShare share = std::move(made.share);
  std::vector<HttpGeneration> generations;
  generations.emplace_back(std::move(made.generate))
      .encoders.push_back(std::make_unique<WarmedWriter>(std::move(made.encoder)));
  co_return co_await connection_.run_generations(std::move(generations), *this, made.session_field);
}

Awaitable<bool> ResponseSocket::refuse(const Error& error, std::string_view field) {
  const Error& shown = connection_.shown_error(error);
  co_return co_await send(wire::socket_error_event(shown, http_status(error.code), field, stream_id_));
}

Awaitable<bool> ResponseSocket::write(std::string bytes, bool is_last) {
  const auto kept = std::make_shared<const std::string>(std::move(bytes));
  std::string_view events = *kept;
  while (const auto event = wire::take_event(events)) {
    if (is_last) co_await hold(kept, *event);  // Before the client knows that it has ended.
    const std::string message =
        co_await connection_.run_apart(event->json.size(), [kept, json = event->json, stream = stream_id_] {
          std::string written;
          wire::append_stream_event(written, json, stream);
          return written;
        });
    if (!co_await send(message)) co_return false;
  }
  co_return true;
}

// In frames, so that a slow client gets the time limit for each.
Awaitable<bool> ResponseSocket::send(std::string_view text) {
  do {
    const std::string_view part = text.substr(0, kFrameBytes);
    text.remove_prefix(part.size());
    auto writing = stream_.async_write_some(/*fin=*/text.empty(), asio::buffer(part), kAwait);
    const auto sent = co_await within(connection_.server().options.write_timeout, std::move(writing));
    connection_.note_written(sent && !std::get<0>(*sent) ? std::optional(part.size()) : std::nullopt);
    if (!sent || std::get<0>(*sent)) co_return false;
  } while (!text.empty());
  co_return true;
}

// --- responses that are not stored

// Keeps the response that ends with `last`, if nothing else does. The oldest ones make room for it.
Awaitable<void> ResponseSocket::hold(std::shared_ptr<const std::string> events, wire::ServerEvent last) {
  if (!to_hold_) co_return;
  auto response = co_await connection_.run_apart(
      last.json.size() + to_hold_->items.size(),
      [events = std::move(events), last, create = to_hold_] { return response_to_hold(last, *create); });
  if (!response) co_return;
  to_hold_.reset();
  const std::size_t bytes = response->items.size();
  if (!held_->make_room(bytes)) co_return;
  RequestShare share = connection_.service().open_share(connection_.tenant());
  if (!share->grow(bytes)) co_return;  // The client sends everything again then.
  held_->add(*std::move(response), std::move(share));
}

Awaitable<void> ResponseSocket::run(const Upgrade& upgrade) {
  using asio::experimental::awaitable_operators::operator||;
  const HttpServerOptions& options = connection_.server().options;
  websocket::stream_base::timeout limits{
      .handshake_timeout = options.header_timeout, .idle_timeout = options.idle_timeout, .keep_alive_pings = true};
  stream_.set_option(limits);  // Pings a silent client, and ends when it does not answer.
  stream_.set_option(
      websocket::stream_base::decorator([&](websocket::response_type& answer) { connection_.describe_upgrade(answer); }));
  stream_.read_message_max(connection_.body_bytes_max());
  stream_.auto_fragment(false);
  stream_.text(true);
  const auto [problem] = co_await stream_.async_accept(upgrade, kAwait);
  if (problem) co_return;
  connection_.end_answer();  // Idle until there is an event.
  auto ended = co_await (caught(read_events()) || caught(answer_events()) || caught(watch_idle()));
  std::visit([](auto&& outcome) { (void)value_of(std::move(outcome)); }, std::move(ended));
  if (reason_.code == close_code::none) reason_ = close_code::normal;
  co_await within(kSocketClosing, stream_.async_close(reason_, kAwait));
}

}  // namespace

handlers::Answer handlers::open_response_socket(HttpConnection& connection, const HttpRequest& request) {
  Upgrade upgrade(boost::beast::http::verb::get, std::string(request.path), request.version);
  for (const auto& field : request.head) upgrade.insert(field.name_string(), field.value());
  if (!websocket::is_upgrade(upgrade)) {
    const Error error{ErrorCode::proto_type, "GET /v1/responses opens a WebSocket: send POST to create a response"};
    co_return co_await connection.respond_error(426, error, request.keep_alive, "", "Upgrade: websocket\r\n");
  }
  if (connection.has_unread_bytes()) {
    const Error error{ErrorCode::proto_frame, "bytes follow the upgrade to WebSocket: wait for its answer"};
    co_return co_await connection.respond_error(400, error, false);
  }
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping_error(), false);
  ResponseSocket socket(connection);
  co_await socket.run(upgrade);
  co_return false;
}

}  // namespace uma::server
