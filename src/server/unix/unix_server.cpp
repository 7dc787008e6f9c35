#include "server/unix/unix_server.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <format>
#include <optional>
#include <unistd.h>
#include <utility>

#include <boost/asio/steady_timer.hpp>

#include "base/thrown.h"
#include "server/server_thread.h"
#include "server/unix/unix_connection.h"
#include "server/unix/unix_state.h"
#include "server/unix_listener.h"

namespace uma::server {
namespace {

// An idle connection is closed at most this share of the idle timeout late.
constexpr int kSweepsPerIdleTimeout = 4;

// Root, who has every permission anyway, uses the sessions of the daemon's own user.
TenantId tenant_of(uid_t peer, uid_t own) {
  return TenantId{std::format("uid:{}", peer == 0 ? own : peer)};
}

class RunningUnixServer final : public ServerThread<UnixServer, UnixState> {
 public:
  RunningUnixServer(const UnixServerOptions& options, Service& service, ListeningSocket listening)
      : ServerThread(service, options.limits, options.live, options.connections_max, options.http_url),
        idle_timeout_(options.idle_timeout),
        library_(options.library),
        listener_(state_.io, std::move(listening), [this](UnixConnection::Socket socket, uid_t peer) {
          UnixConnection::start(std::move(socket), tenant_of(peer, ::geteuid()), library_,
                                /*is_administrator=*/is_peer_allowed(peer, ::geteuid()), state_);
        }) {
    listener_.start();
    if (idle_timeout_ > Duration::zero()) sweep_later();
    run("uma-io");
  }
  ~RunningUnixServer() override { stop(); }

 private:
  void stop_listening() override { listener_.close(); }
  void stop_timers() override { sweep_timer_.reset(); }

  void sweep_later() {
    sweep_timer_.emplace(state_.io, std::max<Duration>(idle_timeout_ / kSweepsPerIdleTimeout, std::chrono::milliseconds(1)));
    sweep_timer_->async_wait([this](const boost::system::error_code&) {
      if (!sweep_timer_) return;  // The timer may also have expired when the server stopped.
      const TimePoint idle_since = SteadyClock().now() - idle_timeout_;
      run_noting([&] { close_connections([&](const UnixConnection& each) { return each.is_idle_since(idle_since); }); });
      sweep_later();
    });
  }

  const Duration idle_timeout_;
  ModelLibrary* const library_;
  // Owned by the server's thread.
  UnixListener listener_;
  std::optional<boost::asio::steady_timer> sweep_timer_;  // Nullopt: the server is stopping.
};

}  // namespace

Expected<std::unique_ptr<UnixServer>> UnixServer::start(const UnixServerOptions& options, Service& service) {
  Expected<ListeningSocket> listening = listen_at(options.path, options.backlog);
  if (!listening) return std::unexpected(listening.error());
  return start(options, std::move(*listening), service);
}

Expected<std::unique_ptr<UnixServer>> UnixServer::start(const UnixServerOptions& options, ListeningSocket listening,
                                                        Service& service) {
  try {
    return std::make_unique<RunningUnixServer>(options, service, std::move(listening));
  } catch (const std::exception& problem) {  // Out of descriptors, threads or memory.
    return fail(ErrorCode::io_failed, std::format("cannot serve {}: {}", options.path, problem.what()));
  }
}

}  // namespace uma::server
