// A fake daemon for tests. It accepts connections on a socket in its own folder and plays one script per connection, in order.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <gtest/gtest.h>

#include "uma-cli/output.h"
#include "wire/own/frame.h"

namespace uma::cli {

// The daemon's side of one connection. Used by the script's thread.
class FakeConnection {
 public:
  explicit FakeConnection(int fd) : fd_(fd) {}
  ~FakeConnection() { close(fd_); }
  FakeConnection(const FakeConnection&) = delete;
  FakeConnection& operator=(const FakeConnection&) = delete;

  // Reads the next request; returns an empty object after the client has closed the connection.
  boost::json::object read() {
    while (true) {
      auto body = reader_.next();
      if (!body) return {};
      if (*body) return boost::json::parse(**body).as_object();
      std::array<char, 4096> bytes{};
      const ssize_t got = recv(fd_, bytes.data(), bytes.size(), 0);
      if (got <= 0) return {};
      reader_.append({bytes.data(), static_cast<std::size_t>(got)});
    }
  }
  // Answers `request` with an event and its fields.
  void answer(const boost::json::object& request, std::string_view event, boost::json::object fields = {}) {
    fields["id"] = request.at("id");
    fields["event"] = event;
    write_body(boost::json::serialize(fields));
  }
  void fail(const boost::json::object& request, std::string_view code) {
    answer(request, "error", {{"code", code}, {"message", "no"}});
  }
  void write_body(std::string_view body) {
    std::string bytes;
    wire::append_frame(bytes, body);
    write_bytes(bytes);
  }
  void write_bytes(std::string_view bytes) {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

 private:
  const int fd_;
  wire::FrameReader reader_{64u << 20};
};

class FakeDaemon {
 public:
  using Script = std::function<void(FakeConnection&)>;

  explicit FakeDaemon(std::vector<Script> scripts) : scripts_(std::move(scripts)) {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/s";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    thread_ = std::thread([this] { play(); });
  }
  // Requires that all clients are gone, so that every script ends.
  ~FakeDaemon() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void play() {
    for (const Script& script : scripts_) {
      const int fd = accept(fd_, nullptr, nullptr);
      if (fd < 0) return;
      FakeConnection connection(fd);
      script(connection);
    }
  }

  std::vector<Script> scripts_;
  std::string folder_ = "/tmp/uma_cli_test.XXXXXX";
  std::string path_;
  int fd_ = -1;
  std::thread thread_;
};

// An Output that writes to a file, and the text written so far.
class Screen {
 public:
  Screen(bool is_terminal, Interrupts& interrupts) : output_(fileno(file_), is_terminal, interrupts) {}
  ~Screen() { std::fclose(file_); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  Output& output() { return output_; }
  std::string text() {
    std::string text(static_cast<std::size_t>(lseek(fileno(file_), 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(fileno(file_), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }

 private:
  std::FILE* file_ = std::tmpfile();
  Output output_;
};

}  // namespace uma::cli
