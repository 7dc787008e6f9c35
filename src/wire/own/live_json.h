// The live view of the daemon as JSON: the same for GET /v1/events and for the socket's `watch` (docs/protocol/live.md).
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/trace.h"
#include "core/activity.h"
#include "core/metrics_snapshot.h"
#include "core/session_info.h"

namespace uma::wire {

// The interval and the history that a client asks for.
struct LiveRequest {
  static constexpr std::chrono::milliseconds kIntervalMin{100};
  static constexpr std::chrono::milliseconds kIntervalMax{10'000};
  static constexpr std::chrono::seconds kHistoryMax{3600};

  std::chrono::milliseconds interval{250};
  std::chrono::seconds history = kHistoryMax;
};

// The rights of a person who looks. Whatever names the requests of other tenants is for the administrator.
struct LiveAudience {
  bool is_administrator = false;
  std::string tenant;
  auto operator<=>(const LiveAudience&) const = default;
};

// A call of the library, or a move of KV between tiers.
struct LiveCall {
  std::string lane;   // The thread without "uma-".
  std::string model;  // The lane's model; empty: it has none.
  TraceSpan span;
};

// Whether people who watch are shown spans of this kind.
[[nodiscard]] bool is_live_call(const TraceKind& kind);
// The longest time, until a decode call ended, since the last token of one of its streams; nullopt: none of them has one, or it
// is another call.
[[nodiscard]] std::optional<double> pause_ms_of(const TraceSpan& span);

// A moment on both clocks.
struct LiveMoment {
  TimePoint at{};
  double unix_ms = 0;

  [[nodiscard]] double unix_ms_of(TimePoint other) const { return unix_ms - to_ms(at - other); }
};

// The daemon at one moment.
struct LiveState {
  LiveMoment moment;
  MetricsSnapshot metrics;
  ActivitySnapshot activity;
  std::vector<ModelInfo> models;
};

// The parts of a snapshot's object, of which append_snapshot() makes the whole. `head` changes all the time, so that only
// `body` tells whether something has happened.
struct LiveText {
  std::string head;
  std::string body;
};
[[nodiscard]] LiveText live_text(const LiveState& state, const LiveAudience& audience);

inline constexpr std::size_t kLiveCallsMax = 256;
// Removes all but the longest calls; returns the number of those removed.
[[nodiscard]] std::size_t keep_longest_calls(std::vector<LiveCall>& calls);
// The calls of a snapshot, as the fields `calls` and `calls_left_out`. Only the longest ones stay in `calls`; those that leave
// are added to `left_out`.
[[nodiscard]] std::string live_calls_text(std::vector<LiveCall>& calls, std::size_t& left_out, const LiveMoment& now);

void append_snapshot(std::string& out, const LiveText& text, std::string_view calls);

// The past at one moment. Unknown numbers are nullopt.
struct LivePoint {
  double unix_ms = 0;
  std::optional<double> tokens_per_s{};
  std::optional<double> prompt_per_s{};
  std::optional<double> reused_per_s{};
  std::int64_t streams = 0;
  std::int64_t queue = 0;
  std::optional<double> pause_ms{};
  std::int64_t reserved_bytes = 0;
  std::int64_t hot_bytes = 0;
  std::int64_t warm_bytes = 0;
  std::int64_t cold_bytes = 0;
};
[[nodiscard]] std::string history_json(std::span<const LivePoint> points);

}  // namespace uma::wire
