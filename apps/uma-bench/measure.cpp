#include "uma-bench/measure.h"

#include <algorithm>
#include <cmath>

namespace uma::bench {

namespace {

constexpr double kEarlyMs = 3000;  // After the first token.
constexpr std::size_t kFifthTokenIndex = 4;

double largest(const std::vector<double>& values) {
  return values.empty() ? kNotMeasured : *std::ranges::max_element(values);
}

void append(std::vector<double>& to, const std::vector<double>& values) {
  to.insert(to.end(), values.begin(), values.end());
}

}  // namespace

double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) {
    return kNotMeasured;
  }
  const auto count = static_cast<double>(values.size());
  const auto rank = static_cast<std::size_t>(std::clamp(std::ceil(fraction * count), 1.0, count));
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::ranges::nth_element(values, place);
  return *place;
}

std::vector<double> token_gaps(const StreamRecord& record, double from_ms, double to_ms) {
  std::vector<double> gaps;
  for (std::size_t i = 1; i < record.token_ms.size(); ++i) {
    if (record.token_ms[i] > from_ms && record.token_ms[i] <= to_ms) {
      gaps.push_back(record.token_ms[i] - record.token_ms[i - 1]);
    }
  }
  return gaps;
}

void add_distribution(Figures& figures, const std::string& prefix, const std::vector<double>& values) {
  figures.push_back({prefix + "_p50_ms", percentile(values, 0.50)});
  figures.push_back({prefix + "_p95_ms", percentile(values, 0.95)});
  figures.push_back({prefix + "_p99_ms", percentile(values, 0.99)});
  figures.push_back({prefix + "_max_ms", largest(values)});
}

Figures summarize(std::span<const StreamRecord> records, const Totals& totals) {
  std::vector<double> ttft, gaps, early_gaps, fifth;
  double failures = 0, prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  for (const StreamRecord& record : records) {
    failures += record.failure ? 1 : 0;
    prompt_tokens += record.prompt_tokens;
    reused_tokens += record.reused_tokens;
    generated_tokens += record.completion_tokens;
    if (record.token_ms.empty()) {
      continue;
    }
    ttft.push_back(record.ttft_ms());
    append(gaps, token_gaps(record));
    append(early_gaps, token_gaps(record, -1, record.token_ms.front() + kEarlyMs));
    if (record.token_ms.size() > kFifthTokenIndex) {
      fifth.push_back(record.token_ms[kFifthTokenIndex] - record.start_ms);
    }
  }
  const double wall_s = totals.wall_ms / 1000;
  Figures figures{{"requests", static_cast<double>(records.size())},
                  {"failures", failures},
                  {"wall_s", wall_s},
                  {"prompt_tokens", prompt_tokens},
                  {"reused_tokens", reused_tokens},
                  {"generated_tokens", generated_tokens},
                  {"tokens_per_s", wall_s > 0 ? generated_tokens / wall_s : kNotMeasured},
                  {"ttft_p50_ms", percentile(ttft, 0.50)},
                  {"ttft_p95_ms", percentile(ttft, 0.95)},
                  {"ttft_max_ms", largest(ttft)},
                  {"fifth_token_p50_ms", percentile(fifth, 0.50)}};
  add_distribution(figures, "inter_token", gaps);
  figures.push_back({"worst_pause_first_3s_ms", largest(early_gaps)});
  figures.push_back({"server_cpu_s", totals.cpu_s});
  figures.push_back({"server_cpu_ms_per_token", generated_tokens > 0 ? totals.cpu_s * 1000 / generated_tokens : kNotMeasured});
  return figures;
}

}  // namespace uma::bench
