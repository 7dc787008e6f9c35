#include "base/trace.h"

#include <algorithm>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/system/thread_name.h"

namespace uma {
namespace {

using ::testing::ElementsAre;

constexpr TraceKind kWork{.name = "work", .numbers = {"count"}};
constexpr TraceKind kRest{.name = "rest"};

TimePoint at_s(std::int64_t seconds) {
  return TimePoint(std::chrono::seconds(seconds));
}

// Times far in the future, so that no span of another test belongs to a test's trace.
TimePoint next_epoch() {
  static std::int64_t seconds = 1'000'000'000;
  seconds += 1'000'000;
  return at_s(seconds);
}

void record_in_thread(const char* name, std::vector<TraceSpan> spans) {
  std::thread([&] {
    set_thread_name(name);
    for (const TraceSpan& span : spans) record_span(*span.kind, span.began, span.ended, span.numbers);
  }).join();
}

std::vector<std::int64_t> counts_of(const ThreadTrace& trace) {
  std::vector<std::int64_t> counts;
  for (const TraceSpan& span : trace.spans) counts.push_back(span.numbers[0]);
  return counts;
}

std::vector<ThreadTrace> only(std::vector<ThreadTrace> traces, std::string_view name) {
  std::erase_if(traces, [&](const ThreadTrace& trace) { return trace.name != name; });
  return traces;
}

TEST(Trace, HasTheSpansOfEachThreadAlsoOfOneThatEnded) {
  const TimePoint begin = next_epoch();
  record_in_thread("first", {{&kWork, begin, begin + std::chrono::seconds(1), {7}}, {&kRest, begin, begin, {}}});
  record_in_thread("second", {{&kWork, begin, begin + std::chrono::seconds(2), {8}}});
  const auto first = only(read_trace(begin, 1000), "first");
  const auto second = only(read_trace(begin, 1000), "second");
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_NE(first[0].number, second[0].number);
  ASSERT_EQ(first[0].spans.size(), 2u);
  EXPECT_EQ(first[0].spans[0].kind, &kWork);
  EXPECT_EQ(first[0].spans[0].ended - first[0].spans[0].began, std::chrono::seconds(1));
  EXPECT_EQ(first[0].spans[1].kind, &kRest);
  EXPECT_THAT(counts_of(second[0]), ElementsAre(8));
}

TEST(Trace, LeavesOutWhatEndedBefore) {
  const TimePoint begin = next_epoch();
  record_in_thread(
      "since", {{&kWork, begin, begin + std::chrono::seconds(1), {1}}, {&kWork, begin, begin + std::chrono::seconds(2), {2}}});
  const auto trace = only(read_trace(begin + std::chrono::seconds(2), 1000), "since");
  ASSERT_EQ(trace.size(), 1u);
  EXPECT_THAT(counts_of(trace[0]), ElementsAre(2));
  EXPECT_TRUE(only(read_trace(begin + std::chrono::seconds(3), 1000), "since").empty());
}

TEST(Trace, OfTooManySpansTheOldestAreLeftOut) {
  const TimePoint begin = next_epoch();
  std::vector<TraceSpan> even;
  std::vector<TraceSpan> odd;
  for (std::int64_t i = 0; i < 10; ++i)
    (i % 2 == 0 ? even : odd).push_back({&kWork, begin, begin + std::chrono::seconds(i), {i}});
  record_in_thread("even", even);
  record_in_thread("odd", odd);
  const auto some = read_trace(begin, 5);
  EXPECT_THAT(counts_of(only(some, "even").at(0)), ElementsAre(6, 8));
  EXPECT_THAT(counts_of(only(some, "odd").at(0)), ElementsAre(5, 7, 9));
  EXPECT_TRUE(read_trace(begin, 0).empty());
}

TEST(Trace, SpansOfOneMomentAreLeftOutByNumberToo) {
  const TimePoint begin = next_epoch();
  record_in_thread("equal", std::vector<TraceSpan>(10, {&kRest, begin, begin, {}}));
  const auto some = only(read_trace(begin, 4), "equal");
  ASSERT_EQ(some.size(), 1u);
  EXPECT_EQ(some[0].spans.size(), 4u);
}

TEST(Trace, AThreadKeepsItsLatestSpans) {
  const TimePoint begin = next_epoch();
  std::vector<TraceSpan> spans;
  constexpr auto kCount = static_cast<std::int64_t>(kTraceSpansPerThread) + 100;
  for (std::int64_t i = 0; i < kCount; ++i) spans.push_back({&kWork, begin, begin, {i}});
  record_in_thread("busy", std::move(spans));
  const auto trace = only(read_trace(begin, 1'000'000), "busy");
  ASSERT_EQ(trace.size(), 1u);
  const std::vector<std::int64_t> counts = counts_of(trace[0]);
  ASSERT_EQ(counts.size(), kTraceSpansPerThread);
  EXPECT_EQ(counts.front(), 100);
  EXPECT_EQ(counts.back(), kCount - 1);
  EXPECT_TRUE(std::ranges::is_sorted(counts));
}

TEST(Trace, OfManyThreadsThoseThatEndedFirstAreForgotten) {
  const TimePoint begin = next_epoch();
  for (std::int64_t i = 0; i < 100; ++i) record_in_thread("many", {{&kWork, begin, begin, {i}}});
  const auto traces = only(read_trace(begin, 1'000'000), "many");
  EXPECT_LE(traces.size(), kTraceThreadsMax);
  EXPECT_GE(traces.size(), kTraceThreadsMax / 2);
  EXPECT_THAT(counts_of(traces.back()), ElementsAre(99));
}

TEST(Trace, ATailReadsEachSpanOnce) {
  const TimePoint begin = next_epoch();
  const auto counts = [](TraceTail& tail, const std::string& thread) {
    std::vector<std::int64_t> found;
    tail.read([&](const std::string& name, const std::string&, const TraceSpan& span) {
      if (name == thread) found.push_back(span.numbers[0]);
    });
    return found;
  };
  record_in_thread("before", {{&kWork, begin, begin, {1}}});
  TraceTail tail;
  EXPECT_THAT(counts(tail, "before"), ElementsAre());
  record_in_thread("after", {{&kWork, begin, begin, {2}}, {&kWork, begin, begin, {3}}});
  EXPECT_THAT(counts(tail, "after"), ElementsAre(2, 3));
  EXPECT_THAT(counts(tail, "after"), ElementsAre());
}

TEST(Trace, ATailTellsThreadsOfOneNameApartByTheirOwners) {
  const TimePoint begin = next_epoch();
  TraceTail tail;
  std::thread([&] {
    set_trace_owner("small");
    record_in_thread("lane", {{&kWork, begin, begin, {1}}});  // A thread of its own.
    set_thread_name("lane");
    record_span(kWork, begin, begin, {2});
  }).join();
  std::vector<std::pair<std::string, std::int64_t>> found;
  tail.read([&](const std::string& name, const std::string& owner, const TraceSpan& span) {
    if (name == "lane") found.emplace_back(owner, span.numbers[0]);
  });
  std::ranges::sort(found);
  EXPECT_THAT(found, ElementsAre(std::pair("", 1), std::pair("small", 2)));
}

TEST(Trace, ATailThatIsLateReadsWhatIsStillKept) {
  const TimePoint begin = next_epoch();
  TraceTail tail;
  constexpr std::int64_t kMore = 100;
  std::vector<TraceSpan> spans;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(kTraceSpansPerThread) + kMore; ++i)
    spans.push_back({&kWork, begin, begin, {i}});
  record_in_thread("many", spans);
  std::vector<std::int64_t> found;
  tail.read([&](const std::string& name, const std::string&, const TraceSpan& span) {
    if (name == "many") found.push_back(span.numbers[0]);
  });
  ASSERT_EQ(found.size(), kTraceSpansPerThread);
  EXPECT_EQ(found.front(), kMore);
  EXPECT_TRUE(std::ranges::is_sorted(found));
}

}  // namespace
}  // namespace uma
