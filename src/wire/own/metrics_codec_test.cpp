// The metrics object and Prometheus' text. The text is read back here by the rules of its format (exposition format 0.0.4).
#include "wire/own/metrics_codec.h"

#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <boost/json/value_to.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Labels = std::map<std::string, std::string>;

struct PromSample {
  std::string name;
  Labels labels;
  double value = 0;
};
struct PromFamily {
  std::string type;
  std::string help;
  std::vector<PromSample> samples;
};

// Reads a text. What breaks a rule is a failure of the test.
class PromReader {
 public:
  explicit PromReader(std::string_view text) {
    EXPECT_TRUE(text.ends_with('\n'));
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(line.size() + 1);
      read_line(line);
    }
    for (const auto& [name, family] : families_) EXPECT_FALSE(family.samples.empty()) << name << " has no sample";
  }
  [[nodiscard]] const std::map<std::string, PromFamily>& families() const { return families_; }
  [[nodiscard]] const PromFamily& family(const std::string& name) const { return families_.at(name); }

 private:
  void read_line(std::string_view line) {
    constexpr std::string_view kHelp = "# HELP ";
    constexpr std::string_view kType = "# TYPE ";
    if (line.starts_with(kHelp)) return read_help(line.substr(kHelp.size()));
    if (line.starts_with(kType)) return read_type(line.substr(kType.size()));
    ASSERT_FALSE(line.starts_with('#')) << line;
    read_sample(line);
  }
  void read_help(std::string_view rest) {
    current_ = rest.substr(0, rest.find(' '));
    ASSERT_LT(current_.size() + 1, rest.size()) << rest;
    ASSERT_TRUE(families_.try_emplace(current_).second) << current_ << " begins twice";
    families_[current_].help = rest.substr(current_.size() + 1);
  }
  void read_type(std::string_view rest) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    ASSERT_EQ(name, current_) << "the type follows its help";
    PromFamily& family = families_[current_];
    ASSERT_TRUE(family.type.empty() && family.samples.empty()) << rest;
    family.type = rest.substr(name.size() + 1);
    ASSERT_TRUE(family.type == "counter" || family.type == "gauge" || family.type == "histogram") << rest;
  }
  void read_sample(std::string_view line) {
    PromSample sample;
    const std::size_t name_end = line.find_first_of("{ ");
    ASSERT_NE(name_end, std::string_view::npos) << line;
    sample.name = line.substr(0, name_end);
    line.remove_prefix(name_end);
    if (line.starts_with('{')) read_labels(line, sample.labels);
    ASSERT_TRUE(line.starts_with(' ')) << sample.name << ": " << line;
    line.remove_prefix(1);
    const auto number = std::from_chars(line.data(), line.data() + line.size(), sample.value);
    ASSERT_EQ(number.ptr, line.data() + line.size()) << sample.name << ": " << line;

    PromFamily& family = families_[current_];
    ASSERT_FALSE(family.type.empty()) << sample.name << " comes before its type";
    if (family.type == "histogram") {
      ASSERT_TRUE(sample.name == current_ + "_bucket" || sample.name == current_ + "_sum" ||
                  sample.name == current_ + "_count");
    } else {
      ASSERT_EQ(sample.name, current_);
    }
    ASSERT_TRUE(seen_.emplace(sample.name, sample.labels).second) << sample.name << " is there twice with the same labels";
    family.samples.push_back(std::move(sample));
  }
  static void read_labels(std::string_view& line, Labels& labels) {
    line.remove_prefix(1);
    while (!line.starts_with('}')) {
      const std::string name(line.substr(0, line.find('=')));
      ASSERT_TRUE(line.substr(name.size()).starts_with("=\"")) << line;
      line.remove_prefix(name.size() + 2);
      std::string value;
      while (!line.starts_with('"')) {
        ASSERT_FALSE(line.empty());
        if (line.front() == '\\') {
          line.remove_prefix(1);
          ASSERT_THAT(line.substr(0, 1), ::testing::AnyOf("\\", "\"", "n"));
          value += line.front() == 'n' ? '\n' : line.front();
        } else {
          value += line.front();
        }
        line.remove_prefix(1);
      }
      line.remove_prefix(1);
      ASSERT_TRUE(labels.emplace(name, value).second) << name;
      if (line.starts_with(',')) line.remove_prefix(1);
    }
    line.remove_prefix(1);
  }

  std::map<std::string, PromFamily> families_;
  std::set<std::pair<std::string, Labels>> seen_;
  std::string current_;
};

// A snapshot with a number of its own in as many places as a test tells apart.
MetricsSnapshot busy_snapshot() {
  MetricsSnapshot metrics;
  metrics.model = "tiny";
  metrics.uptime_s = 12.5;
  metrics.sessions = 3;
  metrics.tokens_total = 18446744073709551615u;
  metrics.avg_batch = 1.75;
  metrics.p50_ms = 2.03125;
  metrics.memory_decisions = {"memory: unload a"};
  metrics.progress = {.last_tick_s = 0.25, .last_decode_s = {}, .oldest_waiting_s = 1};
  metrics.workers = {{.model = "tiny", .queue_depth = 4, .cells_used = 5, .cells_total = 4096, .tokens_total = 6},
                     {.model = "other", .sequences_active = 1, .cells_used = 9, .batch_calls_total = 7}};
  metrics.decode_call.at_most.fill(2);
  metrics.decode_call.count = 3;
  metrics.decode_call.sum_s = 200.5;
  return metrics;
}

TEST(MetricsJson, HasTheTableInItsOrderAndTheWorkers) {
  const boost::json::value shown = boost::json::parse(metrics_json(busy_snapshot()));
  std::vector<std::string> names;
  for (const auto& field : shown.as_object()) names.emplace_back(field.key());
  std::vector<std::string> wanted;
  for (const Metric& metric : kMetrics) wanted.emplace_back(metric.name);
  wanted.insert(wanted.end(), {"workers", "devices"});
  EXPECT_EQ(names, wanted);

  EXPECT_EQ(shown.at("model"), "tiny");
  EXPECT_EQ(shown.at("tokens_total").as_uint64(), 18446744073709551615u);
  EXPECT_EQ(shown.at("avg_batch"), 1.75);
  EXPECT_EQ(shown.at("p50_ms"), 2.0312) << "at most four digits after the point";
  EXPECT_EQ(shown.at("memory_decisions"), boost::json::parse(R"(["memory: unload a"])"));
  EXPECT_EQ(shown.at("last_tick_s"), 0.25);
  EXPECT_TRUE(shown.at("last_decode_s").is_null());
  EXPECT_TRUE(shown.at("device_busy_ratio").is_null());
  EXPECT_EQ(
      shown.at("workers").at(0),
      boost::json::parse(
          R"({"sequences_active":0,"queue_depth":4,"cells_used":5,"cells_total":4096,"tokens_total":6,"batch_calls_total":0})"));
}

TEST(MetricsText, KeepsTheRulesOfItsFormat) {
  const PromReader reader(metrics_text(busy_snapshot()));
  EXPECT_GT(reader.families().size(), 90u);
  for (const auto& [name, family] : reader.families()) {
    EXPECT_TRUE(name.starts_with("uma_")) << name;
    EXPECT_FALSE(family.help.contains('`')) << name;
    EXPECT_TRUE(family.type != "counter" || name.ends_with("_total")) << name;
  }
  EXPECT_EQ(reader.family("uma_tokens_total").type, "counter");
  EXPECT_EQ(reader.family("uma_worker_cells_total").type, "gauge") << "a size, whatever its name";
  EXPECT_EQ(reader.family("uma_step_seconds").type, "histogram");
}

TEST(MetricsText, SaysTheNumbersOfTheJson) {
  const MetricsSnapshot metrics = busy_snapshot();
  const boost::json::value shown = boost::json::parse(metrics_json(metrics));
  const PromReader reader(metrics_text(metrics));
  for (const Metric& metric : kMetrics) {
    const boost::json::value& value = shown.at(metric.name);
    const std::string name = "uma_" + std::string(metric.name);
    ASSERT_EQ(reader.families().contains(name), !value.is_null() && !value.is_array()) << name;
    if (!reader.families().contains(name)) continue;
    const PromFamily& family = reader.family(name);
    ASSERT_EQ(family.samples.size(), 1u) << name;
    if (value.is_string()) {
      EXPECT_EQ(family.samples[0].labels, (Labels{{"name", std::string(value.as_string())}}));
      EXPECT_EQ(family.samples[0].value, 1);
    } else {
      EXPECT_TRUE(family.samples[0].labels.empty()) << name;
      EXPECT_EQ(family.samples[0].value, value.to_number<double>()) << name;
    }
  }
}

TEST(MetricsText, SaysWhichModelAWorkerIsOf) {
  const MetricsSnapshot metrics = busy_snapshot();
  const boost::json::value shown = boost::json::parse(metrics_json(metrics));
  const boost::json::array& workers = shown.at("workers").as_array();
  const PromReader reader(metrics_text(metrics));
  for (const WorkerMetric& metric : kWorkerMetrics) {
    const PromFamily& family = reader.family("uma_worker_" + std::string(metric.name));
    ASSERT_EQ(family.samples.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(family.samples[i].labels, (Labels{{"worker", std::to_string(i)}, {"model", metrics.workers[i].model}}));
      EXPECT_EQ(family.samples[i].value, workers[i].at(metric.name).to_number<double>()) << metric.name;
    }
  }
}

TEST(MetricsText, NamesTheDevices) {
  MetricsSnapshot metrics;
  metrics.devices = {{.name = "Vulkan0", .memory_usable_bytes = 7, .weights_bytes = 3}, {.name = "RPC \"1\""}};
  const boost::json::value shown = boost::json::parse(metrics_json(metrics));
  const boost::json::array& devices = shown.at("devices").as_array();
  const PromReader reader(metrics_text(metrics));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(devices[i].at("name").as_string(), metrics.devices[i].name);
    for (const DeviceMetric& metric : kDeviceMetrics) {
      const PromSample& sample = reader.family("uma_device_" + std::string(metric.name)).samples.at(i);
      EXPECT_EQ(sample.labels, (Labels{{"device", metrics.devices[i].name}}));
      EXPECT_EQ(sample.value, devices[i].at(metric.name).to_number<double>()) << metric.name;
    }
  }
}

TEST(MetricsText, HasHistogramsWhoseBucketsAddUp) {
  MetricsSnapshot metrics;
  metrics.ttft.at_most.fill(3);
  metrics.ttft.at_most[0] = 1;
  metrics.ttft.count = 4;
  metrics.ttft.sum_s = 200.5;
  metrics.prefill_call.count = 2;
  const std::string text = metrics_text(metrics);
  EXPECT_THAT(text, HasSubstr("# TYPE uma_ttft_seconds histogram\n"
                              "uma_ttft_seconds_bucket{le=\"0.000128\"} 1\n"
                              "uma_ttft_seconds_bucket{le=\"0.000256\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("uma_ttft_seconds_bucket{le=\"134.217728\"} 3\n"
                              "uma_ttft_seconds_bucket{le=\"+Inf\"} 4\n"
                              "uma_ttft_seconds_sum 200.5\n"
                              "uma_ttft_seconds_count 4\n"));
  EXPECT_THAT(text, HasSubstr("uma_step_seconds_bucket{kind=\"prefill\",le=\"+Inf\"} 2\n"
                              "uma_step_seconds_sum{kind=\"prefill\"} 0\n"
                              "uma_step_seconds_count{kind=\"prefill\"} 2\n"));
  const PromReader reader(text);
  for (const HistogramFamily& family : kHistograms) {
    const PromFamily& read = reader.family("uma_" + std::string(family.name) + "_seconds");
    EXPECT_EQ(read.type, "histogram");
    EXPECT_EQ(read.samples.size(), family.series().size() * (HistogramSnapshot::kBounds + 3)) << family.name;
  }
}

TEST(MetricsText, LeavesOutWhatIsUnknown) {
  EXPECT_THAT(metrics_text(MetricsSnapshot{}), Not(HasSubstr("uma_oldest_waiting_s")));
  EXPECT_THAT(metrics_text(MetricsSnapshot{}), Not(HasSubstr("uma_worker_"))) << "no worker, no families of theirs";
  MetricsSnapshot metrics;
  metrics.bmt_gbps = std::numeric_limits<double>::infinity();
  EXPECT_THAT(metrics_text(metrics), Not(HasSubstr("uma_bmt_gbps"))) << "JSON has null there";
}

TEST(MetricsText, TellsOfTheLastCrash) {
  MetricsSnapshot metrics;
  metrics.crashes = {.count = 2, .last_cause = "signal 11", .last_unix_s = 1'700'000'000};
  const PromReader reader(metrics_text(metrics));
  EXPECT_EQ(reader.family("uma_crashes_total").samples.at(0).value, 2);
  EXPECT_EQ(reader.family("uma_last_crash").samples.at(0).labels, (Labels{{"name", "signal 11"}}));
  EXPECT_EQ(reader.family("uma_last_crash_unix_s").samples.at(0).value, 1'700'000'000);
}

TEST(MetricsText, EscapesLabels) {
  EXPECT_EQ(escaped_label("a\\b\"c\nd\té"), "a\\\\b\\\"c\\nd\té");
  EXPECT_EQ(escaped_label("\xff"), "\ufffd") << "the text is UTF-8, whatever a model is called";
  const std::string name = "one\"}\ntwo\\n 3";
  MetricsSnapshot metrics;
  metrics.model = name;
  metrics.workers = {{.model = name}};
  const PromReader reader(metrics_text(metrics));
  EXPECT_EQ(reader.family("uma_model").samples.at(0).labels, (Labels{{"name", name}}));
  EXPECT_EQ(reader.family("uma_worker_queue_depth").samples.at(0).labels, (Labels{{"worker", "0"}, {"model", name}}));
}

}  // namespace
}  // namespace uma::wire
