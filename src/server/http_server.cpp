#include "server/http_server.h"

#include <chrono>
#include <exception>
#include <format>
#include <future>
#include <optional>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/thread_name.h"
#include "base/thrown.h"
#include "server/http_connection.h"
#include "server/http_peer.h"
#include "server/peer_user.h"
#include "server/socket_file.h"
#include "server/tcp_listener.h"
#include "server/unix_listener.h"

namespace uma::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Between attempts to accept while the process is out of descriptors or memory; clients wait in the backlog meanwhile.
constexpr std::chrono::milliseconds kHttpAcceptPause{100};

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpServerOptions options, AccessLog access_log, Service& service)
      : state_{.io = io_,
               .service = service,
               .shares = ConnectionShares(options.connections_max),
               .options = std::move(options),
               .started_s = unix_time_s(),
               .flushes = std::make_shared<FlushQueue>(io_),
               .own_account = std::make_shared<Account>(TenantId{std::format("uid:{}", ::geteuid())}),
               .keys = {},
               .access_log = std::move(access_log),
               .tls = std::nullopt,
               .connections = {},
               .draining = false,
               .busy = {},
               .connections_count = {}},
        acceptor_(io_),
        keep_running_(io_.get_executor()) {
    for (const ApiKey& key : state_.options.keys) state_.keys.emplace_back(key.digest, std::make_shared<Account>(key));
  }

  Expected<Unit> listen(UniqueFd listener, UniqueFd local) {
    if (!state_.options.tls_certificate.empty()) {
      if (auto loaded = load_certificate(); !loaded) return loaded;
    }
    if (!state_.options.address.empty()) {
      if (auto listening = listen_at_address(std::move(listener)); !listening) return listening;
    }
    if (state_.options.socket_path.empty()) return Unit{};
    auto listening = local.is_open() ? Expected<ListeningSocket>({.fd = std::move(local)})
                                     : listen_at(state_.options.socket_path, state_.options.backlog);
    if (!listening) return std::unexpected(listening.error());
    local_.emplace(io_, std::move(*listening), [this](UnixListener::Socket socket, uid_t) {
      HttpConnection::start(std::move(socket), {.is_local = true}, state_);
    });
    return Unit{};
  }

  Expected<Unit> load_certificate() {
    namespace ssl = asio::ssl;
    const HttpServerOptions& options = state_.options;
    ssl::context& context = state_.tls.emplace(ssl::context::tls_server);
    error_code problem;
    context.set_options(ssl::context::default_workarounds | ssl::context::no_sslv3 | ssl::context::no_tlsv1 |
                            ssl::context::no_tlsv1_1 | SSL_OP_NO_RENEGOTIATION,
                        problem);
    const auto bad = [&](const std::string& path) {
      return fail(ErrorCode::io_short_write, std::format("http: TLS: {}: {}", path, problem.message()));
    };
    if (!problem) context.use_certificate_chain_file(options.tls_certificate, problem);
    if (problem) return bad(options.tls_certificate);
    context.use_private_key_file(options.tls_key, ssl::context::pem, problem);
    if (problem) return bad(options.tls_key);
    return Unit{};
  }

  Expected<Unit> listen_at_address(UniqueFd listener) {
    const HttpServerOptions& options = state_.options;
    error_code problem;
    const asio::ip::address address = asio::ip::make_address(options.address, problem);
    if (problem) return fail(ErrorCode::proto_field, std::format("http: {} is no address", options.address));
    if (!address.is_loopback() && options.keys.empty()) {
      return fail(ErrorCode::proto_field,
                  std::format("http: {} is no address of the loopback: that needs keys", options.address));
    }
    if (!listener.is_open()) {
      auto opened = server::listen_at_address(options.address, options.port, options.backlog);
      if (!opened) return std::unexpected(opened.error());
      listener = std::move(*opened);
    }
    acceptor_.assign(address.is_v6() ? tcp::v6() : tcp::v4(), listener.get(), problem);
    if (!problem) (void)listener.release();  // the acceptor owns it now
    if (!problem) port_ = acceptor_.local_endpoint(problem).port();
    if (problem) {
      return fail(ErrorCode::io_short_write,
                  std::format("http: cannot listen on {} port {}: {}", options.address, options.port, problem.message()));
    }
    if (options.keys.empty() && !options.serves_local_users) {
      if (const auto opened = peer_users_.open(); !opened) {
        log_warning("http: no client is served without a key: {}", opened.error().message);
      }
    }
    return Unit{};
  }

  void run() {
    if (acceptor_.is_open()) accept_on();
    if (local_) local_->start();
    thread_ = std::thread([this] {
      set_thread_name("uma-http");
      run_to_end(io_);
    });
  }

  void stop_accepting() {
    const MutexLock lock(control_mutex_);
    if (is_stopped_) return;
    std::promise<void> done;
    asio::post(io_, [&] {
      drain();
      done.set_value();
    });
    done.get_future().wait();
  }

  bool wait_idle(Duration limit) { return state_.busy.wait_zero(SteadyClock().now() + limit); }

  void stop() {
    const MutexLock lock(control_mutex_);
    if (std::exchange(is_stopped_, true) || !thread_.joinable()) return;
    asio::post(io_, [this] {
      drain();
      close_connections([](const HttpConnection&) { return true; });
      state_.flushes->close();
      keep_running_.reset();
    });
    thread_.join();
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::size_t connections_count() const { return static_cast<std::size_t>(state_.connections_count.value()); }

 private:
  // Whatever one client's arrival has thrown, others are accepted.
  void accept_on() {
    asio::co_spawn(io_, accept_clients(), [this](const std::exception_ptr& problem) {
      if (!problem) return;
      run_noting([&] { std::rethrow_exception(problem); });
      accept_on();
    });
  }

  void drain() {
    state_.draining = true;
    error_code ignored;
    acceptor_.close(ignored);
    if (local_) local_->close();
    pause_.cancel();
    close_connections([](const HttpConnection& connection) { return connection.is_idle(); });
  }

  template <class ChooseT>
  void close_connections(ChooseT&& choose) {
    // Closing takes a connection out of the set, so this walks a copy.
    const std::vector<std::shared_ptr<HttpConnection>> all(state_.connections.begin(), state_.connections.end());
    for (const std::shared_ptr<HttpConnection>& connection : all) {
      if (choose(*connection)) connection->close();
    }
  }

  asio::awaitable<void> accept_clients() {
    constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
    bool is_paused = false;  // accepting failed last time, and the log says so
    while (acceptor_.is_open()) {
      auto [problem, socket] = co_await acceptor_.async_accept(kAwait);
      if (!acceptor_.is_open()) break;
      if (problem) {
        if (!is_paused) log_warning("http: cannot accept clients for now: {}", problem.message());
        is_paused = true;
        pause_.expires_after(kHttpAcceptPause);
        co_await pause_.async_wait(kAwait);
        continue;
      }
      is_paused = false;
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      std::optional<HttpPeer> peer = find_peer(socket, state_.options, peer_users_);
      if (peer) HttpConnection::start(std::move(socket), *std::move(peer), state_);
    }
  }

  // Owned by the thread, once it runs.
  asio::io_context io_{1};
  HttpState state_;
  tcp::acceptor acceptor_;
  std::optional<UnixListener> local_;
  asio::steady_timer pause_{io_};
  PeerUsers peer_users_;
  asio::executor_work_guard<asio::io_context::executor_type> keep_running_;

  std::uint16_t port_ = 0;  // constant after listen()
  std::thread thread_;
  Mutex control_mutex_;
  bool is_stopped_ GUARDED_BY(control_mutex_) = false;
};

Expected<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, Service& service, UniqueFd listener,
                                                        UniqueFd local) {
  try {
    auto access_log = AccessLog::open(options.access_log);
    if (!access_log) return std::unexpected(access_log.error());
    auto impl = std::make_unique<Impl>(std::move(options), std::move(*access_log), service);
    if (const auto listening = impl->listen(std::move(listener), std::move(local)); !listening)
      return std::unexpected(listening.error());
    impl->run();
    return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
  } catch (const std::exception& problem) {  // out of descriptors, threads or memory
    return fail(ErrorCode::io_short_write, std::format("http: cannot serve: {}", problem.what()));
  }
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() {
  stop();
}

std::uint16_t HttpServer::port() const {
  return impl_->port();
}
std::size_t HttpServer::connections_count() const {
  return impl_->connections_count();
}
void HttpServer::stop_accepting() {
  impl_->stop_accepting();
}
bool HttpServer::wait_idle(Duration limit) {
  return impl_->wait_idle(limit);
}
void HttpServer::stop() {
  impl_->stop();
}

}  // namespace uma::server
