// Memory figures of the system and of this process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>

namespace uma {

// In bytes; 0 if the kernel does not report them.
struct MemoryInfo {
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

  std::uint64_t total = 0;
  std::uint64_t available = 0;  // Free memory and reclaimable caches.
  // The smallest limit of this process's control groups (v1 or v2), including parent groups.
  std::uint64_t group_limit = kUnlimited;
  // The least memory left in these groups: limit less use. Inactive file pages do not count as use.
  std::uint64_t group_left = kUnlimited;
  // Percent of the last 10 s in which a process waited for memory (PSI); nullopt: not measured by the kernel.
  std::optional<double> pressure;
  std::uint64_t own_resident = 0;   // Resident memory of this process, including mapped files.
  std::uint64_t own_anonymous = 0;  // The part of own_resident that only swapping could free.
};

// On Linux it reads a dozen small files; `root` contains proc and sys. Other systems have no control groups and no pressure.
[[nodiscard]] MemoryInfo read_memory_info(const std::filesystem::path& root = "/");

// Bytes that this process could allocate without displacing other programs: the kernel's available memory, or less if a control
// group allows less. 0 if the kernel does not report it.
[[nodiscard]] std::uint64_t available_memory_bytes(const std::filesystem::path& root = "/");

// Resident memory of this process, including mapped files; one small file on Linux. 0 if the system does not report it.
[[nodiscard]] std::uint64_t resident_bytes();

}  // namespace uma
