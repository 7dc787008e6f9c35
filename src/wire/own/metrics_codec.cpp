#include "wire/own/metrics_codec.h"

#include <cmath>
#include <cstddef>
#include <format>
#include <iterator>
#include <span>
#include <type_traits>
#include <variant>

#include "base/utf8.h"

namespace uma::wire {
namespace {

void append_value(std::string& out, const MetricValue& value) {
  std::visit(
      [&](const auto& known) {
        using Value = std::remove_cvref_t<decltype(known)>;
        if constexpr (std::is_same_v<Value, std::monostate>) {
          out += "null";
        } else if constexpr (std::is_same_v<Value, double>) {
          json::append_number(out, known);
        } else if constexpr (std::is_same_v<Value, std::string_view>) {
          json::append_string(out, known);
        } else if constexpr (std::is_same_v<Value, std::span<const std::string>>) {
          json::append_array(out, known, [&](const std::string& text) { json::append_string(out, text); });
        } else {
          json::append_integer(out, known);
        }
      },
      value);
}

template <class Owner>
void append_owner(std::string& out, std::span<const MetricRow<Owner>> metrics, const Owner& owner) {
  json::ObjectWriter object(out);
  if constexpr (std::is_same_v<Owner, DeviceMetrics>) json::append_string(object.begin("name"), owner.name);
  for (const MetricRow<Owner>& metric : metrics) append_value(object.begin(metric.name), metric.read(owner));
  object.close();
}

// --- Prometheus text format

void append_head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += std::format("# HELP {} ", name);
  for (const char c : help) {
    if (c == '\\') out += '\\';
    if (c != '`') out += c;
  }
  out += std::format("\n# TYPE {} {}\n", name, type);
}

std::string_view type_name(MetricKind kind) {
  return kind == MetricKind::counter ? "counter" : "gauge";
}

// Whether the value is known and finite.
bool is_sample(const MetricValue& value) {
  const auto* number = std::get_if<double>(&value);
  return number != nullptr ? std::isfinite(*number) : !std::holds_alternative<std::monostate>(value);
}

void append_sample(std::string& out, std::string_view name, std::string_view labels, const MetricValue& value) {
  out += std::format("{}{} ", name, labels);
  append_value(out, value);
  out += '\n';
}

void append_metric(std::string& out, const Metric& metric, const MetricsSnapshot& metrics) {
  const MetricValue value = metric.read(metrics);
  if (metric.kind == MetricKind::list || !is_sample(value)) return;
  const std::string name = std::format("uma_{}", metric.name);
  append_head(out, name, type_name(metric.kind), metric.help);
  if (const auto* text = std::get_if<std::string_view>(&value)) {
    return append_sample(out, name, std::format("{{name=\"{}\"}}", escaped_label(*text)), std::int64_t{1});
  }
  append_sample(out, name, "", value);
}

// `label` distinguishes the histogram from others of its family; empty: the family has one histogram.
void append_histogram(std::string& out, std::string_view name, std::string_view label, const HistogramSnapshot& histogram) {
  const std::string_view comma = label.empty() ? "" : ",";
  const std::string labels = label.empty() ? "" : std::format("{{{}}}", label);
  for (std::size_t i = 0; i < histogram.at_most.size(); ++i) {
    out +=
        std::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", name, label, comma, HistogramSnapshot::bound_s(i), histogram.at_most[i]);
  }
  out += std::format("{}_bucket{{{}{}le=\"+Inf\"}} {}\n", name, label, comma, histogram.count);
  out += std::format("{}_sum{} {}\n", name, labels, histogram.sum_s);
  out += std::format("{}_count{} {}\n", name, labels, histogram.count);
}

void append_family(std::string& out, const HistogramFamily& family, const MetricsSnapshot& metrics) {
  const std::string name = std::format("uma_{}_seconds", family.name);
  append_head(out, name, "histogram", family.help);
  for (const HistogramSeries& series : family.series()) {
    const std::string label = family.label.empty() ? "" : std::format("{}=\"{}\"", family.label, series.label_value);
    append_histogram(out, name, label, metrics.*series.member);
  }
}

void append_worker_metric(std::string& out, const WorkerMetric& metric, std::span<const WorkerMetrics> workers) {
  const std::string name = std::format("uma_worker_{}", metric.name);
  append_head(out, name, type_name(metric.kind), metric.help);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    append_sample(out, name, std::format("{{worker=\"{}\",model=\"{}\"}}", i, escaped_label(workers[i].model)),
                  metric.read(workers[i]));
  }
}

void append_device_metric(std::string& out, const DeviceMetric& metric, std::span<const DeviceMetrics> devices) {
  const std::string name = std::format("uma_device_{}", metric.name);
  append_head(out, name, type_name(metric.kind), metric.help);
  for (const DeviceMetrics& device : devices) {
    append_sample(out, name, std::format("{{device=\"{}\"}}", escaped_label(device.name)), metric.read(device));
  }
}

}  // namespace

void append_metrics_object(std::string& out, const MetricsSnapshot& metrics) {
  json::ObjectWriter object(out);
  for (const Metric& metric : kMetrics) metric_field(object, metric, metrics);
  json::append_array(object.begin("workers"), metrics.workers,
                     [&](const WorkerMetrics& worker) { append_owner<WorkerMetrics>(out, kWorkerMetrics, worker); });
  json::append_array(object.begin("devices"), metrics.devices,
                     [&](const DeviceMetrics& device) { append_owner<DeviceMetrics>(out, kDeviceMetrics, device); });
  object.close();
}

std::string metrics_json(const MetricsSnapshot& metrics) {
  std::string json;
  append_metrics_object(json, metrics);
  return json;
}

void metric_field(json::ObjectWriter& object, const Metric& metric, const MetricsSnapshot& metrics) {
  append_value(object.begin(metric.name), metric.read(metrics));
}

std::string metrics_text(const MetricsSnapshot& metrics) {
  std::string out;
  for (const Metric& metric : kMetrics) append_metric(out, metric, metrics);
  for (const HistogramFamily& family : kHistograms) append_family(out, family, metrics);
  if (!metrics.workers.empty()) {
    for (const WorkerMetric& metric : kWorkerMetrics) append_worker_metric(out, metric, metrics.workers);
  }
  if (!metrics.devices.empty()) {
    for (const DeviceMetric& metric : kDeviceMetrics) append_device_metric(out, metric, metrics.devices);
  }
  return out;
}

std::string escaped_label(std::string_view text) {
  if (!is_utf8(text)) return escaped_label(replace_invalid_utf8(text));
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace uma::wire
