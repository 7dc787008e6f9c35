#include "umad/process/pull_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <format>
#include <optional>
#include <poll.h>
#include <string_view>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <boost/json/value.hpp>

#include "base/clock.h"
#include "base/system/unique_fd.h"
#include "json/field_reader.h"
#include "umad/process/child_process.h"

namespace uma::umad {
namespace {

constexpr int kPollMs = 250;
constexpr std::size_t kLineBytesMax = 16'384;
constexpr std::size_t kMessageBytesMax = 4'096;
constexpr std::chrono::seconds kGrace{5};  // For a process that was asked to end.

// The output of the process, by lines: objects with progress or the path, and texts, of which the last is its error. An error
// may have several lines, such as the files to choose from.
class PullOutput {
 public:
  void read_from(int fd) {
    std::array<char, 4096> buffer{};
    for (ssize_t got = 0; (got = ::read(fd, buffer.data(), buffer.size())) > 0;) {
      text_.append(buffer.data(), static_cast<std::size_t>(got));
      for (std::size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
        take_line(std::string_view(text_).substr(0, end));
        text_.erase(0, end + 1);
      }
      if (text_.size() > kLineBytesMax) text_.clear();
    }
  }

  [[nodiscard]] const PullProgress& progress() const { return progress_; }
  [[nodiscard]] const std::string& path() const { return path_; }  // Empty until the download is complete.
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  void take_line(std::string_view line) {
    constexpr std::string_view kName = "uma-cli: ";
    boost::system::error_code problem;
    const boost::json::value value = json::parse(line, {}, problem);
    if (problem || !value.is_object()) {
      if (line.starts_with(kName)) {
        message_ = line.substr(kName.size(), kMessageBytesMax);
      } else if (!message_.empty() && message_.size() + 1 + line.size() <= kMessageBytesMax) {
        message_ += std::format("\n{}", line);
      }
      return;
    }
    json::FieldReader fields(value.get_object());
    path_ = fields.text("path").value_or("");
    if (!path_.empty()) return;
    progress_.file = fields.text("name").value_or("");
    progress_.bytes_done = static_cast<std::uint64_t>(fields.integer("done", 0, INT64_MAX).value_or(0));
    const auto total = fields.integer("total", 0, INT64_MAX);
    progress_.bytes_total = total ? std::optional(static_cast<std::uint64_t>(*total)) : std::nullopt;
  }

  std::string text_;  // The beginning of a line.
  PullProgress progress_;
  std::string path_;
  std::string message_;
};

// A child process. It is killed if nobody has waited for its end.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  ~Child() {
    if (pid_ == 0) return;
    send(SIGKILL);
    (void)wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }
  // Blocks until it has ended. Returns its status. Called once.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_;
};

}  // namespace

Expected<std::string> run_pull_process(const std::string& program, const std::string& folder, const std::string& source,
                                       const std::function<bool(const PullProgress&)>& on_progress) {
  constexpr int kUsage = 1;  // uma-cli's exit status for a mistake in what it was asked for.
  UniqueFd output;
  // The source cannot be taken for a flag, because it follows "--".
  const pid_t pid = spawn_child(program, {"uma-cli", "pull", "--json", "--folder", folder, "--", source},
                                child_environment({"HF_", "XDG_", "SSL_CERT_", "http_proxy=", "https_proxy=", "HTTPS_PROXY=",
                                                   "all_proxy=", "ALL_PROXY=", "no_proxy=", "NO_PROXY="}),
                                output);
  if (pid < 0) return fail(ErrorCode::io_failed, std::format("{} cannot be started: {}", program, std::strerror(-pid)));
  Child child(pid);
  PullOutput told;
  const SteadyClock clock;
  std::optional<TimePoint> unwanted_at;
  for (bool is_open = true; is_open;) {
    pollfd ready{.fd = output.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&ready, 1, kPollMs);
    told.read_from(output.get());
    is_open = (ready.revents & POLLHUP) == 0;
    if (!unwanted_at && !on_progress(told.progress())) {
      unwanted_at = clock.now();
      child.send(SIGTERM);  // It keeps what it has, and closes its output.
    }
    if (unwanted_at && clock.now() - *unwanted_at >= kGrace) break;
  }
  // Killed at last, it keeps the part that it has written, too.
  if (unwanted_at) child.send(SIGKILL);
  told.read_from(output.get());
  const int status = child.wait();
  if (unwanted_at) return fail(ErrorCode::limit_wait, "the download was cancelled: repeat it to resume it");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !told.path().empty()) return told.path();
  const bool is_refused = WIFEXITED(status) && WEXITSTATUS(status) == kUsage;
  return fail(is_refused ? ErrorCode::proto_field : ErrorCode::io_failed,
              told.message().empty() ? std::format("uma-cli pull ended with status {}", status) : told.message());
}

}  // namespace uma::umad
