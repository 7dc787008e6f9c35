#include "umad/child_process.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <optional>
#include <spawn.h>
#include <unistd.h>
#include <utility>

#include "base/descriptors.h"
#include "umad/child_files.h"

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

std::vector<std::string> own_environment() {
  std::vector<std::string> environment;
  for (char** entry = ::environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

pid_t spawn_child(const std::string& program, std::vector<std::string> arguments, std::vector<std::string> environment,
                  UniqueFd& output) {
  std::optional<Pipe> pipe = open_pipe();
  if (!pipe) return -errno;
  output = std::move(pipe->out);
  const UniqueFd input = std::move(pipe->in);
  make_nonblocking(output.get());
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, input.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, input.get(), STDERR_FILENO);
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

}  // namespace uma::umad
