// Estimates how long loading state bytes into a lane's context takes, from the loads so far. Owned by the lane's thread.
#pragma once

#include <algorithm>
#include <cstddef>

namespace uma::engine {

class TransferCost {
 public:
  // The time to load so many bytes into the context.
  [[nodiscard]] double load_ms(std::size_t bytes) const { return ms_per_mb_ * static_cast<double>(bytes) / kMegabyte; }
  // The time of a copy within a split context, which is saved and loaded.
  [[nodiscard]] double copy_ms(std::size_t bytes) const { return 2 * load_ms(bytes); }

  void observe_load(std::size_t bytes, double ms) {
    const double megabytes = static_cast<double>(bytes) / kMegabyte;
    // A small state has little weight: it seems very slow if the thread had to wait for a core.
    const double weight = std::min(megabytes / 16, 1.0 / 8);
    ms_per_mb_ += weight * (ms / std::max(megabytes, 1e-3) - ms_per_mb_);
  }

 private:
  static constexpr double kMegabyte = 1e6;

  double ms_per_mb_ = 0.2;  // Weighted mean.
};

}  // namespace uma::engine
