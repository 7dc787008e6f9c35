// Accepts clients on a listening Unix socket. Io thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/clock.h"
#include "server/socket_file.h"
#include "server/unix_socket.h"

namespace uma::server {

// Whether a user may connect to a socket that the daemon created: its own user and root, who has every permission anyway. The
// file's mode enforces the same; this check holds even if somebody changed the mode.
[[nodiscard]] constexpr bool is_peer_allowed(uid_t peer, uid_t own) {
  return peer == own || peer == 0;
}

class UnixListener {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;

  // Calls on_accept on the io thread with every accepted socket whose peer is allowed, and with the peer's user.
  UnixListener(boost::asio::io_context& io, ListeningSocket listening, std::function<void(Socket, uid_t)> on_accept);

  void start() { accept_next(); }
  // Removes the socket's file if the daemon created it, then closes the socket. New clients are refused, or wait if another
  // process keeps the socket open; accepted clients stay. Later calls do nothing.
  void close();

 private:
  void accept_next();
  void on_accepted(Socket socket);
  void pause(const std::string& problem);
  void note_refused(const UnixPeer& peer);

  boost::asio::local::stream_protocol::acceptor acceptor_;
  std::optional<SocketFile> file_;  // Declared after acceptor_, so that it is destroyed first.
  boost::asio::steady_timer pause_timer_;
  const std::function<void(Socket, uid_t)> on_accept_;
  const bool serves_other_users_;
  bool is_paused_ = false;          // The last attempt to accept failed, and was logged.
  TimePoint refused_at_{};          // When a refused client was last logged,
  std::uint64_t more_refused_ = 0;  // and how many came since.
};

}  // namespace uma::server
