// Estimates the bytes that the library reads for a call, which bound decoding on most machines, and limits them. A call reads
// the weights once per group of rows (of a mixture's experts only the ones that the rows are likely to need), and each row's
// keys and values.
#pragma once

#include <cstdint>

#include "base/mutex.h"

namespace uma::sched {

struct WeightBytes {
  std::uint64_t always = 0;   // Read by every call.
  std::uint64_t experts = 0;  // All experts together; 0: the model has none.
  std::int32_t experts_count = 1;
  std::int32_t experts_used = 1;  // Experts used by one row.
};

// Bytes of weights that a call of `rows` >= 1 reads. Assumes that rows choose their experts independently.
[[nodiscard]] double weights_read(const WeightBytes& weights, std::int32_t rows);

// How often a call with `rows` rows of one sequence reads that sequence's keys and values: once per tile of 64 rows.
[[nodiscard]] inline std::int32_t attention_tiles(std::int32_t rows) {
  return (rows + 63) / 64;
}

// Bytes moved by a call of `rows` rows that together read the keys and values of `kv_tokens` cached tokens.
[[nodiscard]] inline double bytes_of_call(const WeightBytes& weights, std::int32_t rows, double kv_tokens,
                                          std::uint64_t kv_bytes_per_token) {
  return weights_read(weights, rows) + kv_tokens * static_cast<double>(kv_bytes_per_token);
}

// A limit on bytes moved per second, shared by the lanes of a worker. Any thread.
class BandwidthBudget {
 public:
  // 0: no limit.
  explicit BandwidthBudget(double bytes_per_s) : bytes_per_ms_(bytes_per_s / 1000) {}

  // Charges a call that began at `began_ms` with `bytes`. All times are of one clock.
  void charge(double bytes, double began_ms);
  // When the next call may begin; in the past: at once.
  [[nodiscard]] double free_at_ms() const;

 private:
  const double bytes_per_ms_;
  mutable Mutex mutex_;
  double free_at_ms_ GUARDED_BY(mutex_) = 0;
};

}  // namespace uma::sched
