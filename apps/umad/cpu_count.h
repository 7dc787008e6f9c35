// How many compute threads are worth having here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace uma::umad {

// Physical cores among the processors this process may run on (its affinity mask, as set by taskset or a cpuset), and no more
// than the container's CPU quota, rounded up. Two hardware threads of one core share its arithmetic units, and ggml's threads
// spin, so more than that is slower. At least 1.
[[nodiscard]] std::int32_t usable_physical_cores();

// The processors that this process may run on. Empty where the kernel cannot say (more than 1,024 of them).
[[nodiscard]] std::vector<int> allowed_processors();

// The parts, for tests; `sys` is the root of sysfs. Processors without topology files count as cores of their own.
[[nodiscard]] std::int32_t count_physical_cores(std::span<const int> processors, const std::filesystem::path& sys);
// Whole processors of the quota of the cgroup (version 2) mounted under `sys`; 0 when there is none.
[[nodiscard]] std::int32_t cpu_quota(const std::filesystem::path& sys);

}  // namespace uma::umad
