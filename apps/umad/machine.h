// What a measurement depends on beside the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace uma::umad {

struct Machine {
  std::string cpu;         // its model, as the kernel says
  std::int32_t cores = 1;  // physical ones that this process may use
  std::string library;     // "libllama 0.7.0"

  bool operator==(const Machine&) const = default;
};

[[nodiscard]] Machine this_machine();

// Processor seconds used since the start: by all programs, on the processors that this process may run on; and by this process.
// 0 where the kernel does not say.
[[nodiscard]] double machine_cpu_s();
[[nodiscard]] double process_cpu_s();

// The part that reads, for tests: the model's name in a file like /proc/cpuinfo, in printable ASCII without quotes and
// backslashes. Where the kernel names none (ARM), what it says of implementer and part; "unknown" without that.
[[nodiscard]] std::string cpu_name(const std::filesystem::path& cpuinfo);

}  // namespace uma::umad
