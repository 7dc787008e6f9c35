#include "uma-cli/models/part_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/system/file_calls.h"
#include "base/system/new_file.h"
#include "base/system/unique_fd.h"
#include "uma-cli/format.h"
#include "uma-cli/models/model_head.h"

namespace uma::cli {
namespace {

constexpr std::size_t kReadBytes = 1u << 20;
constexpr std::size_t kStateBytesMax = 64u << 10;
constexpr int kOpensMax = 100;

std::unexpected<Failure> disk_failure(const std::string& path, int error_number) {
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG) {
    return fail(ExitCode::server,
                std::format("{}: {}; free some space and run the same command again", path, std::strerror(error_number)));
  }
  return fail(ExitCode::server, std::format("{}: {}", path, std::strerror(error_number)));
}

// Returns 0 or an errno; `written` is counted in both cases.
int append_all(int fd, std::string_view bytes, std::size_t& written) {
  written = 0;
  while (written < bytes.size()) {
    const ssize_t step = write(fd, bytes.data() + written, bytes.size() - written);
    if (step < 0 && errno == EINTR) continue;
    if (step < 0) return errno;
    written += static_cast<std::size_t>(step);
  }
  return 0;
}

// Passes every byte from the descriptor's position to `take`. Failures name `path`.
template <class TakeT>
Result<void> read_all(int fd, const std::string& path, Interrupts& interrupts, TakeT&& take) {
  std::vector<char> buffer(kReadBytes);
  while (true) {
    if (interrupts.pending()) return interrupted();
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return disk_failure(path, errno);
    if (got == 0) return {};
    take(std::string_view(buffer.data(), static_cast<std::size_t>(got)));
  }
}

std::optional<PartState> read_state(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) return std::nullopt;
  std::string text(kStateBytesMax, '\0');
  const ssize_t got = read(file.get(), text.data(), text.size());
  return parse_state(std::string_view(text).substr(0, static_cast<std::size_t>(std::max<ssize_t>(0, got))));
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

}  // namespace

Result<std::string> sha256_of_file(const std::string& path, Interrupts& interrupts, const OnBytes& on_bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return disk_failure(path, errno);
  Sha256 sum;
  std::uint64_t done = 0;
  auto read = read_all(file.get(), path, interrupts, [&](std::string_view bytes) {
    sum.add(bytes);
    done += bytes.size();
    on_bytes(done);
  });
  if (!read) return std::unexpected(read.error());
  return sum.hex();
}

Presence presence_of(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return Presence::missing;
  return S_ISREG(status.st_mode) ? Presence::file : Presence::other;
}

PartFile::PartFile(std::string target, int fd)
    : target_(std::move(target)), path_(target_ + ".part"), state_path_(path_ + ".json"), fd_(fd) {}

PartFile::~PartFile() {
  if (size_ == 0) discard();
  close(fd_);
}

Result<std::unique_ptr<PartFile>> PartFile::open(const std::string& target) {
  const std::string path = target + ".part";
  for (int i = 0; i < kOpensMax; ++i) {
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
    if (file.get() < 0) return disk_failure(path, errno);
    if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return disk_failure(path, errno);
      return fail(ExitCode::server, std::format("another uma-cli is downloading {}: wait for it to finish", target));
    }
    struct stat ours{};
    struct stat named{};
    if (fstat(file.get(), &ours) != 0) return disk_failure(path, errno);
    if (!S_ISREG(ours.st_mode)) return fail(ExitCode::server, std::format("{} is not a regular file", path));
    // Between open() and the lock, another process may have published or removed the file, which is then not the part any more.
    if (lstat(path.c_str(), &named) != 0 || named.st_ino != ours.st_ino || named.st_dev != ours.st_dev) continue;
    std::unique_ptr<PartFile> part(new PartFile(target, file.release()));
    part->size_ = static_cast<std::uint64_t>(ours.st_size);
    part->state_ = read_state(part->state_path_);
    return part;
  }
  return fail(ExitCode::server, std::format("{} keeps changing: another program works on it", path));
}

Result<void> PartFile::load(Interrupts& interrupts, const OnBytes& on_bytes) {
  const std::uint64_t expected = size_;
  std::uint64_t done = 0;
  auto read = read_all(fd_, path_, interrupts, [&](std::string_view bytes) {
    count(bytes);
    done += bytes.size();
    on_bytes(done);
  });
  if (!read) return read;
  if (done != expected) return fail(ExitCode::server, std::format("{} changed while it was read", path_));
  return {};
}

void PartFile::count(std::string_view bytes) {
  head_ += bytes.substr(0, std::min(bytes.size(), kModelHeadBytes - head_.size()));
  sum_.add(bytes);
}

Result<void> PartFile::begin(PartState state) {
  if (ftruncate(fd_, 0) != 0 || lseek(fd_, 0, SEEK_SET) != 0) return disk_failure(path_, errno);
  size_ = 0;
  head_.clear();
  sum_ = Sha256();
  state_ = std::move(state);
  return save_state();
}

Result<void> PartFile::append(std::string_view bytes) {
  std::size_t written = 0;
  const int problem = append_all(fd_, bytes, written);
  count(bytes.substr(0, written));
  size_ += written;
  if (problem != 0) return disk_failure(path_, problem);
  return {};
}

Result<void> PartFile::save_state() const {
  NewFile file(state_path_, state_path_ + ".tmp");  // For the user alone: the URL may contain a secret.
  file.write(state_text(*state_));
  if (const int problem = file.publish(); problem != 0) return disk_failure(state_path_, problem);
  return {};
}

Result<void> PartFile::check_room(std::uint64_t total) const {
  struct statvfs disk{};
  if (total <= size_ || statvfs(folder_of(target_).c_str(), &disk) != 0) return {};
  const std::uint64_t needed = total - size_;
  const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (needed <= free) return {};
  return fail(ExitCode::server,
              std::format("{} needs {} more, and {} has {} free", target_, human_bytes(static_cast<double>(needed)),
                          folder_of(target_), human_bytes(static_cast<double>(free))));
}

Result<void> PartFile::publish(bool replaces) {
  if (fsync(fd_) != 0) return disk_failure(path_, errno);
  int problem = replaces ? 0 : rename_to_new(path_, target_);
  // Some file systems cannot rename without replacing.
  if (replaces || problem == EINVAL || problem == ENOSYS) {
    problem = std::rename(path_.c_str(), target_.c_str()) == 0 ? 0 : errno;
  }
  if (problem != 0) return disk_failure(target_, problem);
  unlink(state_path_.c_str());
  if (problem = sync_folder(folder_of(target_)); problem != 0) return disk_failure(folder_of(target_), problem);
  return {};
}

void PartFile::discard() {
  struct stat ours{};
  struct stat named{};
  // After publish() the part's name may belong to another process.
  if (fstat(fd_, &ours) != 0 || lstat(path_.c_str(), &named) != 0 || ours.st_ino != named.st_ino) return;
  unlink(state_path_.c_str());
  unlink(path_.c_str());
  size_ = 0;
}

}  // namespace uma::cli
