#include "base/trace.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "base/system/thread_name.h"

namespace uma {
namespace {

constexpr std::size_t kPieceSpans = 512;  // Copied while a thread's ring is locked.

std::string& own_trace_owner() {
  thread_local std::string owner;
  return owner;
}

// The latest spans of one thread.
class SpanRing {
 public:
  explicit SpanRing(std::uint32_t number) : number_(number), name_(thread_name()), owner_(own_trace_owner()) {}

  void add(const TraceSpan& span) {
    const MutexLock lock(mutex_);
    ++recorded_;
    if (spans_.size() < kTraceSpansPerThread) {
      spans_.push_back(span);
    } else {
      spans_[oldest_] = span;
      oldest_ = (oldest_ + 1) % kTraceSpansPerThread;
    }
  }
  void end() {
    const MutexLock lock(mutex_);
    has_ended_ = true;
  }
  [[nodiscard]] bool has_ended() {
    const MutexLock lock(mutex_);
    return has_ended_;
  }
  [[nodiscard]] ThreadTrace read(TimePoint since) {
    ThreadTrace trace{.name = name_, .owner = owner_, .number = number_, .spans = {}};
    trace.spans.reserve(kTraceSpansPerThread);  // The thread waits while its ring is locked, so that only copies there.
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      const TraceSpan& span = spans_[(oldest_ + i) % spans_.size()];
      if (span.ended >= since) trace.spans.push_back(span);
    }
    return trace;
  }
  // The number of spans that were recorded so far.
  [[nodiscard]] std::uint64_t recorded() {
    const MutexLock lock(mutex_);
    return recorded_;
  }
  // Fills `piece`, as far as its capacity goes, with the spans behind the first `read` that are still kept. Returns the new
  // value of `read`.
  [[nodiscard]] std::uint64_t read_on(std::uint64_t read, std::vector<TraceSpan>& piece) {
    piece.clear();
    const MutexLock lock(mutex_);
    read = std::max(read, recorded_ - spans_.size());
    const std::size_t count = std::min<std::size_t>(recorded_ - read, piece.capacity());
    const std::size_t first = oldest_ + spans_.size() - static_cast<std::size_t>(recorded_ - read);
    for (std::size_t i = 0; i < count; ++i) piece.push_back(spans_[(first + i) % spans_.size()]);
    return read + count;
  }
  [[nodiscard]] std::uint32_t number() const { return number_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::string& owner() const { return owner_; }

 private:
  // Constant after construction.
  const std::uint32_t number_;
  const std::string name_;
  const std::string owner_;

  Mutex mutex_;
  std::vector<TraceSpan> spans_ GUARDED_BY(mutex_);
  std::size_t oldest_ GUARDED_BY(mutex_) = 0;  // Once the ring is full.
  std::uint64_t recorded_ GUARDED_BY(mutex_) = 0;
  bool has_ended_ GUARDED_BY(mutex_) = false;
};

// Shared by the thread and the list of all rings, which keeps it for a while after the thread has ended.
using SpanRingPtr = std::shared_ptr<SpanRing>;

class SpanRings {
 public:
  [[nodiscard]] SpanRingPtr add() {
    const MutexLock lock(mutex_);
    if (rings_.size() >= kTraceThreadsMax) {
      const auto ended = std::ranges::find_if(rings_, [](const SpanRingPtr& ring) { return ring->has_ended(); });
      if (ended != rings_.end()) rings_.erase(ended);
    }
    rings_.push_back(std::make_shared<SpanRing>(++last_number_));
    return rings_.back();
  }
  [[nodiscard]] std::vector<SpanRingPtr> all() {
    const MutexLock lock(mutex_);
    return rings_;
  }

 private:
  Mutex mutex_;
  std::vector<SpanRingPtr> rings_ GUARDED_BY(mutex_);
  std::uint32_t last_number_ GUARDED_BY(mutex_) = 0;
};

// It is never destroyed, because threads may end after the static objects.
SpanRings& span_rings() {
  static auto& rings = *new SpanRings;
  return rings;
}

// The calling thread's ring.
class OwnSpanRing {
 public:
  OwnSpanRing() : ring_(span_rings().add()) {}
  ~OwnSpanRing() { ring_->end(); }
  OwnSpanRing(const OwnSpanRing&) = delete;
  OwnSpanRing& operator=(const OwnSpanRing&) = delete;
  void add(const TraceSpan& span) { ring_->add(span); }

 private:
  const SpanRingPtr ring_;
};

}  // namespace

void record_span(const TraceKind& kind, TimePoint began, TimePoint ended,
                 std::array<std::int64_t, TraceKind::kNumbers> numbers) noexcept {
  try {
    thread_local OwnSpanRing ring;
    ring.add({.kind = &kind, .began = began, .ended = ended, .numbers = numbers});
  } catch (const std::exception&) {
    // There is no memory for the span.
  }
}

void set_trace_owner(std::string owner) {
  own_trace_owner() = std::move(owner);
}

std::vector<ThreadTrace> read_trace(TimePoint since, std::size_t spans_max) {
  std::vector<ThreadTrace> threads;
  std::vector<TimePoint> ends;
  for (const SpanRingPtr& ring : span_rings().all()) {
    threads.push_back(ring->read(since));
    for (const TraceSpan& span : threads.back().spans) ends.push_back(span.ended);
  }
  if (ends.size() > spans_max) {
    const auto first_kept = ends.end() - static_cast<std::ptrdiff_t>(spans_max);
    std::ranges::nth_element(ends, first_kept);
    const TimePoint kept_since = spans_max == 0 ? kNever : *first_kept;
    // The number of spans that ended at this very moment for which there is room.
    auto room =
        static_cast<std::ptrdiff_t>(spans_max) - std::ranges::count_if(ends, [&](TimePoint end) { return end > kept_since; });
    for (ThreadTrace& thread : threads) {
      std::erase_if(thread.spans, [&](const TraceSpan& span) {
        return span.ended < kept_since || (span.ended == kept_since && room-- <= 0);
      });
    }
  }
  std::erase_if(threads, [](const ThreadTrace& thread) { return thread.spans.empty(); });
  return threads;
}

TraceTail::TraceTail() {
  piece_.reserve(kPieceSpans);
  for (const SpanRingPtr& ring : span_rings().all()) read_[ring->number()] = ring->recorded();
}

void TraceTail::read(const Visit& visit) {
  std::unordered_map<std::uint32_t, std::uint64_t> before = std::exchange(read_, {});  // Threads that are forgotten leave it.
  for (const SpanRingPtr& ring : span_rings().all()) {
    std::uint64_t& read = read_[ring->number()] = before[ring->number()];
    // Spans that are recorded meanwhile are for the next call, so that this one ends.
    for (const std::uint64_t end = ring->recorded(); read < end;) {
      read = ring->read_on(read, piece_);
      for (const TraceSpan& span : piece_) visit(ring->name(), ring->owner(), span);
    }
  }
}

}  // namespace uma
