#include "umad/data_dir.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "base/log.h"
#include "base/sync_folder.h"

namespace uma::umad {
namespace {

std::unexpected<Error> io_failure(const std::string& path, int error_number) {
  return fail(ErrorCode::io_failed, std::format("{}: {}", path, std::strerror(error_number)));
}

// Writes all bytes. Returns 0 or an errno.
int write_all(int file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(file, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

Expected<Unit> write_whole(const std::string& path, std::string_view content, bool syncs) {
  // The process id separates two daemons that share a folder.
  const std::string temporary = std::format("{}.{}.tmp", path, ::getpid());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return io_failure(temporary, errno);
  int problem = write_all(file, content);
  if (problem == 0 && syncs && ::fsync(file) != 0) problem = errno;
  if (::close(file) != 0 && problem == 0) problem = errno;
  if (problem == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) problem = errno;
  if (problem != 0) {
    ::unlink(temporary.c_str());
    return io_failure(path, problem);
  }
  if (syncs) problem = sync_folder(std::filesystem::path(path).parent_path());
  if (problem != 0) return io_failure(path, problem);
  return Unit{};
}

}  // namespace

Expected<Unit> prepare_data_dir(const std::string& path) {
  const std::filesystem::path folder(path);
  std::error_code problem;
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), problem);
  // mkdir reports a failure with the parents more clearly.
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return io_failure(path, errno);
  if (!std::filesystem::is_directory(folder, problem)) return io_failure(path, ENOTDIR);
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) return io_failure(path, errno);
  constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
  // It was made with another umask, or mounted by a system that gives its group all rights.
  if ((facts.st_mode & kOthersWrite) != 0 && ::chmod(path.c_str(), facts.st_mode & ~(S_IFMT | kOthersWrite)) == 0) {
    log_warning("others could write to {}: it is this user's alone now", path);
  }
  if (::stat(path.c_str(), &facts) != 0) return io_failure(path, errno);
  if ((facts.st_mode & kOthersWrite) != 0) {
    return fail(ErrorCode::io_failed, std::format("{}: other users can write to this folder: run chmod go-w on it", path));
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0) return io_failure(path, errno);
  return Unit{};
}

std::uint64_t free_bytes(const std::string& path) {
  std::error_code problem;
  const std::filesystem::space_info space = std::filesystem::space(path, problem);
  return problem ? 0 : static_cast<std::uint64_t>(space.available);
}

Expected<Unit> write_file_atomically(const std::string& path, std::string_view content) {
  return write_whole(path, content, false);
}

Expected<Unit> write_file_durably(const std::string& path, std::string_view content) {
  return write_whole(path, content, true);
}

}  // namespace uma::umad
