#include "umad/process/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <format>
#include <optional>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/system/program_path.h"
#include "base/system/thread_name.h"
#include "server/service_manager.h"
#include "server/socket_file.h"
#include "server/tcp_listener.h"
#include "umad/process/restart_backoff.h"
#include "umad/process/signal_wait.h"
#include "umad/process/supervised.h"

namespace uma::umad {
namespace {

// A mistake in flags, configuration or the model, which the next start would meet again.
constexpr int kCannotStart = 1;

struct HeldSocket {
  UniqueFd fd;
  std::optional<server::SocketFile> file;  // Declared after fd, so that it is destroyed first.
  std::string_view name;                   // Name in LISTEN_FDNAMES.
};

sigset_t awaited_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) ::sigaddset(&set, signal);
  return set;
}

class Supervisor {
 public:
  Supervisor(const Config& config, std::vector<std::string> arguments) : config_(config), arguments_(std::move(arguments)) {
    program_ = program_path().string();
    if (program_.empty()) program_ = arguments_.front();
  }

  // Takes the passed sockets, and opens the others that the configuration asks for.
  Expected<Unit> open_sockets(server::PassedSockets passed);
  int run();

 private:
  void start_daemon();
  [[noreturn]] void become_daemon();
  void pass_sockets_on() const;
  void handle(const TakenSignal& signal);
  // Handles the end of the daemon, if it was the child that ended. As process 1, the supervisor inherits other children, too.
  void reap();
  void note_crash();

  const Config& config_;
  const std::vector<std::string> arguments_;
  std::string program_;
  const SteadyClock clock_;
  const pid_t self_ = ::getpid();
  std::vector<HeldSocket> sockets_;
  bool made_socket_ = false;
  RestartBackoff backoff_;
  Supervised told_;   // Information for the next daemon.
  pid_t daemon_ = 0;  // 0: no daemon is running.
  TimePoint started_at_{};
  TimePoint start_at_{};       // When to start the next daemon.
  bool is_ending_ = false;     // The supervisor was asked to stop.
  std::optional<int> status_;  // Exit status of the supervisor.
};

Expected<Unit> Supervisor::open_sockets(server::PassedSockets passed) {
  if (passed.unix_socket) {
    sockets_.push_back({.fd = std::move(passed.unix_socket->fd), .file = std::nullopt, .name = "umad"});
  } else {
    auto made = server::listen_at(config_.socket_path, config_.backlog);
    if (!made) return std::unexpected(made.error());
    sockets_.push_back({.fd = std::move(made->fd), .file = std::move(made->file), .name = "umad"});
    made_socket_ = true;
  }
  if (passed.tcp) {
    sockets_.push_back({.fd = std::move(passed.tcp->fd), .file = std::nullopt, .name = "tcp"});
    if (passed.tcp_twin.is_open()) sockets_.push_back({.fd = std::move(passed.tcp_twin), .file = std::nullopt, .name = "tcp"});
  } else if (!config_.http.address.empty()) {
    auto opened = server::listen_at_address(config_.http.address, config_.http.port, config_.backlog);
    if (!opened && config_.asks_for_http()) return std::unexpected(opened.error());
    // Otherwise the daemon tries to open it, logs the failure, and serves without it.
    if (opened) sockets_.push_back({.fd = std::move(*opened), .file = std::nullopt, .name = "tcp"});
    const bool has_twin = opened && config_.http.address == server::kLoopback && config_.http.port != 0;
    if (auto twin = has_twin ? server::listen_at_twin(config_.http.port, config_.backlog) : UniqueFd(); twin && twin->is_open())
      sockets_.push_back({.fd = std::move(*twin), .file = std::nullopt, .name = "tcp"});
  }
  if (passed.http_socket) {
    sockets_.push_back({.fd = std::move(passed.http_socket->fd), .file = std::nullopt, .name = server::kHttpSocketName});
  } else if (!config_.http_socket.empty()) {
    auto made = server::listen_at(config_.http_socket, config_.backlog);
    if (!made) return std::unexpected(made.error());
    sockets_.push_back({.fd = std::move(made->fd), .file = std::move(made->file), .name = server::kHttpSocketName});
  }
  return Unit{};
}

int Supervisor::run() {
  const sigset_t set = awaited_signals();
  UMA_CHECK(::sigprocmask(SIG_BLOCK, &set, nullptr) == 0);
  const SignalWait signals(set);
  start_at_ = clock_.now();
  while (!status_) {
    if (daemon_ == 0 && clock_.now() >= start_at_) start_daemon();
    const auto signal = signals.take(daemon_ == 0 ? std::optional(start_at_ - clock_.now()) : std::nullopt);
    if (signal) handle(*signal);
  }
  return *status_;
}

void Supervisor::handle(const TakenSignal& signal) {
  switch (signal.number) {
    case SIGCHLD:
      return reap();
    case SIGUSR2:
      // systemd accepts messages only from the unit's main process, so the supervisor forwards the daemon's READY.
      if (daemon_ != 0 && signal.sender == daemon_) server::tell_service_manager("READY=1");
      return;
    case SIGTERM:
    case SIGINT:
      if (!std::exchange(is_ending_, true)) {
        server::tell_service_manager("STOPPING=1");
        // From now on new connections are refused, as by an unsupervised daemon that stops.
        sockets_.clear();
      }
      if (daemon_ == 0) {
        status_ = 0;
        return;
      }
      break;
    default:
      break;
  }
  if (daemon_ != 0) ::kill(daemon_, signal.number);
}

void Supervisor::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid != daemon_) continue;
    daemon_ = 0;
    told_.last_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    told_.last_status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    const bool is_done = is_ending_ || (told_.last_signal == 0 && told_.last_status <= kCannotStart);
    if (!is_done) {
      note_crash();
      continue;
    }
    constexpr int kShellSignal = 128;
    status_ = told_.last_signal != 0 ? kShellSignal + told_.last_signal : told_.last_status;
    if (*status_ > kCannotStart) log_error("supervisor: the daemon ended with {}", end_text(told_.last_signal, *status_));
  }
}

void Supervisor::note_crash() {
  ++told_.crashes;
  told_.last_unix_s = unix_time_s();
  const Duration lived = clock_.now() - started_at_;
  const Duration wait = backoff_.next(lived);
  start_at_ = clock_.now() + wait;
  const char* name = told_.last_signal == 0 ? nullptr : ::strsignal(told_.last_signal);
  log_error(
      "supervisor: the daemon ended with {}{} after {:.1f} s, crash {} under this supervisor; the next one starts in {:.1f} s",
      end_text(told_.last_signal, told_.last_status), name == nullptr ? "" : std::format(" ({})", name), to_ms(lived) / 1000,
      told_.crashes, to_ms(wait) / 1000);
}

void Supervisor::start_daemon() {
  started_at_ = clock_.now();
  const pid_t pid = ::fork();
  if (pid == 0) become_daemon();
  if (pid < 0) {
    const Duration wait = backoff_.next(Duration::zero());
    start_at_ = clock_.now() + wait;
    log_error("supervisor: cannot start the daemon: {}; next attempt in {:.1f} s", std::strerror(errno), to_ms(wait) / 1000);
    return;
  }
  daemon_ = pid;
  log_info("supervisor: process {} holds the sockets, process {} is the daemon", self_, pid);
}

// Runs in the child, which has one thread like its parent.
void Supervisor::become_daemon() {
  pass_sockets_on();
  Supervised told = told_;
  told.supervisor = self_;
  told.made_socket = made_socket_;
  ::setenv(kSupervisedVariable, supervised_text(told).c_str(), 1);
  ::unsetenv("NOTIFY_SOCKET");
  // The other signals stay blocked until the daemon waits for them, so that none is lost.
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_UNBLOCK, &child, nullptr);
  std::vector<char*> words;
  for (const std::string& argument : arguments_) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  ::execv(program_.c_str(), words.data());
  std::fputs(std::format("umad: {}: {}\n", program_, std::strerror(errno)).c_str(), stderr);
  constexpr int kNotFound = 127;
  ::_exit(kNotFound);
}

// Passes the sockets as descriptors 3 and up, and announces them to this process.
void Supervisor::pass_sockets_on() const {
  constexpr int kAbove = 64;  // Above every descriptor that is assigned below.
  std::vector<int> copies;
  for (const HeldSocket& held : sockets_) copies.push_back(::fcntl(held.fd.get(), F_DUPFD_CLOEXEC, kAbove));
  std::string names;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    ::dup2(copies[i], server::kFirstPassedDescriptor + static_cast<int>(i));
    names += std::format("{}{}", i == 0 ? "" : ":", sockets_[i].name);
  }
  ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
  ::setenv("LISTEN_FDS", std::to_string(copies.size()).c_str(), 1);
  ::setenv("LISTEN_FDNAMES", names.c_str(), 1);
}

}  // namespace

int run_supervisor(const Config& config, server::PassedSockets passed, const std::vector<std::string>& arguments) {
  set_thread_name("umad-supervise");
  Supervisor supervisor(config, arguments);
  if (const auto opened = supervisor.open_sockets(std::move(passed)); !opened) {
    log_error("{}", opened.error().message);
    return kCannotStart;
  }
  return supervisor.run();
}

}  // namespace uma::umad
