// The trace of this process's threads: what they did lately, as spans of time with a few numbers, for a person who looks for
// the cause of a delay. Each thread keeps its latest spans, so a trace can be read after something was slow. Thread-safe.
// Recording a span takes well under a microsecond; a thread's memory grows to 0.9 MB.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"

namespace uma {

inline constexpr std::size_t kTraceSpansPerThread = 16'384;
inline constexpr std::size_t kTraceThreadsMax = 64;  // Beyond them, the oldest thread that has ended is forgotten.

// A kind of spans. Objects live as long as the process.
struct TraceKind {
  static constexpr std::size_t kNumbers = 4;

  std::string_view name{};
  std::array<std::string_view, kNumbers> numbers{};  // Meanings of a span's numbers; empty: there are fewer.
  bool is_of_request = false;  // A stage of the request that the first number is the id of. Stages of several requests overlap.
};

struct TraceSpan {
  const TraceKind* kind = nullptr;
  TimePoint began{};
  TimePoint ended{};
  std::array<std::int64_t, TraceKind::kNumbers> numbers{};
};

// The owner of the calling thread is what it works for, such as the model of a lane: threads with equal names are told apart by
// it. Counts from the thread's first span on, so it is set before.
void set_trace_owner(std::string owner);

// The spans of a thread in the order in which they were recorded.
struct ThreadTrace {
  std::string name;
  std::string owner{};       // See set_trace_owner(); empty: none.
  std::uint32_t number = 0;  // Tells apart threads of one name.
  std::vector<TraceSpan> spans;
};

// Records a span of the calling thread; drops it where there is no memory.
void record_span(const TraceKind& kind, TimePoint began, TimePoint ended,
                 std::array<std::int64_t, TraceKind::kNumbers> numbers = {}) noexcept;

// The spans that ended at `since` or later, at most `spans_max`, of which the oldest are left out first.
[[nodiscard]] std::vector<ThreadTrace> read_trace(TimePoint since, std::size_t spans_max);

// Follows the spans of all threads: each read sees those that were recorded since the one before. Used by one thread; the
// threads that record wait for a copy of some kilobytes at most.
class TraceTail {
 public:
  // Begins with what is recorded from now on.
  TraceTail();
  // Calls visit(name, owner, span), with those of ThreadTrace, for each new span that is still kept, thread by thread.
  using Visit = std::function<void(const std::string& name, const std::string& owner, const TraceSpan& span)>;
  void read(const Visit& visit);

 private:
  std::unordered_map<std::uint32_t, std::uint64_t> read_;  // By ThreadTrace::number: how many of its spans were read.
  std::vector<TraceSpan> piece_;
};

}  // namespace uma
