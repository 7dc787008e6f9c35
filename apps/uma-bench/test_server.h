// A server for tests of the bench, on a Unix socket or on loopback, and what such tests share.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <netinet/in.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "uma-bench/scenarios.h"

namespace uma::bench {

// Accepts connections until it is destroyed; each is served by its own thread.
class TestServer {
 public:
  using Serve = std::function<void(int connection)>;

  static TestServer on_unix_socket(const std::string& path, Serve serve) {
    const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_GE(listener, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0) << path;
    return TestServer(listener, std::move(serve));
  }

  static TestServer on_loopback(Serve serve) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_GE(listener, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return TestServer(listener, std::move(serve));
  }

  ~TestServer() {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    ::close(listener_);
  }

  int port() const {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }

 private:
  TestServer(int listener, Serve serve) : listener_(listener), serve_(std::move(serve)) {
    EXPECT_EQ(::listen(listener_, 16), 0);
    acceptor_ = std::thread([this] {
      for (int connection; (connection = ::accept(listener_, nullptr, nullptr)) >= 0;) {
        threads_.emplace_back([this, connection] {
          serve_(connection);
          ::close(connection);
        });
      }
    });
  }

  const int listener_;
  const Serve serve_;
  std::vector<std::thread> threads_;  // Owned by acceptor_ until it has ended.
  std::thread acceptor_;
};

inline void send_all(int connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

// The next bytes of a connection; empty at its end.
inline std::string receive(int connection) {
  std::string bytes(4096, '\0');
  const ssize_t count = ::recv(connection, bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return bytes;
}

inline double figure(const Outcome& outcome, const std::string& name) {
  for (const Figure& each : outcome.figures) {
    if (each.name == name) {
      return each.value;
    }
  }
  ADD_FAILURE() << "no figure " << name;
  return 0;
}

}  // namespace uma::bench
