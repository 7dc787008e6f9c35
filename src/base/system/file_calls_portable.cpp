#include "base/system/file_calls.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

namespace uma {

bool read_if_cached(int /*file*/, std::uint64_t /*offset*/, std::span<std::byte> /*bytes*/) {
  return false;
}

void bypass_page_cache([[maybe_unused]] int file, [[maybe_unused]] bool bypasses) {
#ifdef __APPLE__
  ::fcntl(file, F_NOCACHE, bypasses ? 1 : 0);
#endif
}

void expect_random_reads([[maybe_unused]] int file) {
#ifdef __APPLE__
  ::fcntl(file, F_RDAHEAD, 0);
#endif
}

int sync_file_bytes(int file) {
#ifdef __APPLE__
  // There fsync() leaves bytes in the disk's own cache.
  if (::fcntl(file, F_FULLFSYNC) == 0) return 0;
#endif
  return ::fsync(file) == 0 ? 0 : errno;
}

int rename_to_new(const std::string& from, const std::string& to) {
#ifdef __APPLE__
  return ::renamex_np(from.c_str(), to.c_str(), RENAME_EXCL) == 0 ? 0 : errno;
#else
  // For a moment the file has both names.
  if (::link(from.c_str(), to.c_str()) != 0) return errno == EPERM ? ENOSYS : errno;
  return ::unlink(from.c_str()) == 0 ? 0 : errno;
#endif
}

int search_folder_flags() {
  return O_RDONLY | O_DIRECTORY;
}

timespec modified_at(const struct stat& facts) {
#ifdef __APPLE__
  return facts.st_mtimespec;
#else
  return facts.st_mtim;
#endif
}

timespec changed_at(const struct stat& facts) {
#ifdef __APPLE__
  return facts.st_ctimespec;
#else
  return facts.st_ctim;
#endif
}

}  // namespace uma
