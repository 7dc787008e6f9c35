// Estimates how long saving and loading state bytes takes, from the lane's own saves and loads so far. Owned by the lane's
// thread.
#pragma once

#include <algorithm>
#include <cstddef>

namespace uma::engine {

class TransferCost {
 public:
  // The time to save so many bytes of a context.
  [[nodiscard]] double save_ms(std::size_t bytes) const { return save_ms_per_mb_ * megabytes(bytes); }
  // The time to load so many bytes into a context.
  [[nodiscard]] double load_ms(std::size_t bytes) const { return load_ms_per_mb_ * megabytes(bytes); }
  // The time to move so many bytes from one context, or one sequence of a split context, to another: they are saved and loaded.
  [[nodiscard]] double move_ms(std::size_t bytes) const { return (save_ms_per_mb_ + load_ms_per_mb_) * megabytes(bytes); }

  void observe_load(std::size_t bytes, double ms) { observe(load_ms_per_mb_, bytes, ms); }
  void observe_save(std::size_t bytes, double ms) { observe(save_ms_per_mb_, bytes, ms); }

 private:
  static double megabytes(std::size_t bytes) { return static_cast<double>(bytes) / 1e6; }

  static void observe(double& mean, std::size_t bytes, double ms) {
    // A small state has little weight: it seems very slow if the thread had to wait for a core.
    const double weight = std::min(megabytes(bytes) / 16, 1.0 / 8);
    mean += weight * (ms / std::max(megabytes(bytes), 1e-3) - mean);
  }

  double load_ms_per_mb_ = 0.2;  // Weighted means.
  double save_ms_per_mb_ = 0.2;
};

}  // namespace uma::engine
