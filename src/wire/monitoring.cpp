#include "wire/monitoring.h"

#include <format>
#include <limits>
#include <string_view>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "wire/event_codec.h"
#include "wire/json_writer.h"

namespace uma::wire {
namespace {

namespace json = boost::json;

void append_sample(std::string& out, std::string_view name, std::string_view labels, const json::value& value) {
  out += std::format("{}{} {}\n", name, labels, json::serialize(value));
}

std::string_view metric_type(std::string_view name) {
  return name.ends_with("_total") && name != "uma_worker_cells_total" ? "counter" : "gauge";
}

// `label` tells the histogram from others of its family (`kind="decode"`); empty: it is alone.
void append_histogram(std::string& out, std::string_view family, std::string_view label, const HistogramSnapshot& histogram) {
  const std::string_view comma = label.empty() ? "" : ",";
  const std::string labels = label.empty() ? "" : std::format("{{{}}}", label);
  for (std::size_t i = 0; i < histogram.at_most.size(); ++i) {
    out += std::format("uma_{}_seconds_bucket{{{}{}le=\"{}\"}} {}\n", family, label, comma, HistogramSnapshot::bound_s(i),
                       histogram.at_most[i]);
  }
  out += std::format("uma_{}_seconds_bucket{{{}{}le=\"+Inf\"}} {}\n", family, label, comma, histogram.count);
  out += std::format("uma_{}_seconds_sum{} {}\n", family, labels, histogram.sum_s);
  out += std::format("uma_{}_seconds_count{} {}\n", family, labels, histogram.count);
}

void append_histogram_type(std::string& out, std::string_view family) {
  out += std::format("# TYPE uma_{}_seconds histogram\n", family);
}

void append_histograms(std::string& out, const MetricsSnapshot& metrics) {
  append_histogram_type(out, "ttft");
  append_histogram(out, "ttft", "", metrics.ttft);
  append_histogram_type(out, "inter_token");
  append_histogram(out, "inter_token", "", metrics.inter_token);
  append_histogram_type(out, "queue_wait");
  append_histogram(out, "queue_wait", "", metrics.queue_wait);
  append_histogram_type(out, "step");
  append_histogram(out, "step", R"(kind="decode")", metrics.decode_call);
  append_histogram(out, "step", R"(kind="prefill")", metrics.prefill_call);
  append_histogram(out, "step", R"(kind="embed")", metrics.embed_call);
  append_histogram_type(out, "embed_request");
  append_histogram(out, "embed_request", "", metrics.embed_request);
  append_histogram_type(out, "restore");
  append_histogram(out, "restore", R"(tier="warm")", metrics.warm_restore);
  append_histogram(out, "restore", R"(tier="cold")", metrics.cold_restore);
}

}  // namespace

std::string metrics_text(const MetricsSnapshot& metrics) {
  const json::value snapshot = json::parse(metrics_json(metrics));
  std::string out;
  for (const auto& [key, value] : snapshot.get_object()) {
    const std::string name = std::format("uma_{}", std::string_view(key));
    if (value.is_string()) {
      out += std::format("# TYPE {} gauge\n", name);
      append_sample(out, name, std::format("{{name={}}}", json::serialize(value)), 1);
    } else if (value.is_number()) {
      out += std::format("# TYPE {} {}\n", name, metric_type(name));
      append_sample(out, name, "", value);
    }
  }
  append_histograms(out, metrics);
  const json::array& workers = snapshot.at("workers").get_array();
  if (workers.empty()) return out;
  for (const auto& field : workers.front().get_object()) {
    const std::string name = std::format("uma_worker_{}", std::string_view(field.key()));
    out += std::format("# TYPE {} {}\n", name, metric_type(name));
    for (std::size_t i = 0; i < workers.size(); ++i) {
      append_sample(out, name, std::format("{{worker=\"{}\"}}", i), workers[i].at(field.key()));
    }
  }
  return out;
}

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
  ObjectWriter object(out);
  object.field("status", is_healthy(metrics, model) ? "ok" : "degraded");
  object.field("model", model_state_name(model));
  object.field("requests_open", metrics.requests_open);
  append_progress_fields(object, metrics.progress);
  append_crash_fields(object, metrics.crashes);
  object.close();
  return out;
}

}  // namespace uma::wire
