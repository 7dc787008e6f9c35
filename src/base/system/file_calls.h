// Calls on files that systems have in different forms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <sys/stat.h>

namespace uma {

// Fills `bytes` from `offset` of `file` if all of them are in the page cache. False if they are not, or if the system does not
// tell; then `bytes` has any content.
[[nodiscard]] bool read_if_cached(int file, std::uint64_t offset, std::span<std::byte> bytes);

// Lets reads of `file` bypass the page cache, or use it again. Without effect where the file system cannot. While they bypass
// it, a read may fail with EINVAL if its address, offset or size is not a multiple of the disk's block.
void bypass_page_cache(int file, bool bypasses);

// Keeps the system from reading ahead in `file`.
void expect_random_reads(int file);

// Blocks until the file's bytes are on the disk. Returns 0 or an errno.
[[nodiscard]] int sync_file_bytes(int file);

// Gives a file another name in the same file system, unless that name exists. Returns 0 or an errno: EEXIST if it exists,
// EINVAL or ENOSYS if the file system cannot do it in one step.
[[nodiscard]] int rename_to_new(const std::string& from, const std::string& to);

// Flags with which open() opens a folder only to find files below it, with as few rights as the system allows.
[[nodiscard]] int search_folder_flags();

// When the file's content, and when anything of it, was last changed.
[[nodiscard]] timespec modified_at(const struct stat& facts);
[[nodiscard]] timespec changed_at(const struct stat& facts);

// The first of them in nanoseconds since the Unix epoch.
[[nodiscard]] inline std::int64_t modified_ns(const struct stat& facts) {
  const timespec modified = modified_at(facts);
  return std::int64_t{modified.tv_sec} * 1'000'000'000 + modified.tv_nsec;
}

}  // namespace uma
