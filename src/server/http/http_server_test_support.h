// A server on a port of its own before a FakeService, and a client that speaks HTTP as plain bytes.
#pragma once

#include <arpa/inet.h>
#include <chrono>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/system/unique_fd.h"
#include "server/http/http_server.h"
#include "server/service_test_support.h"

namespace uma::server {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Answer {
  int status = 0;  // 0: the stream ended before one.
  std::string head;
  std::string body;  // Chunks are joined.
};

// Speaks HTTP as plain bytes. All waits are bounded; what does not come is a test failure.
class HttpClient {
 public:
  explicit HttpClient(const std::string& socket_path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  explicit HttpClient(UniqueFd connected) : fd_(std::move(connected)) {}
  // `receive_buffer_bytes`: what the kernel may hold for the client; 0: its own choice.
  explicit HttpClient(std::uint16_t port, int receive_buffer_bytes = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (receive_buffer_bytes > 0) {
      EXPECT_EQ(::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes)), 0);
    }
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // Refused meanwhile; the answer tells.
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void get(const std::string& path, const std::string& header = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n");
  }
  void post(const std::string& path, const std::string& body, const std::string& header = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + header + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body);
  }

  Answer answer() {
    Answer result;
    const std::optional<std::string> head = take_until("\r\n\r\n");
    if (!head) return result;
    result.head = *head;
    result.status = std::stoi(head->substr(9, 3));
    if (const std::size_t at = head->find("Content-Length: "); at != std::string::npos) {
      result.body = take(std::stoul(head->substr(at + 16)));
    } else if (head->contains("Transfer-Encoding: chunked")) {
      while (std::optional<std::string> chunk = next_chunk()) result.body += *chunk;
    } else if (head->contains("Connection: close")) {
      while (receive()) {
      }
      result.body = std::exchange(in_, "");
    }
    return result;
  }
  std::optional<std::string> take_until(std::string_view end) {
    std::size_t at = in_.find(end);
    while (at == std::string::npos) {
      if (!receive()) return std::nullopt;
      at = in_.find(end);
    }
    std::string taken = in_.substr(0, at + end.size());
    in_.erase(0, at + end.size());
    return taken;
  }
  // Nothing for the last chunk.
  std::optional<std::string> next_chunk() {
    const std::optional<std::string> size = take_until("\r\n");
    if (!size) return std::nullopt;
    const std::size_t bytes = std::stoul(*size, nullptr, 16);
    std::string chunk = take(bytes);
    EXPECT_EQ(take(2), "\r\n");
    if (bytes == 0) return std::nullopt;
    return chunk;
  }
  // So many bytes, or fewer where the stream ends.
  std::string take(std::size_t bytes) {
    while (in_.size() < bytes && receive()) {
    }
    std::string taken = in_.substr(0, bytes);
    in_.erase(0, taken.size());
    return taken;
  }
  [[nodiscard]] bool has_ended() {
    while (receive()) {
    }
    return in_.empty();
  }
  void end_sending() { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }

 private:
  bool receive() {
    const std::string received = receive_some(fd_.get());
    in_ += received;
    return !received.empty();
  }

  UniqueFd fd_;
  std::string in_;
};

inline constexpr const char* kChat = "/v1/chat/completions";

inline constexpr const char* kHello = R"({"messages":[{"role":"user","content":"hi"}]})";

inline constexpr const char* kHelloStream = R"({"messages":[{"role":"user","content":"hi"}],"stream":true})";

inline constexpr uid_t kSomebodyElse = 12'345;

class HttpServerTest : public ::testing::Test {
 protected:
  void start(HttpServerOptions options = {}) {
    auto server = HttpServer::start(std::move(options), service_);
    ASSERT_TRUE(server.has_value()) << server.error().message;
    server_ = std::move(*server);
  }
  HttpClient client() { return HttpClient(server_->port()); }
  // The status of the answer to these bytes.
  int status_of(std::string_view bytes) {
    HttpClient one = client();
    one.send(bytes);
    return one.answer().status;
  }

  FakeService service_;
  std::unique_ptr<HttpServer> server_;
};

// An answer of more bytes than the kernel holds for a connection on any machine.
inline EmbedResult long_result() {
  EmbedResult result;
  result.model = "fake";
  result.dimensions = 1 << 23;
  result.values.assign(static_cast<std::size_t>(result.dimensions), 1);
  return result;
}

inline constexpr std::size_t kLongBytes = 1 << 24;  // At least, as JSON.

inline constexpr int kSmallBuffer = 65'536;

// The key is "secret".
inline ApiKey key_named(const std::string& name) {
  return {.name = name, .digest = sha256("secret"), .tenant = {"key:" + name}};
}

inline ApiKey key_of(const std::string& name, const std::string& secret) {
  ApiKey key = key_named(name);
  key.digest = sha256(secret);
  return key;
}

inline EmbedResult two_numbers() {
  EmbedResult result;
  result.model = "fake";
  result.dimensions = 2;
  result.values = {0.5f, 1};
  result.tokens = 900;
  return result;
}

}  // namespace uma::server
