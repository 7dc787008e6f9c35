// Measures how busy other processes keep the cores that this process may use. Owned by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace uma {

// CPU seconds since the system's start that all processes together used on the processors that this process may use;
// Stolen::counted: and what a hypervisor took from these. Nullopt if the system does not report it. `stat_path` is the file
// that Linux reports it in.
enum class Stolen : std::uint8_t { left_out, counted };
[[nodiscard]] std::optional<double> busy_processors_s(const std::string& stat_path, Stolen stolen = Stolen::left_out);
[[nodiscard]] std::string processor_stat_path();  // Empty where there is no such file.

class CpuLoad {
 public:
  explicit CpuLoad(std::string stat_path = processor_stat_path())
      : stat_path_(std::move(stat_path)) {}  // Tests pass another path.
  // CPU time in cores that other processes used since the last call (0 to the number of cores). The system counts it in steps
  // of 10 ms, so call it at most every 100 ms. Nullopt on the first call and if the system does not report it.
  [[nodiscard]] std::optional<double> others_since_last();

 private:
  struct Sample {
    double at_s = 0;
    double all_s = 0;  // Busy time of all cores.
    double own_s = 0;
  };
  [[nodiscard]] std::optional<Sample> read() const;

  const std::string stat_path_;
  std::optional<Sample> last_;
};

}  // namespace uma
