// Counters that one thread writes often and others read at any time, without a lock. Each value is read as a whole; two values
// may be from slightly different moments.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace uma {

class Counter {
 public:
  void add(std::uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class Gauge {
 public:
  void set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(std::int64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  [[nodiscard]] std::int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// Durations in milliseconds from 1 µs to 4,295 s in buckets of equal ratio, 16 per doubling: a percentile is right to 4.4 %.
class LatencyHistogram {
 public:
  void record_ms(double ms) {
    counts_[bucket_of(ms)].fetch_add(1, std::memory_order_relaxed);
    sum_us_.fetch_add(static_cast<std::uint64_t>(ms > 0 ? ms * 1000.0 : 0), std::memory_order_relaxed);
    total_.fetch_add(1, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t count() const { return total_.load(std::memory_order_relaxed); }
  [[nodiscard]] double sum_ms() const { return static_cast<double>(sum_us_.load(std::memory_order_relaxed)) / 1000.0; }

  // Adds this histogram's buckets to `counts`, so that several can be read as one.
  static constexpr std::size_t kPerDoubling = 16;
  static constexpr std::size_t kBuckets = 32 * kPerDoubling;
  using Counts = std::array<std::uint64_t, kBuckets>;
  void add_to(Counts& counts) const {
    for (std::size_t i = 0; i < kBuckets; ++i) counts[i] += counts_[i].load(std::memory_order_relaxed);
  }
  // Upper bound in ms of the bucket in which the share `quantile` (0 to 1) of all values is reached; 0 without values.
  [[nodiscard]] static double percentile_ms(const Counts& counts, double quantile) {
    std::uint64_t total = 0;
    for (const std::uint64_t count : counts) total += count;
    if (total == 0) return 0;
    const double wanted = quantile * static_cast<double>(total);
    double seen = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      seen += static_cast<double>(counts[i]);
      if (seen >= wanted && counts[i] > 0) return 1e-3 * std::exp2(static_cast<double>(i + 1) / kPerDoubling);
    }
    return 0;
  }

 private:
  static std::size_t bucket_of(double ms) {
    const double us = ms * 1000.0;
    if (!(us > 1.0)) return 0;
    const double index = std::log2(us) * kPerDoubling;
    return index >= static_cast<double>(kBuckets - 1) ? kBuckets - 1 : static_cast<std::size_t>(index);
  }

  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
  std::atomic<std::uint64_t> sum_us_{0};
  std::atomic<std::uint64_t> total_{0};
};

}  // namespace uma
