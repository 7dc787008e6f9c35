// How many compute threads are useful on this machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace uma::umad {

// Physical cores among the processors that this process may use (its affinity mask, as set by taskset or a cpuset), limited by
// the container's CPU quota, rounded up. Where the system has no such limits: its fast physical cores. Two hardware threads of
// one core share its arithmetic units and ggml's threads spin, so more threads would be slower. At least 1.
[[nodiscard]] std::int32_t usable_physical_cores();

// The most threads that can compute at once: the processors that this process may use, limited by the container's CPU quota,
// rounded up. 0: unknown.
[[nodiscard]] std::int32_t usable_processors();

// The processors that this process may use. Empty if Linux cannot report them (more than 1,024).
[[nodiscard]] std::vector<int> allowed_processors();

// Parts of these functions on Linux, for tests; `sys` is the root of sysfs. A processor without topology files counts as one
// core.
[[nodiscard]] std::int32_t count_physical_cores(std::span<const int> processors, const std::filesystem::path& sys);
// CPU quota of the cgroup (version 2) mounted under `sys` in whole processors; 0: none.
[[nodiscard]] std::int32_t cpu_quota(const std::filesystem::path& sys);

}  // namespace uma::umad
