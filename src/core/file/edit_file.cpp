#include "core/file/edit_file.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/clock.h"
#include "base/system/new_file.h"
#include "base/system/unique_fd.h"

namespace uma {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLockWait{10};
constexpr std::chrono::milliseconds kLockStep{20};

std::unexpected<Error> file_failure(const std::string& path, std::string_view what) {
  return fail(ErrorCode::io_failed, std::format("{}: {}", path, what));
}

// Locks the folder, because each edit replaces the file. Returns 0 or an errno.
int lock_folder(int folder) {
  const TimePoint end = SteadyClock().now() + kLockWait;
  while (::flock(folder, LOCK_EX | LOCK_NB) != 0) {
    const bool is_held = errno == EWOULDBLOCK;
    if (!is_held && errno != EINTR) return errno;
    if (is_held && SteadyClock().now() >= end) return EWOULDBLOCK;
    if (is_held) std::this_thread::sleep_for(kLockStep);
  }
  return 0;
}

// Gives the new file what people chose for the old one. Only root may give files away; without that right the mode decides.
int keep_owner_and_mode(int fd, const struct stat& old) {
  if (::fchown(fd, old.st_uid, old.st_gid) != 0 && ::fchown(fd, static_cast<uid_t>(-1), old.st_gid) != 0 && errno != EPERM)
    return errno;
  return ::fchmod(fd, old.st_mode & 0777) == 0 ? 0 : errno;
}

// Returns 0 or an errno; then the old file is unchanged.
int replace_file(const std::string& path, std::string_view text, const std::optional<struct stat>& old) {
  NewFile file(path);
  if (old && file.problem() == 0) file.note(keep_owner_and_mode(file.fd(), *old));
  file.write(text);
  file.sync();
  return file.publish();
}

}  // namespace

Expected<std::string> read_text_file(const std::string& path, const EditRules& rules) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) {
    if (errno == ENOENT && rules.makes_missing) return std::string();
    return file_failure(path, std::strerror(errno));
  }
  if (!S_ISREG(facts.st_mode)) return file_failure(path, "not a regular file");
  if (static_cast<std::uint64_t>(facts.st_size) > rules.bytes_max)
    return file_failure(path, std::format("it has {} bytes, more than {}", facts.st_size, rules.bytes_max));
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (facts.st_size > 0) text << file.rdbuf();
  if (!file || !text) return file_failure(path, "it cannot be read");
  return std::move(text).str();
}

Expected<Unit> edit_file(const std::string& path, const EditRules& rules, const TextEdit& edit, bool* is_written) {
  std::error_code problem;
  // A symbolic link stays a symbolic link.
  const fs::path target = fs::exists(path, problem) ? fs::canonical(path, problem) : fs::absolute(path, problem);
  if (problem) return file_failure(path, problem.message());
  if (rules.makes_missing) fs::create_directories(target.parent_path(), problem);  // The next call reports a failure.
  const UniqueFd folder(::open(target.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) return file_failure(path, std::strerror(errno));
  if (const int locked = lock_folder(folder.get()); locked != 0) {
    return file_failure(path, locked == EWOULDBLOCK ? "another program is editing it: try again later" : std::strerror(locked));
  }
  const auto text = read_text_file(target.string(), rules);
  if (!text) return std::unexpected(text.error());
  auto edited = edit(*text);
  if (!edited) return std::unexpected(std::move(edited.error()));
  if (*edited == *text) return Unit{};
  if (edited->size() > rules.bytes_max)
    return file_failure(path, std::format("it would have {} bytes, more than {}", edited->size(), rules.bytes_max));
  std::optional<struct stat> old(std::in_place);
  if (::stat(target.c_str(), &*old) != 0) old.reset();
  // Renaming replaces read-only files, too, and root may write anything.
  const bool is_read_only = old && ((old->st_mode & 0222) == 0 || ::access(target.c_str(), W_OK) != 0);
  if (is_read_only) return file_failure(path, "the file is read-only");
  const int not_replaced = replace_file(target.string(), *edited, old);
  if (not_replaced != 0) return file_failure(path, std::strerror(not_replaced));
  if (is_written != nullptr) *is_written = true;
  const int not_synced = sync_folder(target.parent_path().string());
  if (not_synced == 0) return Unit{};
  return file_failure(path,
                      std::format("the file is changed, but a power cut may bring its old text back: the folder could not be "
                                  "synced: {}",
                                  std::strerror(not_synced)));
}

}  // namespace uma
