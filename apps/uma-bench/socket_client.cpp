// A client of the framed JSON protocol on a Unix socket. Each connection has one request at a time, so ids need not be
// compared.
#include <array>
#include <expected>
#include <format>
#include <optional>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "json/json_writer.h"
#include "uma-bench/client.h"
#include "uma-bench/stream_recorder.h"
#include "wire/own/frame.h"

namespace uma::bench {

namespace {

namespace asio = boost::asio;
using asio::awaitable;
template <class T>
using Result = std::expected<T, Failure>;

constexpr auto kSocketResult = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kFrameBytesMax = 64u << 20;

class SocketClient final : public Client {
 public:
  SocketClient(const asio::any_io_executor& executor, const Endpoint& endpoint, const RunClock& clock)
      : endpoint_(endpoint), clock_(clock), socket_(executor) {}

  awaitable<StreamRecord> generate(Job job) override {
    co_return co_await stream(job, make_generate(job, {}), /*with_text=*/false);
  }

  awaitable<StreamRecord> converse(Job job) override {
    if (session_id_.empty()) {
      if (auto created = co_await create_session(); !created) {
        StreamRecorder recorder(job, clock_.now_ms());
        recorder.fail(created.error(), clock_.now_ms());
        co_return recorder.take();
      }
    } else {
      job.prompt.insert(0, 1, ' ');  // The new text continues the old one.
    }
    co_return co_await stream(job, make_generate(job, session_id_), /*with_text=*/false);
  }

  void disconnect() override { close(); }

  awaitable<void> end_conversation() override {
    if (session_id_.empty()) {
      co_return;
    }
    std::string body;
    json::ObjectWriter request(body);
    request.field("id", "end");
    request.field("type", "end_session");
    request.field("session_id", session_id_);
    request.close();
    session_id_.clear();
    // The answer is ignored: a session that could not be deleted ends with the server.
    if (co_await send(body)) {
      co_await next_event(false);
    }
  }

 private:
  std::string make_generate(const Job& job, std::string_view session_id) const {
    std::string body;
    json::ObjectWriter request(body);
    request.field("id", "generate");
    request.field("type", "generate");
    if (!session_id.empty()) {
      request.field("session_id", session_id);
    } else if (!endpoint_.model.empty()) {
      request.field("model", endpoint_.model);
    }
    request.field("prompt", job.prompt);
    request.field("max_tokens", job.tokens);
    request.field("temperature", 0);
    request.field("ignore_eos", true);
    request.field("deadline_ms", 0);  // Some scenarios measure the waiting time.
    if (job.background) {
      request.field("class", "background");
    }
    request.close();
    return body;
  }

  awaitable<Result<void>> create_session() {
    std::string body;
    json::ObjectWriter request(body);
    request.field("id", "create");
    request.field("type", "create_session");
    request.field("mode", "text");  // Both protocols must see the same text.
    if (!endpoint_.model.empty()) {
      request.field("model", endpoint_.model);
    }
    request.close();
    if (auto sent = co_await send(body); !sent) {
      co_return sent;
    }
    auto event = co_await next_event(false);
    if (!event) {
      co_return std::unexpected(event.error());
    }
    if (event->session_id.empty()) {
      co_return std::unexpected(Failure{Failure::Kind::protocol, "create_session was answered without a session_id"});
    }
    session_id_ = event->session_id;
    co_return Result<void>{};
  }

  awaitable<StreamRecord> stream(const Job& job, std::string body, bool with_text) {
    StreamRecorder recorder(job, clock_.now_ms());
    if (auto sent = co_await send(body); !sent) {
      recorder.fail(sent.error(), clock_.now_ms());
      co_return recorder.take();
    }
    for (bool ended = false; !ended;) {
      const auto event = co_await next_event(with_text);
      if (!event) {
        recorder.fail(event.error(), clock_.now_ms());
        break;
      }
      recorder.add(*event, arrived_ms_);
      ended = event->is_end;
    }
    co_return recorder.take();
  }

  awaitable<Result<void>> send(std::string body) {
    if (!socket_.is_open()) {
      auto [error] = co_await socket_.async_connect(asio::local::stream_protocol::endpoint(endpoint_.address), kSocketResult);
      if (error) {
        co_return lost("cannot connect to", error);
      }
    }
    std::string frame;
    wire::append_frame(frame, body);
    auto [error, bytes] = co_await asio::async_write(socket_, asio::buffer(frame), kSocketResult);
    if (error) {
      co_return lost("cannot write to", error);
    }
    co_return Result<void>{};
  }

  awaitable<Result<ServerEvent>> next_event(bool with_text) {
    for (;;) {
      const auto frame = reader_->next();
      if (!frame) {
        close();
        co_return std::unexpected(Failure{Failure::Kind::protocol, frame.error().message});
      }
      if (frame->has_value()) {
        co_return parse_frame_event(**frame, with_text);
      }
      auto [error, bytes] = co_await socket_.async_read_some(asio::buffer(chunk_), kSocketResult);
      if (error) {
        co_return lost("no answer from", error);
      }
      arrived_ms_ = clock_.now_ms();
      reader_->append({chunk_.data(), bytes});
    }
  }

  std::unexpected<Failure> lost(std::string_view what, const boost::system::error_code& error) {
    close();
    return std::unexpected(Failure{Failure::Kind::server, std::format("{} {}: {}", what, endpoint_.address, error.message())});
  }

  void close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
    reader_.emplace(kFrameBytesMax);
  }

  const Endpoint endpoint_;
  const RunClock& clock_;
  asio::local::stream_protocol::socket socket_;
  std::optional<wire::FrameReader> reader_{kFrameBytesMax};  // Never empty; replaced with each connection.
  std::array<char, 16384> chunk_;
  double arrived_ms_ = 0;  // When the bytes of the last event arrived.
  std::string session_id_;
};

}  // namespace

std::unique_ptr<Client> make_socket_client(const asio::any_io_executor& executor, const Endpoint& endpoint,
                                           const RunClock& clock) {
  return std::make_unique<SocketClient>(executor, endpoint, clock);
}

std::unique_ptr<Client> make_client(const asio::any_io_executor& executor, const Endpoint& endpoint, const RunClock& clock) {
  return endpoint.is_http ? make_http_client(executor, endpoint, clock) : make_socket_client(executor, endpoint, clock);
}

}  // namespace uma::bench
