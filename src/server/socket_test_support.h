// For this module's tests: a temporary folder for each test, and a client that sends frames over a plain socket.
#pragma once

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/system/unique_fd.h"
#include "wire/own/frame.h"

namespace uma::server {

// A longer wait means that the answer will not come. No test depends on how fast it is.
inline constexpr int kPatienceMs = 120'000;

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "uma-server-XXXXXX").string();
    UMA_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] std::string file(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline UniqueFd connect_to(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return UniqueFd();
  return fd;
}

// The next bytes; empty at the end of the stream, and, with a test failure, after the time limit.
inline std::string receive_some(int fd) {
  pollfd state{.fd = fd, .events = POLLIN, .revents = 0};
  if (::poll(&state, 1, kPatienceMs) != 1) {
    ADD_FAILURE() << "no answer";
    return "";
  }
  char buffer[65'536];
  const ssize_t size = ::recv(fd, buffer, sizeof(buffer), 0);
  return size <= 0 ? "" : std::string(buffer, static_cast<std::size_t>(size));
}

// A client whose waits are bounded; a missing answer is a test failure.
class TestClient {
 public:
  explicit TestClient(const std::string& path) : fd_(connect_to(path)) {
    EXPECT_TRUE(fd_.is_open()) << "cannot connect to " << path;
  }

  void send_bytes(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ASSERT_GT(sent, 0) << std::strerror(errno);
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void send_json(std::string_view json) {
    std::string frame;
    wire::append_frame(frame, json);
    send_bytes(frame);
  }

  // The next frame; nullopt at the end of the stream.
  std::optional<boost::json::object> receive() {
    while (true) {
      const auto frame = reader_.next();
      UMA_CHECK(frame.has_value());
      if (*frame) return boost::json::parse(boost::json::string_view((*frame)->data(), (*frame)->size())).as_object();
      if (!receive_bytes()) return std::nullopt;
    }
  }
  // The field `name` of the next frame as text; "(end)" at the end of the stream.
  std::string receive_field(std::string_view name) {
    const auto frame = receive();
    if (!frame) return "(end)";
    const boost::json::value* value = frame->if_contains(boost::json::string_view(name.data(), name.size()));
    if (value == nullptr) return "(absent)";
    return value->is_string() ? std::string(value->get_string()) : boost::json::serialize(*value);
  }
  [[nodiscard]] bool has_ended() { return !receive().has_value(); }

  void end_sending() { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }

 private:
  bool receive_bytes() {
    const std::string received = receive_some(fd_.get());
    reader_.append(received);
    return !received.empty();
  }

  UniqueFd fd_;
  wire::FrameReader reader_{100'000'000};
};

}  // namespace uma::server
