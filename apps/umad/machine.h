// The machine's properties, on which measurements depend (profiles and `umad tune`), how busy its processors were, and its
// name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace uma::umad {

struct Machine {
  std::string cpu;         // CPU model as reported by the kernel.
  std::int32_t cores = 1;  // Physical cores that this process may use.
  std::string library;     // "libllama 0.7.0"

  bool operator==(const Machine&) const = default;
};

[[nodiscard]] Machine this_machine();

// The machine's name in the network, as a node name (config_value.h).
[[nodiscard]] std::string host_name();

// CPU model of this machine, like Machine::cpu.
[[nodiscard]] std::string this_cpu_name();

// Seconds since boot that the processors which this process may use were busy, or taken by a hypervisor, which disturbs a
// measurement, too. 0 if the system does not report them.
[[nodiscard]] double busy_cpu_s();
// CPU seconds of this process.
[[nodiscard]] double process_cpu_s();

// Reads the CPU model from a file like /proc/cpuinfo: printable ASCII without quotes and backslashes. If the kernel
// reports no model (ARM), the implementer and part; else "unknown".
[[nodiscard]] std::string cpu_name(const std::filesystem::path& cpuinfo);

}  // namespace uma::umad
