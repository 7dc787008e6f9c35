#include "uma-cli/interrupts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <optional>
#include <unistd.h>

#include "base/check.h"
#include "base/system/descriptors.h"

namespace uma::cli {
namespace {

// State that the signal handlers may change.
std::atomic<int> g_ctrl_c{0};
std::atomic<bool> g_leave{false};
std::atomic<bool> g_redraw{false};
std::atomic<int> g_wake_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int number) {
  const int saved_errno = errno;
  if (number == SIGINT) {
    ++g_ctrl_c;
  } else if (number == SIGTERM || number == SIGHUP) {
    g_leave = true;
  } else {
    g_redraw = true;
  }
  // A full pipe is fine: its bytes wake the reader, too.
  [[maybe_unused]] const ssize_t written = write(g_wake_fd, "!", 1);
  errno = saved_errno;
}

constexpr std::array kHandled = {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGCONT};

}  // namespace

Interrupts::Interrupts() {
  std::optional<Pipe> pipe = open_pipe();
  UMA_CHECK(pipe.has_value());
  make_nonblocking(pipe->out.get());
  make_nonblocking(pipe->in.get());
  wake_fd_ = pipe->out.release();
  g_wake_fd = pipe->in.release();
  struct sigaction action{};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  for (const int number : kHandled) {
    // SIGHUP stays ignored under `nohup uma-cli`.
    struct sigaction before{};
    sigaction(number, nullptr, &before);
    if (number != SIGHUP || before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
  signal(SIGPIPE, SIG_IGN);
}

Interrupts::~Interrupts() {
  for (const int number : kHandled) signal(number, SIG_DFL);
  close(g_wake_fd.exchange(-1));
  close(wake_fd_);
  dismiss();
}

Wake Interrupts::wait(std::span<pollfd> fds, int timeout_ms) {
  if (pending()) return Wake::signal;
  std::array<pollfd, 8> polled{};
  UMA_CHECK(fds.size() < polled.size());
  std::ranges::copy(fds, polled.begin());
  polled[fds.size()] = {.fd = wake_fd_, .events = POLLIN, .revents = 0};
  const int ready = poll(polled.data(), fds.size() + 1, timeout_ms);
  if (ready == 0) return Wake::timeout;
  if (ready < 0) return Wake::signal;  // poll() returned EINTR.
  std::copy_n(polled.begin(), fds.size(), fds.begin());
  if (polled[fds.size()].revents == 0) return Wake::ready;
  std::array<char, 64> bytes{};
  while (read(wake_fd_, bytes.data(), bytes.size()) > 0) {
  }
  return Wake::signal;
}

bool Interrupts::pending() const {
  return g_ctrl_c > 0 || g_leave;
}

int Interrupts::take() {
  return g_ctrl_c.exchange(0);
}

bool Interrupts::must_leave() const {
  return g_leave;
}

bool Interrupts::take_redraw() {
  return g_redraw.exchange(false);
}

void Interrupts::dismiss() {
  g_ctrl_c = 0;
  g_leave = false;
}

}  // namespace uma::cli
