// How busy other processes keep the cores that this one may use. Owned by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace uma {

class CpuLoad {
 public:
  explicit CpuLoad(std::string stat_path = "/proc/stat") : stat_path_(std::move(stat_path)) {}  // another one: for tests
  // Cores' worth of CPU time that other processes have used since the last call (0 to the number of cores), from /proc/stat and
  // getrusage, whose clocks tick in 10 ms: ask no more often than every 100 ms. Nothing on the first call and where the system
  // does not say.
  [[nodiscard]] std::optional<double> others_since_last();

 private:
  struct Sample {
    double at_s = 0;
    double all_s = 0;  // busy time of all cores
    double own_s = 0;
  };
  [[nodiscard]] std::optional<Sample> read() const;

  const std::string stat_path_;
  std::optional<Sample> last_;
};

}  // namespace uma
