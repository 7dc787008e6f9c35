// Accepts clients on a listening Unix socket. Io thread only.
#pragma once

#include <functional>
#include <optional>
#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/socket_file.h"

namespace uma::server {

// Who may connect to a socket that the daemon made: its own user, and root, who may do anything anyway. The file's mode says
// the same; this holds even where somebody changed the mode.
[[nodiscard]] constexpr bool is_peer_allowed(uid_t peer, uid_t own) {
  return peer == own || peer == 0;
}

class UnixListener {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;

  // on_accept gets every accepted socket whose peer is allowed, with the peer's user, on the io thread.
  UnixListener(boost::asio::io_context& io, ListeningSocket listening, std::function<void(Socket, uid_t)> on_accept);

  void start() { accept_next(); }
  // Removes the socket's name where it is ours, then closes the socket: new clients are refused, or wait where another process
  // keeps the socket open; accepted ones stay. Later calls do nothing.
  void close();

 private:
  void accept_next();
  void on_accepted(Socket socket);
  void pause(const std::string& problem);

  boost::asio::local::stream_protocol::acceptor acceptor_;
  std::optional<SocketFile> file_;  // after acceptor_, so that it goes first
  boost::asio::steady_timer pause_timer_;
  const std::function<void(Socket, uid_t)> on_accept_;
  const bool serves_other_users_;
  bool is_paused_ = false;  // accepting failed last time, and the log says so
};

}  // namespace uma::server
