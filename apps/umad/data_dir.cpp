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
#include "base/system/new_file.h"

namespace uma::umad {
namespace {

std::unexpected<Error> io_failure(const std::string& path, int error_number) {
  return fail(ErrorCode::io_failed, std::format("{}: {}", path, std::strerror(error_number)));
}

Expected<Unit> write_whole(const std::string& path, std::string_view content, bool syncs) {
  NewFile file(path);
  file.write(content);
  if (syncs) file.sync();
  int problem = file.publish();
  if (problem == 0 && syncs) problem = sync_folder(std::filesystem::path(path).parent_path());
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
