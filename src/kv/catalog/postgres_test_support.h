// A PostgreSQL server for tests, where its programs are installed. It listens on a socket in a folder of its own and ends with
// this process.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <memory>
#include <pwd.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "kv/catalog/postgres.h"

namespace uma::kv {

class PostgresServer {
 public:
  // The server of this process; null: PostgreSQL is not installed.
  static PostgresServer* instance() {
    static const std::unique_ptr<PostgresServer> server = start();
    return server.get();
  }
  ~PostgresServer() {
    if (pid_ > 0) {
      ::kill(pid_, SIGINT);
      ::waitpid(pid_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }
  PostgresServer(const PostgresServer&) = delete;

  // The address of a new, empty database.
  std::string make_database() {
    const std::string name = std::format("test{}", ++databases_count_);
    PostgresConnection connection(address("postgres"));
    if (!connection.connect("test", {}) || !connection.run("CREATE DATABASE " + name)) std::abort();
    return address(name);
  }

 private:
  PostgresServer(std::string folder, pid_t pid) : folder_(std::move(folder)), pid_(pid) {}

  [[nodiscard]] std::string address(const std::string& database) const {
    return std::format("host={} dbname={} user=postgres", folder_, database);
  }

  static std::string programs() {
    std::vector<std::string> found;
    std::error_code problem;
    for (const auto& entry : std::filesystem::directory_iterator("/usr/lib/postgresql", problem)) {
      const std::string bin = entry.path() / "bin";
      if (::access((bin + "/postgres").c_str(), X_OK) == 0) found.push_back(bin);
    }
    return found.empty() ? "" : *std::ranges::max_element(found);
  }

  // Runs a program to its end, or in the background. The server refuses to run as root, so root becomes the user of the
  // package.
  static pid_t run(const std::vector<std::string>& command) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    if (::getuid() == 0) {
      const passwd* user = ::getpwnam("postgres");
      if (user == nullptr || ::setgid(user->pw_gid) != 0 || ::setuid(user->pw_uid) != 0) ::_exit(1);
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<char*> arguments;
    for (const std::string& each : command) arguments.push_back(const_cast<char*>(each.c_str()));
    arguments.push_back(nullptr);
    if (std::freopen("/dev/null", "w", stdout) == nullptr || std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(1);
    ::execv(arguments[0], arguments.data());
    ::_exit(1);
  }

  static std::unique_ptr<PostgresServer> start() {
    const std::string bin = programs();
    const passwd* user = ::getpwnam("postgres");
    if (bin.empty() || (::getuid() == 0 && user == nullptr)) return nullptr;
    std::string folder = std::filesystem::temp_directory_path() / "uma_postgres_XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) return nullptr;
    if (::getuid() == 0 && ::chown(folder.c_str(), user->pw_uid, user->pw_gid) != 0) return nullptr;
    const std::string data = folder + "/data";
    int status = 0;
    ::waitpid(run({bin + "/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"}),
              &status, 0);
    if (status != 0) return nullptr;
    // Without sync: these tests end no machine.
    std::unique_ptr<PostgresServer> server(new PostgresServer(
        folder, run({bin + "/postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"})));
    for (int attempt = 0; attempt < 300; ++attempt) {
      PostgresConnection connection(server->address("postgres"));
      if (connection.connect("test", {})) return server;
      ::usleep(100'000);
    }
    return nullptr;
  }

  const std::string folder_;
  const pid_t pid_;
  int databases_count_ = 0;
};

inline void run_sql_on(const std::string& address, const std::string& sql) {
  PostgresConnection connection(address);
  ASSERT_TRUE(connection.connect("test", {}));
  const auto done = connection.run(sql);
  ASSERT_TRUE(done) << done.error().message;
}

}  // namespace uma::kv
