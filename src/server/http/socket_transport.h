// The connection of an HTTP client, plain or with TLS, as the stream below a WebSocket (Boost.Beast). Used on the server's
// thread.
#pragma once

#include <cstddef>
#include <utility>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/role.hpp>
#include <boost/beast/websocket/teardown.hpp>
#include <boost/system/error_code.hpp>

namespace uma::server {

class SocketTransport {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Tls = boost::asio::ssl::stream<Socket&>;
  using executor_type = Socket::executor_type;

  // Borrows both; `tls` is null for a plain connection.
  SocketTransport(Socket& socket, Tls* tls) : socket_(socket), tls_(tls) {}

  [[nodiscard]] executor_type get_executor() { return socket_.get_executor(); }

  template <class BuffersT, class TokenT>
  auto async_read_some(const BuffersT& buffers, TokenT&& token) {
    return tls_ != nullptr ? tls_->async_read_some(buffers, std::forward<TokenT>(token))
                           : socket_.async_read_some(buffers, std::forward<TokenT>(token));
  }
  template <class BuffersT, class TokenT>
  auto async_write_some(const BuffersT& buffers, TokenT&& token) {
    return tls_ != nullptr ? tls_->async_write_some(buffers, std::forward<TokenT>(token))
                           : socket_.async_write_some(buffers, std::forward<TokenT>(token));
  }

  // --- What Beast asks of a stream of its own. The connection ends TLS and its socket itself (HttpConnection::linger).

  friend void beast_close_socket(SocketTransport& transport) {
    boost::system::error_code ignored;
    transport.socket_.close(ignored);
  }
  template <class HandlerT>
  friend void async_teardown(boost::beast::role_type role, SocketTransport& transport, HandlerT&& handler) {
    boost::beast::websocket::async_teardown(role, transport.socket_, std::forward<HandlerT>(handler));
  }

 private:
  Socket& socket_;
  Tls* const tls_;
};

}  // namespace uma::server
