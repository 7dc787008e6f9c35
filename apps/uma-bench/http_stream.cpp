#include "uma-bench/http_stream.h"

#include <algorithm>
#include <format>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

namespace uma::bench {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;

namespace {

constexpr auto kHttpResult = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kErrorBodyBytesMax = 4096;

}  // namespace

awaitable<StreamRecord> HttpStream::post(const Job& job, std::string_view path, std::string body, ParseEvent parse) {
  StreamRecorder recorder(job, clock_.now_ms());
  std::optional<Parser> parser;
  if (auto started = co_await start_request(path, std::move(body), parser); !started) {
    recorder.fail(started.error(), clock_.now_ms());
  } else if (auto read = co_await read_events(*parser, parse, recorder); !read) {
    close();
    recorder.fail(read.error(), clock_.now_ms());
  } else if (!parser->keep_alive()) {
    close();
  }
  co_return recorder.take();
}

// Sends the request and reads the head of its answer. The server may have closed an idle connection: a request that
// fails on a kept one is sent once more, on a new one.
awaitable<std::expected<void, Failure>> HttpStream::start_request(std::string_view path, std::string body,
                                                                  std::optional<Parser>& parser) {
  http::request<http::string_body> request(http::verb::post, path, 11);
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

awaitable<std::expected<void, Failure>> HttpStream::connect() {
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

awaitable<std::expected<void, Failure>> HttpStream::read_events(Parser& parser, const ParseEvent& parse,
                                                                StreamRecorder& recorder) {
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
      const auto event = parse(*data);
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

std::unexpected<Failure> HttpStream::lost(std::string_view what, const boost::system::error_code& error) const {
  return std::unexpected(Failure{Failure::Kind::server, std::format("{} {}: {}", what, endpoint_.address, error.message())});
}

void HttpStream::close() {
  boost::system::error_code ignored;
  socket_.close(ignored);
  buffer_.clear();
}

}  // namespace uma::bench
