#include "server/unix_server.h"

#include <algorithm>
#include <format>
#include <future>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/log.h"
#include "base/mutex.h"
#include "base/thread_name.h"
#include "base/thrown.h"
#include "server/connection.h"
#include "server/flush_queue.h"
#include "server/server_state.h"
#include "server/socket_file.h"
#include "server/unix_listener.h"

namespace uma::server {
namespace {

namespace asio = boost::asio;

// A connection is closed at most this share of the idle timeout late.
constexpr int kSweepsPerIdleTimeout = 4;

// Root, who may do anything anyway, sees the sessions of the daemon's own user.
TenantId tenant_of(uid_t peer, uid_t own) {
  return TenantId{std::format("uid:{}", peer == 0 ? own : peer)};
}

}  // namespace

class UnixServer::Impl {
 public:
  Impl(const UnixServerOptions& options, Service& service, ListeningSocket listening)
      : idle_timeout_(options.idle_timeout),
        state_{.io = io_,
               .service = service,
               .limits = options.limits,
               .flushes = std::make_shared<FlushQueue>(io_),
               .read_buffer = {},
               .connections = {},
               .draining = false,
               .busy = {},
               .connections_count = {}},
        listener_(io_, std::move(listening),
                  [this](Connection::Socket socket, uid_t peer) {
                    Connection::start(std::move(socket), tenant_of(peer, ::geteuid()), state_);
                  }),
        sweep_timer_(io_),
        keep_running_(io_.get_executor()) {
    listener_.start();
    if (idle_timeout_ > Duration::zero()) sweep_later();
    thread_ = std::thread([this] {
      set_thread_name("uma-io");
      run_to_end(io_);
    });
  }

  void stop_accepting() {
    const MutexLock lock(control_mutex_);
    if (is_stopped_) return;
    std::promise<void> done;
    asio::post(io_, [&] {
      state_.draining = true;
      listener_.close();
      done.set_value();
    });
    done.get_future().wait();
  }

  bool wait_idle(Duration limit) { return state_.busy.wait_zero(SteadyClock().now() + limit); }

  void stop() {
    const MutexLock lock(control_mutex_);
    if (std::exchange(is_stopped_, true)) return;
    asio::post(io_, [this] { shut_down(); });
    thread_.join();
  }

  [[nodiscard]] std::size_t connections_count() const { return static_cast<std::size_t>(state_.connections_count.value()); }

 private:
  // Io thread. Afterwards nothing is left to wait for, so that io_.run() returns.
  void shut_down() {
    listener_.close();
    close_connections([](const Connection&) { return true; });
    sweep_timer_.cancel();
    state_.flushes->close();
    keep_running_.reset();
  }

  template <class ChooseT>
  void close_connections(ChooseT&& choose) {
    // Closing takes a connection out of the set, so this walks a copy.
    const std::vector<std::shared_ptr<Connection>> all(state_.connections.begin(), state_.connections.end());
    for (const std::shared_ptr<Connection>& connection : all) {
      if (choose(*connection)) connection->close();
    }
  }

  void sweep_later() {
    sweep_timer_.expires_after(std::max<Duration>(idle_timeout_ / kSweepsPerIdleTimeout, std::chrono::milliseconds(1)));
    sweep_timer_.async_wait([this](const boost::system::error_code& stopped) {
      if (stopped) return;
      const TimePoint idle_since = SteadyClock().now() - idle_timeout_;
      run_noting([&] { close_connections([&](const Connection& each) { return each.is_idle_since(idle_since); }); });
      sweep_later();
    });
  }

  // Constant after construction.
  const Duration idle_timeout_;

  // Owned by the io thread.
  asio::io_context io_{1};
  ServerState state_;
  UnixListener listener_;
  asio::steady_timer sweep_timer_;
  asio::executor_work_guard<asio::io_context::executor_type> keep_running_;

  std::thread thread_;
  Mutex control_mutex_;
  bool is_stopped_ GUARDED_BY(control_mutex_) = false;
};

Expected<std::unique_ptr<UnixServer>> UnixServer::start(const UnixServerOptions& options, Service& service) {
  Expected<ListeningSocket> listening = listen_at(options.path, options.backlog);
  if (!listening) return std::unexpected(listening.error());
  return start(options, std::move(*listening), service);
}

Expected<std::unique_ptr<UnixServer>> UnixServer::start(const UnixServerOptions& options, ListeningSocket listening,
                                                        Service& service) {
  try {
    return std::unique_ptr<UnixServer>(new UnixServer(std::make_unique<Impl>(options, service, std::move(listening))));
  } catch (const std::exception& problem) {  // out of descriptors, threads or memory
    return fail(ErrorCode::io_short_write, std::format("cannot serve {}: {}", options.path, problem.what()));
  }
}

UnixServer::UnixServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UnixServer::~UnixServer() {
  stop();
}

void UnixServer::stop_accepting() {
  impl_->stop_accepting();
}
bool UnixServer::wait_idle(Duration limit) {
  return impl_->wait_idle(limit);
}
void UnixServer::stop() {
  impl_->stop();
}
std::size_t UnixServer::connections_count() const {
  return impl_->connections_count();
}

}  // namespace uma::server
