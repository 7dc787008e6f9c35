// What the system says about memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>

namespace uma {

// Bytes; 0 where the kernel does not say.
struct MemoryInfo {
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

  std::uint64_t total = 0;      // MemTotal
  std::uint64_t available = 0;  // MemAvailable: free, or held by caches that the kernel gives up
  // The least that the control group of this process (v1 or v2), or one above it, allows.
  std::uint64_t group_limit = kUnlimited;
  // The least that these groups leave: limit less use. File pages that nobody used lately are not counted as use.
  std::uint64_t group_left = kUnlimited;
  // Percent of the last 10 s in which somebody waited for memory (PSI); nothing: the kernel does not count it.
  std::optional<double> pressure;
  std::uint64_t own_resident = 0;   // of this process, mapped files included
  std::uint64_t own_anonymous = 0;  // of it: what only swapping could take away
};

// Reads a dozen small files; below `root` lie proc and sys.
[[nodiscard]] MemoryInfo read_memory_info(const std::filesystem::path& root = "/");

// Bytes that this process could still take without pushing others out: what the kernel calls available, less where a control
// group allows less. 0 where the kernel does not say.
[[nodiscard]] std::uint64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace uma
