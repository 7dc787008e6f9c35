#include "wire/own/monitoring.h"

#include <limits>

#include "core/metrics_table.h"
#include "json/json_writer.h"
#include "wire/own/event_codec.h"
#include "wire/own/metrics_codec.h"

namespace uma::wire {

bool is_stalled(const MetricsSnapshot& metrics) {
  constexpr double kEver = std::numeric_limits<double>::infinity();
  const ProgressSnapshot& progress = metrics.progress;
  return metrics.requests_open > 0 && progress.last_tick_s.value_or(kEver) > kStalledAfterS &&
         progress.oldest_waiting_s.value_or(kEver) > kStalledAfterS;
}

bool is_healthy(const MetricsSnapshot& metrics, ModelState model) {
  return model != ModelState::failed && (model != ModelState::ready || !is_stalled(metrics));
}

std::string health_json(const MetricsSnapshot& metrics, ModelState model) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("status", is_healthy(metrics, model) ? "ok" : "degraded");
  object.field("model", model_state_name(model));
  for (const Metric* shown :
       {&metric("requests_open"), &metric("last_tick_s"), &metric("last_decode_s"), &metric("oldest_waiting_s"),
        &metric("crashes_total"), &metric("last_crash"), &metric("last_crash_unix_s")}) {
    metric_field(object, *shown, metrics);
  }
  object.close();
  return out;
}

}  // namespace uma::wire
