#include "core/metrics_table.h"

#include <array>
#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace uma {
namespace {

bool is_metric_name(std::string_view name) {
  return !name.empty() &&
         std::ranges::all_of(name, [](char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }) &&
         (name.front() < '0' || name.front() > '9');
}

bool is_sentence(std::string_view help) {
  return help.ends_with('.') && !help.contains('\n') && !help.contains('|') && std::ranges::count(help, '`') % 2 == 0;
}

template <class Rows>
void expect_complete(const Rows& rows) {
  std::set<std::string_view> names;
  for (const auto& row : rows) {
    EXPECT_TRUE(is_metric_name(row.name)) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " is there twice";
    EXPECT_FALSE(row.unit.empty()) << row.name;
    EXPECT_TRUE(is_sentence(row.help)) << row.name << ": " << row.help;
    EXPECT_NE(row.read, nullptr) << row.name;
  }
}

TEST(MetricsTable, HasANameUnitHelpAndValueForEveryMetric) {
  EXPECT_GT(kMetrics.size(), 80u);
  expect_complete(kMetrics);
  expect_complete(kWorkerMetrics);
  expect_complete(kDeviceMetrics);
}

TEST(MetricsTable, HasCountersThatEndInTotal) {
  for (const Metric& row : kMetrics) EXPECT_EQ(row.kind == MetricKind::counter, row.name.ends_with("_total")) << row.name;
  for (const WorkerMetric& row : kWorkerMetrics) {
    EXPECT_TRUE(row.kind != MetricKind::counter || row.name.ends_with("_total")) << row.name;
  }
}

TEST(MetricsTable, HasTheUnitsThatNamesSay) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kUnits = {{{"_bytes", "bytes"},
                                                                                    {"_ms", "ms"},
                                                                                    {"_ms_avg", "ms"},
                                                                                    {"_unix_s", "Unix time in s"},
                                                                                    {"_s", "s"},
                                                                                    {"_ratio", "0 to 1"}}};
  for (const Metric& row : kMetrics) {
    const auto said = std::ranges::find_if(kUnits, [&](const auto& unit) { return row.name.ends_with(unit.first); });
    if (said == kUnits.end()) continue;
    EXPECT_EQ(row.unit, said->second) << row.name;
  }
}

// Numbers are numbers and texts are texts; a counter does not go down, so it is unsigned.
TEST(MetricsTable, ReadsValuesOfTheirKind) {
  MetricsSnapshot snapshot;
  snapshot.crashes = {.count = 1, .last_cause = "signal 11", .last_unix_s = 1};
  snapshot.progress = {.last_tick_s = 1, .last_decode_s = 1, .oldest_waiting_s = 1};
  snapshot.device_busy_ratio = 0.5;
  for (const Metric& row : kMetrics) {
    const MetricValue value = row.read(snapshot);
    const bool is_text = std::holds_alternative<std::string_view>(value);
    const bool is_list = std::holds_alternative<std::span<const std::string>>(value);
    EXPECT_EQ(row.kind == MetricKind::text, is_text) << row.name;
    EXPECT_EQ(row.kind == MetricKind::list, is_list) << row.name;
    EXPECT_EQ(row.kind == MetricKind::counter,
              std::holds_alternative<std::uint64_t>(value) && row.name != "request_bytes" && row.name != "kept_image_bytes")
        << row.name;
    EXPECT_FALSE(std::holds_alternative<std::monostate>(value)) << row.name;
  }
}

TEST(MetricsTable, DoesNotKnowACrashBeforeThereWasOne) {
  const MetricsSnapshot snapshot;
  EXPECT_EQ(std::get<std::uint64_t>(metric("crashes_total").read(snapshot)), 0u);
  for (const Metric* row : {&metric("last_crash"), &metric("last_crash_unix_s"), &metric("last_tick_s")}) {
    EXPECT_TRUE(std::holds_alternative<std::monostate>(row->read(snapshot))) << row->name;
  }
}

TEST(MetricsTable, HasHistogramsWithHelpAndALabelWhereTheyAreSeveral) {
  std::set<std::string_view> names;
  for (const HistogramFamily& family : kHistograms) {
    EXPECT_TRUE(is_metric_name(family.name)) << family.name;
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_TRUE(is_sentence(family.help)) << family.name;
    EXPECT_FALSE(family.series().empty()) << family.name;
    EXPECT_EQ(family.series().size() > 1, !family.label.empty()) << family.name;
    for (const HistogramSeries& series : family.series()) {
      EXPECT_EQ(series.label_value.empty(), family.label.empty()) << family.name;
    }
  }
}

}  // namespace
}  // namespace uma
