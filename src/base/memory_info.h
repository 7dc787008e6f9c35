// What the system says about memory.
#pragma once

#include <cstdint>
#include <filesystem>

namespace uma {

// Bytes that this process could still take without pushing others out: what the kernel calls available, less where a control
// group (v1 or v2) allows less. 0 where the kernel does not say.
[[nodiscard]] std::uint64_t available_memory_bytes();

// The part that reads, for tests: below `root` lie proc and sys.
[[nodiscard]] std::uint64_t available_memory_bytes(const std::filesystem::path& root);

}  // namespace uma
