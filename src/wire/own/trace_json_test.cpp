#include "wire/own/trace_json.h"

#include <vector>

#include <boost/json/parse.hpp>
#include <gtest/gtest.h>

namespace uma::wire {
namespace {

constexpr TraceKind kCall{.name = "decode", .numbers = {"rows", "sequences"}};
constexpr TraceKind kStage{.name = "queue", .numbers = {"request"}, .is_of_request = true};

TimePoint at_us(std::int64_t us) {
  return TimePoint(std::chrono::microseconds(us));
}

TEST(TraceJson, HasCompleteEventsOfThreadsAndStagesOfRequests) {
  const std::vector<ThreadTrace> threads{
      {.name = "uma-lane-0",
       .number = 3,
       .spans = {{&kCall, at_us(5'000), at_us(7'500), {4, 2}}, {&kStage, at_us(1'000), at_us(5'000), {17}}}}};
  std::string out;
  append_trace(out, threads);
  const auto events = boost::json::parse(out).at("traceEvents").as_array();
  EXPECT_EQ(events, boost::json::parse(R"([
    {"ph":"M","name":"thread_name","pid":1,"tid":3,"args":{"name":"uma-lane-0"}},
    {"ph":"X","name":"decode","pid":1,"tid":3,"ts":4000,"dur":2500,"args":{"rows":4,"sequences":2}},
    {"ph":"b","name":"queue","pid":1,"tid":3,"cat":"request","id":17,"ts":0,"args":{"request":17}},
    {"ph":"e","name":"queue","pid":1,"tid":3,"cat":"request","id":17,"ts":4000}])"));
}

TEST(TraceJson, WithoutSpansItIsAnEmptyTrace) {
  std::string out;
  append_trace(out, {});
  EXPECT_EQ(boost::json::parse(out).at("traceEvents").as_array().size(), 0u);
}

}  // namespace
}  // namespace uma::wire
