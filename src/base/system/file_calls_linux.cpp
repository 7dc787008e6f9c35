#include "base/system/file_calls.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace uma {

bool read_if_cached(int file, std::uint64_t offset, std::span<std::byte> bytes) {
  const iovec place{.iov_base = bytes.data(), .iov_len = bytes.size()};
  return ::preadv2(file, &place, 1, static_cast<off_t>(offset), RWF_NOWAIT) == static_cast<ssize_t>(bytes.size());
}

void bypass_page_cache(int file, bool bypasses) {
  ::fcntl(file, F_SETFL, bypasses ? O_DIRECT : 0);
}

void expect_random_reads(int file) {
  ::posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
}

int sync_file_bytes(int file) {
  return ::fdatasync(file) == 0 ? 0 : errno;
}

int rename_to_new(const std::string& from, const std::string& to) {
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
}

int search_folder_flags() {
  return O_PATH | O_DIRECTORY;
}

timespec modified_at(const struct stat& facts) {
  return facts.st_mtim;
}

timespec changed_at(const struct stat& facts) {
  return facts.st_ctim;
}

}  // namespace uma
