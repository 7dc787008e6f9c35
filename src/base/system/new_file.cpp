#include "base/system/new_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <format>
#include <unistd.h>
#include <utility>

namespace uma {

int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

int write_all(int fd, std::string_view text) {
  return write_all(fd, std::as_bytes(std::span(text)));
}

int sync_folder(const std::string& folder) {
  const UniqueFd opened(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open()) return errno;
  return ::fsync(opened.get()) == 0 || errno == EINVAL ? 0 : errno;
}

NewFile::NewFile(const std::string& path, mode_t mode) : NewFile(path, std::format("{}.{}.tmp", path, ::getpid()), mode) {}

NewFile::NewFile(std::string path, std::string temporary, mode_t mode)
    : path_(std::move(path)), temporary_(std::move(temporary)) {
  (void)::unlink(temporary_.c_str());
  file_ = UniqueFd(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  is_there_ = file_.is_open();
  if (!is_there_) problem_ = errno;
}

NewFile::~NewFile() {
  if (is_there_) (void)::unlink(temporary_.c_str());
}

void NewFile::note(int result) {
  if (problem_ == 0) problem_ = result;
}

void NewFile::write(std::span<const std::byte> bytes) {
  if (problem_ == 0) problem_ = write_all(file_.get(), bytes);
}

void NewFile::sync() {
  if (problem_ == 0 && ::fsync(file_.get()) != 0 && errno != EINVAL) problem_ = errno;
}

int NewFile::publish() {
  // Some network file systems report a full disk when a file is closed.
  if (problem_ == 0 && ::close(file_.release()) != 0) problem_ = errno;
  if (problem_ == 0 && std::rename(temporary_.c_str(), path_.c_str()) != 0) problem_ = errno;
  if (problem_ == 0) is_there_ = false;
  return problem_;
}

}  // namespace uma
