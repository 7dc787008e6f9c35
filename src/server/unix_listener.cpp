#include "server/unix_listener.h"

#include <chrono>
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
  const std::optional<UnixPeer> peer = unix_peer_of(socket.native_handle());
  if (!peer) return;
  if (!serves_other_users_ && !is_peer_allowed(peer->user, ::geteuid())) return note_refused(*peer);
  on_accept_(std::move(socket), peer->user);
}

// Once a second, so that nobody can fill the log.
void UnixListener::note_refused(const UnixPeer& peer) {
  const TimePoint now = SteadyClock().now();
  if (now < refused_at_ + std::chrono::seconds(1)) {
    ++more_refused_;
    return;
  }
  refused_at_ = now;
  log_warning("refused a client of uid {} (process {}): only uid {} and root may connect; {} more before", peer.user,
              peer.process, ::geteuid(), std::exchange(more_refused_, 0));
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
