#include "llm/device/rpc_relay.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <format>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <span>
#include <sys/socket.h>
#include <utility>

#include "base/log.h"
#include "base/system/thread_name.h"
#include "llm/device/rpc_sockets.h"

namespace uma::llm {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::size_t kBufferBytes = 256u << 10;
constexpr int kBacklog = 64;
// The longest time that sent bytes stay without an acknowledgement. A server that computes or is stopped acknowledges: its
// kernel does.
constexpr std::chrono::milliseconds kUnacknowledgedMax{10'000};
constexpr std::chrono::milliseconds kAcknowledgementsEvery{1'000};  // How often that is looked at.

struct Listener {
  UniqueFd fd;
  std::uint16_t port = 0;
};

// The library knows IPv4 only.
std::optional<Listener> listen_on_loopback() {
  UniqueFd fd = open_socket(AF_INET, SOCK_STREAM);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof place;
  if (fd.is_open()) make_nonblocking(fd.get());
  if (!fd.is_open() || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&place), size) != 0 ||
      ::listen(fd.get(), kBacklog) != 0 || ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&place), &size) != 0) {
    return std::nullopt;
  }
  return Listener{.fd = std::move(fd), .port = ntohs(place.sin_port)};
}

bool is_for_later(int number) {
  return number == EAGAIN || number == EINTR;
}

}  // namespace

Expected<std::unique_ptr<RpcRelay>> RpcRelay::open(RpcAddress address, RpcVersion version, RpcLimits limits) {
  auto listener = listen_on_loopback();
  auto wake = open_pipe();
  if (!listener || !wake) {
    return fail(ErrorCode::io_failed,
                std::format("cannot listen on the loopback for the RPC server {}: {}", address.text(), std::strerror(errno)));
  }
  std::string endpoint = std::format("127.0.0.1:{}", listener->port);
  return std::unique_ptr<RpcRelay>(
      new RpcRelay(std::move(address), version, limits, std::move(listener->fd), *std::move(wake), std::move(endpoint)));
}

RpcRelay::RpcRelay(RpcAddress address, RpcVersion version, RpcLimits limits, UniqueFd listener, Pipe wake, std::string endpoint)
    : address_(std::move(address)),
      version_(version),
      limits_(limits),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      endpoint_(std::move(endpoint)),
      buffer_(kBufferBytes),
      thread_([this] { run(); }) {}

RpcRelay::~RpcRelay() {
  const char byte = 0;
  (void)!::write(wake_.in.get(), &byte, sizeof byte);
  thread_.join();
}

Expected<std::vector<RpcDevice>> RpcRelay::connect() {
  disconnect();
  auto connection = connect_rpc(address_, version_, limits_);
  if (!connection) {
    return fail(ErrorCode::model_load, std::format("devices: {}{}: {}", kRpcPrefix, address_.text(), connection.error()));
  }
  const MutexLock lock(mutex_);
  prepared_ = std::move(connection->socket);
  return std::move(connection->devices);
}

void RpcRelay::disconnect() {
  const MutexLock lock(mutex_);
  prepared_.reset();
}

Error RpcRelay::loss(ErrorCode code) const {
  const MutexLock lock(mutex_);
  return {.code = code, .message = std::format("the RPC server {} is lost: {}", address_.text(), reason_)};
}

std::uint64_t RpcRelay::bytes_allocated(std::size_t device) const {
  return device < allocated_.size() ? allocated_[device].load(std::memory_order_relaxed) : 0;
}

void RpcRelay::note_allocations(const RpcExchange& exchange) {
  for (std::uint32_t i = 0; i < kRpcDevicesMax; ++i) {
    allocated_[i].store(exchange.bytes_allocated(i), std::memory_order_relaxed);
  }
}

void RpcRelay::run() {
  set_thread_name("uma-rpc");
  std::deque<UniqueFd> clients;
  for (;;) {
    while (!clients.empty()) {
      UniqueFd client = std::move(clients.front());
      clients.pop_front();
      serve(std::move(client), clients);
      note_allocations(RpcExchange(version_));
    }
    std::array<pollfd, 2> polled{
        {{.fd = wake_.out.get(), .events = POLLIN, .revents = 0}, {.fd = listener_.get(), .events = POLLIN, .revents = 0}}};
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[0].revents != 0) return;
    if (polled[1].revents != 0) accept_client(clients);
  }
}

void RpcRelay::accept_client(std::deque<UniqueFd>& clients) const {
  UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
  if (!client.is_open()) return;
  ::fcntl(client.get(), F_SETFD, FD_CLOEXEC);
  make_nonblocking(client.get());
  if (!is_peer_own(client.get())) {
    log_warning("another program has connected to the port of this process for the RPC server {}: closed", address_.text());
    return;
  }
  const int yes = 1;
  (void)::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  clients.push_back(std::move(client));
}

void RpcRelay::lose(RpcExchange& exchange, UniqueFd& server, std::string reason) {
  {
    const MutexLock lock(mutex_);
    if (!is_lost()) reason_ = std::move(reason);
  }
  is_lost_.store(true, std::memory_order_release);
  exchange.lose();
  server.reset();
  log_warning("{}", loss(ErrorCode::runtime_decode).message);
}

void RpcRelay::serve(UniqueFd client, std::deque<UniqueFd>& clients) {
  RpcExchange exchange(version_);
  UniqueFd server;
  {
    const MutexLock lock(mutex_);
    server = std::move(prepared_);
  }
  if (is_lost()) {
    exchange.lose();
    server.reset();
  } else if (!server.is_open()) {
    lose(exchange, server, "the library has connected again without a check of the server");
  }
  std::uint64_t allocations_count = 0;
  SteadyTime moved_at = std::chrono::steady_clock::now();  // Or when the server began to be waited for.
  for (;;) {
    const bool has_for_library = !exchange.for_library().empty();
    const bool has_for_server = !exchange.for_server().empty();
    const bool waits = server.is_open() && (has_for_server || exchange.awaits());
    const auto side = [](int fd, bool reads, bool writes) {
      return pollfd{.fd = fd, .events = static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), .revents = 0};
    };
    // A side is read when its bytes have gone on to the other one.
    std::array<pollfd, 4> polled{side(wake_.out.get(), true, false), side(listener_.get(), true, false),
                                 side(client.get(), !has_for_server, has_for_library),
                                 side(server.get(), !has_for_library, has_for_server)};
    const int timeout = waits ? static_cast<int>(std::min(kAcknowledgementsEvery, limits_.answer).count()) : -1;
    if (::poll(polled.data(), polled.size(), timeout) < 0) continue;
    if (!waits) moved_at = std::chrono::steady_clock::now();
    if (polled[0].revents != 0) return;
    if (polled[1].revents != 0) accept_client(clients);
    if (!move_library_bytes(exchange, client.get(), polled[2].revents)) return;
    if (!server.is_open()) continue;
    bool has_moved = false;
    auto reason = move_server_bytes(exchange, server.get(), polled[3].revents, has_moved);
    const SteadyTime now = std::chrono::steady_clock::now();
    if (has_moved) moved_at = now;
    if (!reason && waits && now - moved_at >= limits_.answer) {
      reason = std::format("it did not answer within {:.3g} s", static_cast<double>(limits_.answer.count()) / 1000);
    }
    if (!reason && waits && is_unacknowledged(server.get(), kUnacknowledgedMax))
      reason = "its machine acknowledges nothing any more";
    if (reason) lose(exchange, server, *std::move(reason));
    if (!send_to_library(exchange, client.get())) return;
    if (exchange.allocations_count() != allocations_count) {
      allocations_count = exchange.allocations_count();
      note_allocations(exchange);
    }
  }
}

bool RpcRelay::move_library_bytes(RpcExchange& exchange, int client, short events) {
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
    const ssize_t count = ::recv(client, buffer_.data(), buffer_.size(), 0);
    if (count == 0 || (count < 0 && !is_for_later(errno))) return false;
    if (count > 0) exchange.from_library(std::span(buffer_).first(static_cast<std::size_t>(count)));
  }
  return send_to_library(exchange, client);
}

bool RpcRelay::send_to_library(RpcExchange& exchange, int client) {
  while (!exchange.for_library().empty()) {
    const auto bytes = exchange.for_library();
    const ssize_t count = send_quietly(client, bytes);
    if (count < 0) return is_for_later(errno);
    exchange.sent_to_library(static_cast<std::size_t>(count));
  }
  return true;
}

std::optional<std::string> RpcRelay::move_server_bytes(RpcExchange& exchange, int server, short events, bool& has_moved) {
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
    const ssize_t count = ::recv(server, buffer_.data(), buffer_.size(), 0);
    if (count == 0) return "it closed the connection";
    if (count < 0 && !is_for_later(errno)) return std::strerror(errno);
    if (count > 0) {
      has_moved = true;
      if (auto wrong = exchange.from_server(std::span(buffer_).first(static_cast<std::size_t>(count)))) return wrong;
    }
  }
  while (!exchange.for_server().empty()) {
    const auto bytes = exchange.for_server();
    const ssize_t count = send_quietly(server, bytes);
    if (count < 0 && is_for_later(errno)) return std::nullopt;
    if (count < 0) return std::strerror(errno);
    has_moved = true;
    exchange.sent_to_server(static_cast<std::size_t>(count));
  }
  return std::nullopt;
}

}  // namespace uma::llm
