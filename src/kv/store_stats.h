// Metrics of the state store. Thread-safe.
#pragma once

#include "base/metrics.h"

namespace uma::kv {

struct StoreStats {
  Gauge warm_states;
  Gauge warm_bytes;
  Gauge cold_states;
  Gauge cold_bytes;
  Counter dropped_total;  // States dropped for lack of memory, or beyond their tenant's quota.
  Counter expired_total;  // States removed after StoreOptions::ttl without use.
  Counter failed_total;   // Reads and writes that failed.
  Counter written_bytes_total;
  Gauge written_day_bytes;  // In the last 24 hours.
  Counter read_bytes_total;
  Counter prefix_lookups_total;  // Prefixes that were looked for in the shared store.
  Counter prefixes_found_total;
  Counter prefixes_written_total;
  LatencyHistogram read;
  LatencyHistogram write;
};

}  // namespace uma::kv
