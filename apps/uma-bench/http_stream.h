// A persistent connection to an OpenAI server: sends a request and reads its server-sent events.
#pragma once

#include <array>
#include <expected>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "uma-bench/client.h"
#include "uma-bench/events.h"
#include "uma-bench/stream_recorder.h"

namespace uma::bench {

// One request at a time, on the thread of its executor.
class HttpStream {
 public:
  using ParseEvent = std::function<std::expected<ServerEvent, Failure>(std::string_view data)>;

  // `clock` must outlive the stream.
  HttpStream(const boost::asio::any_io_executor& executor, const Endpoint& endpoint, const RunClock& clock)
      : endpoint_(endpoint), clock_(clock), socket_(executor) {}

  [[nodiscard]] const Endpoint& endpoint() const { return endpoint_; }

  // Posts `body` to `path` and records the events of the answer. A failure is stored in the record, and the next call connects
  // again.
  boost::asio::awaitable<StreamRecord> post(const Job& job, std::string_view path, std::string body, ParseEvent parse);
  // Closes the connection; the next call connects again.
  void close();

 private:
  using Parser = boost::beast::http::response_parser<boost::beast::http::buffer_body>;
  template <class T>
  using Result = std::expected<T, Failure>;

  boost::asio::awaitable<Result<void>> start_request(std::string_view path, std::string body, std::optional<Parser>& parser);
  boost::asio::awaitable<Result<void>> connect();
  boost::asio::awaitable<Result<void>> read_events(Parser& parser, const ParseEvent& parse, StreamRecorder& recorder);
  std::unexpected<Failure> lost(std::string_view what, const boost::system::error_code& error) const;

  const Endpoint endpoint_;
  const RunClock& clock_;
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
  std::array<char, 16384> chunk_;
};

}  // namespace uma::bench
