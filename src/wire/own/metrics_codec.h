// The daemon's metrics as the object of a `metrics` frame and in Prometheus' text format. Both follow the table in
// core/metrics_table.h.
#pragma once

#include <string>
#include <string_view>

#include "core/metrics_snapshot.h"
#include "core/metrics_table.h"
#include "json/json_writer.h"

namespace uma::wire {

// Appends the metrics object, without a frame.
void append_metrics_object(std::string& out, const MetricsSnapshot& metrics);
[[nodiscard]] std::string metrics_json(const MetricsSnapshot& metrics);
// Adds one field of the metrics object.
void metric_field(json::ObjectWriter& object, const Metric& metric, const MetricsSnapshot& metrics);

// Prometheus' text format 0.0.4: each metric as `uma_<name>` with help and type, and the histograms. Unknown values are left
// out.
[[nodiscard]] std::string metrics_text(const MetricsSnapshot& metrics);

// `text` escaped for the value of a label.
[[nodiscard]] std::string escaped_label(std::string_view text);

}  // namespace uma::wire
