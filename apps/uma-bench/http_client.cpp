// A client of OpenAI's POST /v1/completions with "stream": true, on a persistent connection.
#include <array>
#include <expected>
#include <format>
#include <optional>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

#include "client.h"
#include "json/json_writer.h"
#include "stream_recorder.h"

namespace uma::bench {

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
template <class T>
using Result = std::expected<T, Failure>;

constexpr auto kHttpResult = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kErrorBodyBytesMax = 4096;

class HttpClient final : public Client {
 public:
  HttpClient(const asio::any_io_executor& executor, const Endpoint& endpoint, const RunClock& clock)
      : endpoint_(endpoint), clock_(clock), socket_(executor) {}

  awaitable<StreamRecord> generate(Job job) override { co_return co_await stream(job, job.prompt, /*with_text=*/false); }

  awaitable<StreamRecord> converse(Job job) override {
    history_ += (history_.empty() ? "" : " ") + job.prompt;
    StreamRecord record = co_await stream(job, history_, /*with_text=*/true);
    history_ += record.reply;
    co_return record;
  }

  void disconnect() override { close(); }

  awaitable<void> end_conversation() override {
    history_.clear();
    co_return;
  }

 private:
  using Parser = http::response_parser<http::buffer_body>;

  // The extensions at the top level, which llama-server reads, and in `uma`, which umad reads.
  std::string make_body(const Job& job, std::string_view prompt) const {
    std::string body;
    json::ObjectWriter request(body);
    if (!endpoint_.model.empty()) {
      request.field("model", endpoint_.model);
    }
    request.field("prompt", prompt);
    request.field("max_tokens", job.tokens);
    request.field("temperature", 0);
    request.field("stream", true);
    request.begin("stream_options") += R"({"include_usage":true})";
    request.field("ignore_eos", true);
    std::string& ours = request.begin("uma");
    json::ObjectWriter options(ours);
    options.field("ignore_eos", true);
    options.field("deadline_ms", 0);
    if (job.background) {
      options.field("class", "background");
    }
    options.close();
    request.close();
    return body;
  }

  awaitable<StreamRecord> stream(const Job& job, std::string_view prompt, bool with_text) {
    StreamRecorder recorder(job, clock_.now_ms());
    std::optional<Parser> parser;
    if (auto started = co_await start_request(make_body(job, prompt), parser); !started) {
      recorder.fail(started.error(), clock_.now_ms());
    } else if (auto read = co_await read_events(*parser, with_text, recorder); !read) {
      close();
      recorder.fail(read.error(), clock_.now_ms());
    } else if (!parser->keep_alive()) {
      close();
    }
    co_return recorder.take();
  }

  // Sends the request and reads the head of its answer. The server may have closed an idle connection; only in that case the
  // request is sent once more on a new connection.
  awaitable<Result<void>> start_request(std::string body, std::optional<Parser>& parser) {
    http::request<http::string_body> request(http::verb::post, "/v1/completions", 11);
    request.set(http::field::host, endpoint_.address);
    request.set(http::field::content_type, "application/json");
    request.body() = std::move(body);
    request.prepare_payload();
    for (;;) {
      const bool kept = socket_.is_open();
      if (!kept) {
        if (auto connected = co_await connect(); !connected) {
          co_return connected;
        }
      }
      parser.emplace();
      parser->body_limit(boost::none);
      auto [write_error, written] = co_await http::async_write(socket_, request, kHttpResult);
      auto error = write_error;
      if (!error) {
        auto [read_error, read] = co_await http::async_read_header(socket_, buffer_, *parser, kHttpResult);
        error = read_error;
      }
      if (!error) {
        co_return Result<void>{};
      }
      close();
      if (!kept) {
        co_return lost("no answer from", error);
      }
    }
  }

  awaitable<Result<void>> connect() {
    const std::size_t colon = endpoint_.address.rfind(':');
    asio::ip::tcp::resolver resolver(socket_.get_executor());
    auto [resolve_error, addresses] =
        co_await resolver.async_resolve(endpoint_.address.substr(0, colon), endpoint_.address.substr(colon + 1), kHttpResult);
    if (resolve_error) {
      co_return lost("cannot find", resolve_error);
    }
    auto [connect_error, address] = co_await asio::async_connect(socket_, addresses, kHttpResult);
    if (connect_error) {
      co_return lost("cannot connect to", connect_error);
    }
    boost::system::error_code ignored;  // A failure only makes small writes slower.
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    co_return Result<void>{};
  }

  awaitable<Result<void>> read_events(Parser& parser, bool with_text, StreamRecorder& recorder) {
    const bool refused = parser.get().result() != http::status::ok;
    std::string error_body;
    SseReader reader;
    bool ended = false;
    while (!parser.is_done()) {
      parser.get().body().data = chunk_.data();
      parser.get().body().size = chunk_.size();
      auto [error, transferred] = co_await http::async_read_some(socket_, buffer_, parser, kHttpResult);
      if (error && error != http::error::need_buffer) {
        co_return lost("incomplete answer from", error);
      }
      const double arrived_ms = clock_.now_ms();
      const std::string_view bytes(chunk_.data(), chunk_.size() - parser.get().body().size);
      if (refused) {
        error_body += bytes.substr(0, kErrorBodyBytesMax - std::min(kErrorBodyBytesMax, error_body.size()));
        continue;
      }
      reader.append(bytes);
      while (const auto data = reader.next()) {
        const auto event = parse_completion_event(*data, with_text);
        if (!event) {
          co_return std::unexpected(event.error());
        }
        recorder.add(*event, arrived_ms);
        ended = ended || event->is_end;
      }
    }
    if (refused) {
      co_return std::unexpected(
          Failure{Failure::Kind::server, std::format("HTTP {}: {}", parser.get().result_int(), error_message(error_body))});
    }
    if (!ended) {
      co_return std::unexpected(Failure{Failure::Kind::protocol, "the event stream ended without [DONE]"});
    }
    co_return Result<void>{};
  }

  std::unexpected<Failure> lost(std::string_view what, const boost::system::error_code& error) {
    return std::unexpected(Failure{Failure::Kind::server, std::format("{} {}: {}", what, endpoint_.address, error.message())});
  }

  void close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
    buffer_.clear();
  }

  const Endpoint endpoint_;
  const RunClock& clock_;
  asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
  std::array<char, 16384> chunk_;
  std::string history_;  // The conversation so far.
};

}  // namespace

std::unique_ptr<Client> make_http_client(const asio::any_io_executor& executor, const Endpoint& endpoint,
                                         const RunClock& clock) {
  return std::make_unique<HttpClient>(executor, endpoint, clock);
}

}  // namespace uma::bench
