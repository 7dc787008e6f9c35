// The records of a run's requests, and the figures computed from them, whose names bench/*.py and bench/README.md use. Pure: no
// clock, no server.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace uma::bench {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

struct Failure {
  enum class Kind : std::uint8_t {
    server,    // Refused, disconnected, or returned fewer tokens than requested.
    protocol,  // Broke the protocol.
  };
  Kind kind;
  std::string message;
};

// One request as its client saw it. Times are milliseconds since the run began.
struct StreamRecord {
  int session_id = 0;
  bool interactive = true;
  double start_ms = 0;             // When the request was sent.
  double end_ms = 0;               // When its last event arrived.
  std::vector<double> token_ms{};  // One per token event.
  int prompt_tokens = 0;           // Counted by the server.
  int reused_tokens = 0;           // Part of prompt_tokens.
  int completion_tokens = 0;
  std::string reply{};  // Empty unless requested.
  std::optional<Failure> failure{};

  [[nodiscard]] double ttft_ms() const { return token_ms.empty() ? kNotMeasured : token_ms.front() - start_ms; }
};

// A named number. The name ends with the unit. NaN means that nothing was measured.
struct Figure {
  std::string name;
  double value;
};
using Figures = std::vector<Figure>;

// Totals of the whole run. cpu_s is NaN if the server's pid is unknown.
struct Totals {
  double wall_ms = 0;
  double cpu_s = 0;
};

// The smallest value that is at least as large as `fraction` of all (nearest rank); NaN for an empty list.
[[nodiscard]] double percentile(std::vector<double> values, double fraction);

// Times between neighbouring tokens, if the later token arrived in (from_ms, to_ms].
[[nodiscard]] std::vector<double> token_gaps(const StreamRecord& record, double from_ms = -1,
                                             double to_ms = std::numeric_limits<double>::infinity());

// p50, p95, p99 and max as <prefix>_p50_ms and so on.
void add_distribution(Figures& figures, const std::string& prefix, const std::vector<double>& values);

// The figures that every scenario reports: requests, failures, tokens, throughput, TTFT, inter-token times, server CPU. Tokens
// of failed requests count.
[[nodiscard]] Figures summarize(std::span<const StreamRecord> records, const Totals& totals);

}  // namespace uma::bench
