#include "llm/device/rpc_connect.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <format>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <span>
#include <sys/socket.h>
#include <utility>

#include "base/system/descriptors.h"
#include "llm/device/rpc_sockets.h"

namespace uma::llm {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

std::string seconds_text(std::chrono::milliseconds time) {
  return std::format("{:.3g} s", static_cast<double>(time.count()) / 1000);
}

// Waits for `events`. False: the time is over.
bool wait_for(int fd, short events, SteadyTime deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd polled{.fd = fd, .events = events, .revents = 0};
    if (::poll(&polled, 1, static_cast<int>(left.count())) > 0) return true;
  }
}

// A machine that is gone is noticed after about 11 s, also while no request is outstanding.
void set_options(int fd) {
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  keep_alive(fd);
}

std::expected<UniqueFd, std::string> connect_to(const addrinfo& place, std::chrono::milliseconds limit) {
  UniqueFd fd = open_socket(place.ai_family, SOCK_STREAM);
  const auto failed = [](int number) { return std::unexpected(std::format("cannot connect: {}", std::strerror(number))); };
  if (!fd.is_open()) return failed(errno);
  make_nonblocking(fd.get());
  set_options(fd.get());
  if (::connect(fd.get(), place.ai_addr, place.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) return failed(errno);
  if (!wait_for(fd.get(), POLLOUT, std::chrono::steady_clock::now() + limit)) {
    return std::unexpected(std::format("cannot connect within {}", seconds_text(limit)));
  }
  int problem = 0;
  socklen_t size = sizeof problem;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &problem, &size) != 0) problem = errno;
  if (problem != 0) return failed(problem);
  return fd;
}

std::expected<UniqueFd, std::string> connect_to(const RpcAddress& address, std::chrono::milliseconds limit) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int problem = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
      problem != 0) {
    return std::unexpected(std::format("cannot find the host: {}", ::gai_strerror(problem)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> places(found, ::freeaddrinfo);
  std::expected<UniqueFd, std::string> connected = std::unexpected("the host has no address");
  for (const addrinfo* place = found; place != nullptr && !connected; place = place->ai_next) {
    connected = connect_to(*place, limit);
  }
  return connected;
}

// Asks one question after the other.
class Questions {
 public:
  Questions(int fd, const RpcLimits& limits) : fd_(fd), limits_(limits) {}

  // Writes the answer's bytes into `answer`, whose size they must have.
  [[nodiscard]] std::expected<void, std::string> ask(RpcCommand command, std::span<const std::byte> data,
                                                     std::span<std::byte> answer) {
    deadline_ = std::chrono::steady_clock::now() + limits_.handshake;
    std::uint64_t size = 0;
    if (auto sent = send_all(rpc_request(command, data)); !sent) return sent;
    if (auto read = receive_all(std::as_writable_bytes(std::span(&size, 1))); !read) return read;
    if (size != answer.size()) return std::unexpected("it is not an RPC server of ggml, or one of another version");
    return receive_all(answer);
  }

  // Asks about a device for one or two numbers.
  template <std::size_t Count>
  [[nodiscard]] std::expected<std::array<std::uint64_t, Count>, std::string> ask_about(RpcCommand command,
                                                                                       std::uint32_t device) {
    std::array<std::uint64_t, Count> numbers{};
    const auto asked =
        ask(command, std::as_bytes(std::span(&device, 1)), std::as_writable_bytes(std::span<std::uint64_t>(numbers)));
    if (!asked) return std::unexpected(asked.error());
    return numbers;
  }

 private:
  [[nodiscard]] std::expected<void, std::string> send_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = send_quietly(fd_, bytes);
      if (count > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(count));
      } else if (auto ready = wait_after(errno, POLLOUT); !ready) {
        return ready;
      }
    }
    return {};
  }

  [[nodiscard]] std::expected<void, std::string> receive_all(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::recv(fd_, bytes.data(), bytes.size(), 0);
      if (count > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(count));
      } else if (count == 0) {
        return std::unexpected("it closed the connection: it is not an RPC server of ggml, or one of another version");
      } else if (auto ready = wait_after(errno, POLLIN); !ready) {
        return ready;
      }
    }
    return {};
  }

  [[nodiscard]] std::expected<void, std::string> wait_after(int number, short events) const {
    if (number != EAGAIN && number != EINTR) return std::unexpected(std::format("connection lost: {}", std::strerror(number)));
    if (wait_for(fd_, events, deadline_)) return {};
    return std::unexpected(
        std::format("it did not answer within {}: it is no RPC server, or it serves another program, which is one at a time",
                    seconds_text(limits_.handshake)));
  }

  const int fd_;
  const RpcLimits& limits_;
  SteadyTime deadline_;
};

}  // namespace

std::expected<RpcConnection, std::string> connect_rpc(const RpcAddress& address, RpcVersion version, const RpcLimits& limits) {
  auto socket = connect_to(address, limits.connect);
  if (!socket) return std::unexpected(socket.error());
  Questions questions(socket->get(), limits);
  const std::array<std::byte, kRpcHelloBytes> nothing_special{};
  std::array<std::byte, kRpcHelloAnswerBytes> hello{};
  if (auto greeted = questions.ask(RpcCommand::hello, nothing_special, hello); !greeted)
    return std::unexpected(greeted.error());
  const RpcVersion spoken{std::to_integer<std::uint8_t>(hello[0]), std::to_integer<std::uint8_t>(hello[1]),
                          std::to_integer<std::uint8_t>(hello[2])};
  if (spoken != version) {
    return std::unexpected(
        std::format("it speaks version {} of the RPC protocol, and this machine {}: install the same version "
                    "of ggml on both",
                    spoken.text(), version.text()));
  }
  std::uint32_t count = 0;
  if (auto counted = questions.ask(RpcCommand::device_count, {}, std::as_writable_bytes(std::span(&count, 1))); !counted) {
    return std::unexpected(counted.error());
  }
  if (count == 0 || count > kRpcDevicesMax) return std::unexpected(std::format("it has {} devices", count));
  RpcConnection connection;
  for (std::uint32_t device = 0; device < count; ++device) {
    const auto memory = questions.ask_about<2>(RpcCommand::get_device_memory, device);
    if (!memory) return std::unexpected(memory.error());
    const auto alignment = questions.ask_about<1>(RpcCommand::get_alignment, device);
    if (!alignment) return std::unexpected(alignment.error());
    const auto bytes_max = questions.ask_about<1>(RpcCommand::get_max_size, device);
    if (!bytes_max) return std::unexpected(bytes_max.error());
    // The library divides by it.
    const std::uint64_t align = alignment->front();
    if (align == 0 || (align & (align - 1)) != 0)
      return std::unexpected(std::format("its memory has an alignment of {}", align));
    connection.devices.push_back({.memory_total = (*memory)[1],
                                  .memory_free = (*memory)[0],
                                  .alignment = align,
                                  .buffer_bytes_max = bytes_max->front()});
  }
  connection.socket = std::move(*socket);
  return connection;
}

}  // namespace uma::llm
