#include "server/unix_listener.h"

#include <chrono>
#include <optional>
#include <unistd.h>
#include <utility>

#include <boost/asio/error.hpp>

#include "base/log.h"
#include "base/thrown.h"
#include "server/unix_socket.h"

namespace uma::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Pause between attempts to accept while the process is out of descriptors or memory; clients wait in the backlog meanwhile.
constexpr std::chrono::milliseconds kAcceptPause{100};

// The user of the connected process; nullopt if it may not be served.
std::optional<uid_t> allowed_peer_of(int fd, bool serves_other_users) {
  const std::optional<UnixPeer> peer = unix_peer_of(fd);
  if (!peer) return std::nullopt;
  if (serves_other_users || is_peer_allowed(peer->user, ::geteuid())) return peer->user;
  log_warning("refused a client of uid {} (process {}): only uid {} and root may connect", peer->user, peer->process,
              ::geteuid());
  return std::nullopt;
}

}  // namespace

UnixListener::UnixListener(asio::io_context& io, ListeningSocket listening, std::function<void(Socket, uid_t)> on_accept)
    : acceptor_(io),
      file_(std::move(listening.file)),
      pause_timer_(io),
      on_accept_(std::move(on_accept)),
      serves_other_users_(listening.serves_other_users) {
  acceptor_.assign(asio::local::stream_protocol(), listening.fd.get());
  (void)listening.fd.release();  // The acceptor owns it now.
}

void UnixListener::accept_next() {
  acceptor_.async_accept([this](const error_code& problem, Socket socket) {
    if (!acceptor_.is_open()) return;
    if (problem) {
      pause(problem.message());
      return;
    }
    is_paused_ = false;
    run_noting([&] { on_accepted(std::move(socket)); });
    accept_next();
  });
}

void UnixListener::on_accepted(Socket socket) {
  const std::optional<uid_t> peer = allowed_peer_of(socket.native_handle(), serves_other_users_);
  if (peer) on_accept_(std::move(socket), *peer);
}

void UnixListener::pause(const std::string& problem) {
  if (!is_paused_) log_warning("cannot accept clients for now: {}", problem);
  is_paused_ = true;
  pause_timer_.expires_after(kAcceptPause);
  pause_timer_.async_wait([this](const error_code& stopped) {
    if (!stopped && acceptor_.is_open()) accept_next();
  });
}

void UnixListener::close() {
  if (!acceptor_.is_open()) return;
  file_.reset();
  error_code ignored;
  acceptor_.close(ignored);
  pause_timer_.cancel();
}

}  // namespace uma::server
