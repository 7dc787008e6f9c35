#include "kv/disk/read_streamed.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/system/file_calls.h"
#include "base/system/thread_name.h"

namespace uma::kv {
namespace {

constexpr std::size_t kPartBytes = 1ul << 20;  // The disk reads two of these at a time, and a core's cache holds one.
constexpr std::size_t kReaders = 2;
constexpr int kPending = -1;  // Differs from every errno.

}  // namespace

int read_all(int file, std::uint64_t offset, std::span<std::byte> bytes) {
  bool is_second_try = false;
  while (!bytes.empty()) {
    const ssize_t got = ::pread(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EINVAL && !is_second_try) {
      // Without the page cache, this disk does not accept this address, offset or size.
      bypass_page_cache(file, false);
      is_second_try = true;
      continue;
    }
    if (got < 0) return errno;
    if (got == 0) return ENODATA;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return 0;
}

int read_streamed(int file, std::uint64_t offset, std::span<std::byte> bytes,
                  const std::function<void(std::span<const std::byte>)>& take) {
  const std::size_t parts = (bytes.size() + kPartBytes - 1) / kPartBytes;
  const auto part = [&](std::size_t i) {
    return bytes.subspan(i * kPartBytes).first(std::min(kPartBytes, bytes.size() - i * kPartBytes));
  };
  std::size_t taken = 0;
  bypass_page_cache(file, false);
  for (; taken < parts && read_if_cached(file, offset + taken * kPartBytes, part(taken)); ++taken) take(part(taken));
  if (taken == parts) return 0;

  bypass_page_cache(file, true);
  std::atomic<std::size_t> next = taken;
  std::vector<std::atomic<int>> results(parts);
  for (std::atomic<int>& result : results) result = kPending;
  const auto read_parts = [&] {
    for (std::size_t i = next++; i < parts; i = next++) {
      results[i] = read_all(file, offset + i * kPartBytes, part(i));
      results[i].notify_one();
    }
  };
  std::vector<std::jthread> readers;
  try {
    while (readers.size() < std::min(kReaders, parts - taken)) {
      readers.emplace_back([&] {
        set_thread_name("uma-cold-read");
        read_parts();
      });
    }
  } catch (const std::system_error&) {
    if (readers.empty()) read_parts();  // No thread could be started, so this thread reads alone.
  }
  for (; taken < parts; ++taken) {
    results[taken].wait(kPending);
    if (const int problem = results[taken]; problem != 0) {
      next = parts;  // Running reads finish, and no new ones begin.
      return problem;
    }
    take(part(taken));
  }
  return 0;
}

}  // namespace uma::kv
