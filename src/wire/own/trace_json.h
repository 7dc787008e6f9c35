// A trace of the daemon's threads in the Trace Event Format, which Perfetto and chrome://tracing show
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "base/trace.h"

namespace uma::wire {

inline constexpr std::chrono::seconds kTraceDefault{10};
inline constexpr std::chrono::seconds kTraceMax{3600};
// The spans of an answer: about 2.5 MB, which are written within 20 ms.
inline constexpr std::size_t kTraceSpansMax = 20'000;

// Appends an object with `traceEvents`. Times are in microseconds since the first span began. Spans of a thread are complete
// events; stages of a request are asynchronous events with the request's id.
void append_trace(std::string& out, std::span<const ThreadTrace> threads);

}  // namespace uma::wire
