// A Redis server for tests, where its program is installed. It listens on a port of this machine's loopback and ends with this
// process.
#pragma once

#include <arpa/inet.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <netinet/in.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/system/unique_fd.h"
#include "kv/shared/redis.h"

namespace uma::kv {

// A socket that listens on the loopback, and its port.
inline std::pair<UniqueFd, std::uint16_t> listen_on_loopback() {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), any, size) != 0 || ::listen(listener.get(), 16) != 0 ||
      ::getsockname(listener.get(), any, &size) != 0) {
    std::abort();
  }
  return {std::move(listener), ntohs(address.sin_port)};
}

class RedisServer {
 public:
  // Null: Redis is not installed.
  static std::unique_ptr<RedisServer> start(std::vector<std::string> more = {}) {
    const std::string program = "/usr/bin/redis-server";
    if (::access(program.c_str(), X_OK) != 0) return nullptr;
    std::string folder = std::filesystem::temp_directory_path() / "uma_redis_XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) std::abort();
    const std::uint16_t port = listen_on_loopback().second;
    std::unique_ptr<RedisServer> server(new RedisServer(program, folder, port, std::move(more)));
    server->run();
    return server;
  }
  ~RedisServer() {
    stop();
    std::filesystem::remove_all(folder_);
  }
  RedisServer(const RedisServer&) = delete;

  void run() {
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::vector<std::string> command = {program_, "--port",    std::to_string(port_), "--bind", "127.0.0.1",
                                          "--save", "",          "--appendonly",        "no",     "--dir",
                                          folder_,  "--logfile", folder_ + "/log"};
      command.insert(command.end(), more_.begin(), more_.end());
      std::vector<char*> arguments;
      for (std::string& each : command) arguments.push_back(each.data());
      arguments.push_back(nullptr);
      ::execv(arguments[0], arguments.data());
      ::_exit(1);
    }
    for (int attempt = 0; attempt < 300; ++attempt) {
      RedisConnection connection(options());
      // A server with passwords refuses this, but it answers.
      const auto answer = connection.call({"PING"});
      if (answer || answer.error().message.contains("NOAUTH")) return;
      ::usleep(50'000);
    }
    std::abort();
  }
  void stop() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void pause() { ::kill(pid_, SIGSTOP); }
  void go_on() { ::kill(pid_, SIGCONT); }

  [[nodiscard]] RedisOptions options() const {
    return {.address = {.host = "127.0.0.1", .port = port_}, .password = "", .call_limit = std::chrono::milliseconds(10'000)};
  }

 private:
  RedisServer(std::string program, std::string folder, std::uint16_t port, std::vector<std::string> more)
      : program_(std::move(program)), folder_(std::move(folder)), port_(port), more_(std::move(more)) {}

  const std::string program_;
  const std::string folder_;
  const std::uint16_t port_;
  const std::vector<std::string> more_;
  pid_t pid_ = 0;
};

}  // namespace uma::kv
