#include "umad/process/trial_process.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <format>
#include <poll.h>
#include <random>
#include <string_view>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/clock.h"
#include "base/system/sanitizer.h"
#include "base/system/thread_name.h"
#include "base/system/unique_fd.h"
#include "llm/file/trial_load.h"
#include "pool/load_priority.h"
#include "umad/process/child_process.h"
#include "umad/process/parent_end.h"

namespace uma::umad {
namespace {

// CPU time, so that a busy machine or a slow disk condemns no file. A vocabulary of a million tokens takes seconds.
constexpr rlim_t kCpuSecondsMax = 60;
// Memory besides mapped files. A vocabulary of a million tokens takes 300 MiB.
constexpr rlim_t kDataBytesMax = rlim_t{2} << 30;
// Memory for trying a projector, besides the file itself, which is not mapped: attention takes gigabytes at high resolutions.
constexpr rlim_t kEncodingBytesMax = rlim_t{4} << 30;
constexpr Duration kPatience = std::chrono::minutes(10);

// Verdicts of the process: the first word of its last line.
constexpr std::string_view kPassed = "passed";
constexpr std::string_view kRefused = "refused";
constexpr std::string_view kFailed = "failed";

// Environment of the process, so that no driver lists its devices.
constexpr std::array<const char*, 6> kNoDevices = {
    "CUDA_VISIBLE_DEVICES=-1",  "HIP_VISIBLE_DEVICES=-1",      "ROCR_VISIBLE_DEVICES=-1",
    "GGML_VK_VISIBLE_DEVICES=", "VK_LOADER_DRIVERS_DISABLE=*", "GGML_NO_BACKTRACE=1"};

// The process writes the value of this variable when it has loaded the file. It differs each time, so that no file can have it.
constexpr const char* kMarkVariable = "UMA_TRIAL_MARK";

std::string random_mark() {
  std::random_device random;
  return std::format("loadable {:08x}{:08x}", random(), random());
}

std::vector<std::string> trial_environment(const std::string& mark) {
  std::vector<std::string> environment = child_environment();
  environment.push_back(std::format("{}={}", kMarkVariable, mark));
  std::erase_if(environment, [](const std::string& text) {
    return std::ranges::any_of(kNoDevices,
                               [&](std::string_view own) { return text.starts_with(own.substr(0, own.find('=') + 1)); });
  });
  for (const char* own : kNoDevices) environment.emplace_back(own);
  return environment;
}

// The last few KiB of the process's output.
class Tail {
 public:
  void read_from(int fd) {
    std::array<char, 4096> buffer{};
    for (ssize_t got = 0; (got = ::read(fd, buffer.data(), buffer.size())) > 0;) {
      text_.append(buffer.data(), static_cast<std::size_t>(got));
      if (text_.size() > 2 * kKept) text_.erase(0, text_.size() - kKept);
    }
  }
  [[nodiscard]] bool contains(std::string_view text) const { return text_.contains(text); }
  // The last line that is not empty.
  [[nodiscard]] std::string last_line() const {
    const std::size_t end = text_.find_last_not_of('\n');
    if (end == std::string::npos) return {};
    const std::size_t begin = text_.rfind('\n', end);
    return text_.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1) + 1);
  }

 private:
  static constexpr std::size_t kKept = 4096;
  std::string text_;
};

// The file that run_trial() has told the process to try. Requires: three arguments or five.
TrialFile file_of(const std::vector<std::string>& arguments) {
  using enum TrialFile::Kind;
  if (arguments.size() == 3) return {.model_path = arguments[2]};
  const auto kind = arguments[3] == trial_kind_name(projector) ? projector : adapter;
  return {.model_path = arguments[2], .kind = kind, .other_path = arguments[4]};
}

[[maybe_unused]] rlim_t data_bytes_max(const TrialFile& file) {
  if (file.kind != TrialFile::Kind::projector) return kDataBytesMax;
  struct stat status{};
  return kEncodingBytesMax + (::stat(file.other_path.c_str(), &status) == 0 ? static_cast<rlim_t>(status.st_size) : 0);
}

void write_line(std::string line) {
  line = std::format("\n{}\n", line);
  (void)!::write(STDOUT_FILENO, line.data(), line.size());
}

Expected<Unit> try_file(const TrialFile& file) {
  switch (file.kind) {
    case TrialFile::Kind::projector:
      return llm::try_projector(file.model_path, file.other_path);
    case TrialFile::Kind::adapter:
      return llm::try_adapter(file.model_path, file.other_path);
    case TrialFile::Kind::model:
      break;
  }
  const char* mark = std::getenv(kMarkVariable);
  return llm::try_model(file.model_path, {}, [mark] { write_line(mark == nullptr ? "" : mark); }).transform([](const auto&) {
    return Unit{};
  });
}

TrialOutcome judge(int status, const std::string& last_line) {
  using enum TrialOutcome::Kind;
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (signal == SIGXCPU) {
      return {refused, std::format("loading it takes more than {} s of CPU time", kCpuSecondsMax), last_line};
    }
    // Sent by somebody, or by the kernel for lack of memory.
    if (signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT) {
      return {unknown, std::format("the trial process was ended by signal {}", signal), last_line};
    }
    return {refused, std::format("a process that tried to load it was ended by signal {} ({})", signal, ::strsignal(signal)),
            last_line};
  }
  const auto rest = [&](std::string_view word) { return last_line.substr(std::min(last_line.size(), word.size() + 1)); };
  const int code = WEXITSTATUS(status);
  if (code == 0 && last_line == kPassed) return {passed};
  if (code == 0 && last_line.starts_with(kRefused)) return {refused, rest(kRefused)};
  if (code == 0 && last_line.starts_with(kFailed)) return {failed, rest(kFailed)};
  return {unknown, std::format("the trial process ended with status {}", code), last_line};
}

}  // namespace

std::string_view trial_kind_name(TrialFile::Kind kind) {
  switch (kind) {
    case TrialFile::Kind::adapter:
      return "adapter";
    case TrialFile::Kind::projector:
      return "projector";
    case TrialFile::Kind::model:
      break;
  }
  return "model";
}

TrialOutcome run_trial(const std::string& program, const TrialFile& file, const pool::LoadControl& control,
                       const std::function<void()>& on_loadable) {
  UniqueFd output;
  std::vector<std::string> arguments{"umad", kTrialCommand, std::to_string(::getpid()), file.model_path};
  if (file.kind != TrialFile::Kind::model) {
    arguments.emplace_back(trial_kind_name(file.kind));
    arguments.push_back(file.other_path);
  }
  const std::string mark = random_mark();
  bool is_loadable = !on_loadable;
  const pid_t pid = spawn_child(program, arguments, trial_environment(mark), output);
  if (pid < 0) {
    return {.kind = TrialOutcome::Kind::unknown,
            .reason = std::format("the trial process could not be started: {}", std::strerror(-pid))};
  }
  const SteadyClock clock;
  const TimePoint end = clock.now() + kPatience;
  pool::LoadPriority priority([pid](int niceness) { return set_niceness(pid, niceness); });
  bool is_given_up = false;
  Tail tail;
  const auto listen = [&] {
    tail.read_from(output.get());
    if (is_loadable || !tail.contains(mark)) return;
    is_loadable = true;
    on_loadable();
  };
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    priority.update(control.has_streams());
    if (!is_given_up && (control.is_cancelled() || clock.now() >= end)) {
      is_given_up = true;
      ::kill(pid, SIGKILL);
    }
    // Only the process holds the other end of the pipe, after a moment.
    pollfd ready{.fd = output.get(), .events = POLLIN, .revents = 0};
    constexpr int kLookAgainMs = 20;
    (void)::poll(&ready, 1, kLookAgainMs);
    listen();
    if ((ready.revents & POLLHUP) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  listen();
  return judge(status, tail.last_line());
}

int run_trial_command(const std::vector<std::string>& arguments) {
  const auto is_child = [&] {
    return (arguments.size() == 3 || arguments.size() == 5) && std::to_string(::getppid()) == arguments[1];
  };
  if (!is_child()) {
    std::fputs("umad: try-model is an internal command of umad\n", stderr);
    return 1;
  }
  // The process ends with the daemon's loading thread. The check below detects a thread that ended before this call.
  if (!end_with_parent() || !is_child()) return 1;
  const TrialFile file = file_of(arguments);
  set_thread_name("umad-trial");
  const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const rlimit cpu{.rlim_cur = kCpuSecondsMax, .rlim_max = kCpuSecondsMax + 1};
  ::setrlimit(RLIMIT_CPU, &cpu);
#if !UMA_HAS_SANITIZER  // Their shadow memory would count.
  const rlim_t bytes_max = data_bytes_max(file);
  const rlimit data{.rlim_cur = bytes_max, .rlim_max = bytes_max};
  ::setrlimit(RLIMIT_DATA, &data);
#endif
  const auto tried = try_file(file);
  std::string answer(kPassed);
  if (!tried) {
    const bool is_verdict = tried.error().code == ErrorCode::model_capability;
    answer = std::format("{} {}", is_verdict ? kRefused : kFailed, tried.error().message);
    std::ranges::replace(answer, '\n', ' ');
  }
  write_line(answer);
  ::_exit(0);  // Without freeing, since only the verdict matters.
}

}  // namespace uma::umad
