#include "umad/process/child_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <optional>
#include <spawn.h>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "base/system/descriptors.h"
#include "umad/process/child_files.h"

// Not every system's headers declare it.
extern "C" char** environ;  // NOLINT(readability-redundant-declaration)

namespace uma::umad {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::vector<std::string> child_environment(std::initializer_list<std::string_view> also) {
  // GGML_: the library's variant; OMP_ and others: limits of threads. The options of sanitizers must be those of the daemon.
  constexpr std::array<std::string_view, 17> kUsual = {
      "PATH=",         "HOME=",          "TMPDIR=",      "TZ=",   "LANG=", "LC_",       "LD_",
      "DYLD_",         "GGML_",          "OMP_",         "GOMP_", "KMP_",  "OPENBLAS_", "ASAN_OPTIONS=",
      "TSAN_OPTIONS=", "UBSAN_OPTIONS=", "LSAN_OPTIONS="};
  std::vector<std::string> environment;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const auto is_begin = [text = std::string_view(*entry)](std::string_view name) { return text.starts_with(name); };
    if (std::ranges::any_of(kUsual, is_begin) || std::ranges::any_of(also, is_begin)) environment.emplace_back(*entry);
  }
  return environment;
}

pid_t spawn_child(const std::string& program, std::vector<std::string> arguments, std::vector<std::string> environment,
                  const ChildFiles& given) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  const std::array<std::pair<int, int>, 3> streams = {
      {{given.input, STDIN_FILENO}, {given.output, STDOUT_FILENO}, {given.errors, STDERR_FILENO}}};
  for (const auto& [source, target] : streams) {
    if (source < 0) {
      ::posix_spawn_file_actions_addopen(&files, target, "/dev/null", target == STDIN_FILENO ? O_RDONLY : O_WRONLY, 0);
    } else {
      ::posix_spawn_file_actions_adddup2(&files, source, target);
    }
  }
  const short flags = close_other_files(files);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, static_cast<short>(flags | POSIX_SPAWN_SETSIGMASK));
  pid_t pid = 0;
  const int problem =
      ::posix_spawn(&pid, program.c_str(), &files, &attributes, pointers_to(arguments).data(), pointers_to(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return problem == 0 ? pid : -problem;
}

pid_t spawn_child(const std::string& program, std::vector<std::string> arguments, std::vector<std::string> environment,
                  UniqueFd& output) {
  std::optional<Pipe> pipe = open_pipe();
  if (!pipe) return -errno;
  output = std::move(pipe->out);
  make_nonblocking(output.get());
  return spawn_child(program, std::move(arguments), std::move(environment),
                     {.input = -1, .output = pipe->in.get(), .errors = pipe->in.get()});
}

}  // namespace uma::umad
