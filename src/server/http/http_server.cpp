#include "server/http/http_server.h"

#include <array>
#include <chrono>
#include <exception>
#include <format>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/log.h"
#include "base/thrown.h"
#include "server/awaitable.h"
#include "server/http/http_connection.h"
#include "server/http/http_peer.h"
#include "server/http/peer_user.h"
#include "server/http/tls_files.h"
#include "server/server_thread.h"
#include "server/socket_file.h"
#include "server/tcp_listener.h"
#include "server/unix_listener.h"

namespace uma::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Pause between attempts to accept while the process is out of descriptors or memory; clients wait in the backlog meanwhile.
constexpr std::chrono::milliseconds kHttpAcceptPause{100};

class RunningHttpServer final : public ServerThread<HttpServer, HttpState> {
 public:
  RunningHttpServer(Service& service, HttpServerOptions options, AccessLog access_log)
      : ServerThread(service, std::move(options), std::move(access_log)) {}
  ~RunningHttpServer() override { stop(); }

  void announce_stop() override {
    post_and_wait([this] { state_.is_leaving = true; });
  }
  [[nodiscard]] std::uint16_t port() const override { return main_.port; }
  [[nodiscard]] std::uint16_t ollama_port() const override { return ollama_.port; }

  Expected<Unit> listen(UniqueFd listener, UniqueFd local, UniqueFd twin) {
    if (!state_.options.tls_certificate.empty()) {
      if (auto loaded = load_certificate(); !loaded) return loaded;
    }
    const HttpServerOptions& options = state_.options;
    if (!options.address.empty()) {
      auto listening = listen_on(main_, main_twin_, options.address, options.port, std::move(listener), std::move(twin));
      if (!listening) return listening;
    }
    if (!options.ollama_address.empty()) {
      const auto listening =
          listen_on(ollama_, ollama_twin_, options.ollama_address, options.ollama_port, UniqueFd(), UniqueFd());
      if (!listening) return listening;
    }
    const bool has_tcp = main_.acceptor.is_open() || ollama_.acceptor.is_open();
    if (has_tcp && options.keys.empty() && !options.serves_local_users) {
      if (const auto opened = peer_users_.open(); !opened) {
        log_warning("http: clients without a key are refused: {}", opened.error().message);
      }
    }
    if (state_.options.socket_path.empty()) return Unit{};
    auto listening = local.is_open() ? Expected<ListeningSocket>({.fd = std::move(local)})
                                     : listen_at(state_.options.socket_path, state_.options.backlog);
    if (!listening) return std::unexpected(listening.error());
    local_.emplace(state_.io, std::move(*listening), [this](UnixListener::Socket socket, uid_t user) {
      HttpConnection::start(std::move(socket), {.is_local = true, .is_own_user = is_peer_allowed(user, ::geteuid())}, state_);
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
    if (problem) return fail(ErrorCode::io_failed, std::format("http: TLS: {}", problem.message()));
    // TLS 1.2 is served with forward secrecy and authenticated encryption only; TLS 1.3 has nothing else.
    ::SSL_CTX_set_options(context.native_handle(), SSL_OP_CIPHER_SERVER_PREFERENCE);
    if (::SSL_CTX_set_cipher_list(context.native_handle(), "ECDHE+AESGCM:ECDHE+CHACHA20") != 1) {
      return fail(ErrorCode::io_failed, "http: TLS: OpenSSL has no ECDHE with AES-GCM or ChaCha20");
    }
    return load_tls_files(context, options.tls_certificate, options.tls_key);
  }

  void accept() {
    for (TcpListener* listener : listeners()) {
      if (listener->acceptor.is_open()) accept_on(*listener);
    }
    if (local_) local_->start();
    run("uma-http");
  }

 private:
  // Owned by the server's thread once it runs; the port is constant then.
  struct TcpListener {
    explicit TcpListener(asio::io_context& io) : acceptor(io), pause(io) {}
    tcp::acceptor acceptor;
    asio::steady_timer pause;
    std::uint16_t port = 0;
  };

  // `opened` and `opened_twin` are sockets that listen there already; those that are not open are opened.
  Expected<Unit> listen_on(TcpListener& listener, TcpListener& twin, const std::string& numeric, std::uint16_t port,
                           UniqueFd opened, UniqueFd opened_twin) {
    if (auto listening = listen_on(listener, numeric, port, std::move(opened)); !listening) return listening;
    if (numeric != kLoopback) return Unit{};
    if (!opened_twin.is_open()) {
      auto made = listen_at_twin(listener.port, state_.options.backlog);
      if (!made) {
        log_warning("{}: programs that connect to localhost may find another program there", made.error().message);
        return Unit{};
      }
      if (!made->is_open()) return Unit{};  // The system has no IPv6.
      opened_twin = std::move(*made);
    }
    return listen_on(twin, std::string(kLoopbackTwin), listener.port, std::move(opened_twin));
  }

  // `opened` is a socket that listens there already; if it is not open, the server opens one.
  Expected<Unit> listen_on(TcpListener& listener, const std::string& numeric, std::uint16_t port, UniqueFd opened) {
    const HttpServerOptions& options = state_.options;
    error_code problem;
    const asio::ip::address address = asio::ip::make_address(numeric, problem);
    if (problem) return fail(ErrorCode::proto_field, std::format("http: {} is not a numeric address", numeric));
    if (!address.is_loopback() && options.keys.empty()) {
      return fail(
          ErrorCode::proto_field,
          std::format("http: {} is not a loopback address: other machines can reach it, so set http.keys_file", numeric));
    }
    if (!opened.is_open()) {
      auto made = listen_at_address(numeric, port, options.backlog);
      if (!made) return std::unexpected(made.error());
      opened = std::move(*made);
    }
    listener.acceptor.assign(address.is_v6() ? tcp::v6() : tcp::v4(), opened.get(), problem);
    if (!problem) (void)opened.release();  // The acceptor owns it now.
    if (!problem) listener.port = listener.acceptor.local_endpoint(problem).port();
    if (problem) {
      return fail(ErrorCode::io_failed, std::format("http: cannot listen on {} port {}: {}", numeric, port, problem.message()));
    }
    return Unit{};
  }

  // An exception while one client is accepted does not stop the listener.
  void accept_on(TcpListener& listener) {
    asio::co_spawn(state_.io, accept_clients(listener), [this, &listener](const std::exception_ptr& problem) {
      if (!problem) return;
      run_noting([&] { std::rethrow_exception(problem); });
      accept_on(listener);
    });
  }

  void stop_listening() override {
    error_code ignored;
    for (TcpListener* listener : listeners()) {
      listener->acceptor.close(ignored);
      listener->pause.cancel();
    }
    if (local_) local_->close();
    close_connections([](const HttpConnection& connection) { return connection.is_idle(); });
  }

  Awaitable<void> accept_clients(TcpListener& listener) {
    bool is_paused = false;  // The last attempt to accept failed, and was logged.
    while (listener.acceptor.is_open()) {
      auto [problem, socket] = co_await listener.acceptor.async_accept(kAwait);
      if (!listener.acceptor.is_open()) break;
      if (problem) {
        if (!is_paused) log_warning("http: cannot accept clients for now: {}", problem.message());
        is_paused = true;
        listener.pause.expires_after(kHttpAcceptPause);
        co_await listener.pause.async_wait(kAwait);
        continue;
      }
      is_paused = false;
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      std::optional<HttpPeer> peer = find_peer(socket, state_.options, peer_users_);
      if (peer) HttpConnection::start(std::move(socket), *std::move(peer), state_);
    }
  }

  std::array<TcpListener*, 4> listeners() { return {&main_, &main_twin_, &ollama_, &ollama_twin_}; }

  TcpListener main_{state_.io};
  TcpListener main_twin_{state_.io};  // At [::1], if the other one is at 127.0.0.1.
  TcpListener ollama_{state_.io};
  TcpListener ollama_twin_{state_.io};
  std::optional<UnixListener> local_;  // Owned by the server's thread once it runs.
  PeerUsers peer_users_;
};

}  // namespace

Expected<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, Service& service, UniqueFd listener,
                                                        UniqueFd local, UniqueFd twin) {
  try {
    auto access_log = AccessLog::open(options.access_log);
    if (!access_log) return std::unexpected(access_log.error());
    auto server = std::make_unique<RunningHttpServer>(service, std::move(options), std::move(*access_log));
    if (const auto listening = server->listen(std::move(listener), std::move(local), std::move(twin)); !listening)
      return std::unexpected(listening.error());
    server->accept();
    return server;
  } catch (const std::exception& problem) {  // Out of descriptors, threads or memory.
    return fail(ErrorCode::io_failed, std::format("http: cannot serve: {}", problem.what()));
  }
}

}  // namespace uma::server
