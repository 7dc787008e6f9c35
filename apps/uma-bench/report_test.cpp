#include "uma-bench/report.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::bench {
namespace {

using ::testing::HasSubstr;

Outcome sample() {
  const Failure lost{Failure::Kind::server, "no answer"};
  return {.figures = {{"requests", 4}, {"ttft_p50_ms", 12.345}, {"server_cpu_s", std::nan("")}},
          .failures = {lost, lost},
          .csv = ""};
}

TEST(Report, PrintsFiguresWithUnitsAndCountsFailures) {
  const std::string table = format_table("burst", "socket", sample());
  EXPECT_THAT(table, HasSubstr("burst over socket\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("ttft_p50_ms +12\\.3[45]\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("server_cpu_s +-\n"));
  EXPECT_THAT(table, HasSubstr("failed 2 times: no answer\n"));
}

TEST(Report, PrintsOneJsonObject) {
  EXPECT_EQ(format_json("burst", "socket", sample()),
            R"({"scenario":"burst","path":"socket","figures":{"requests":4,"ttft_p50_ms":12.345,"server_cpu_s":null},)"
            R"("failures":[{"message":"no answer","count":2}]})");
}

TEST(Report, ExitsByTheWorstFailure) {
  Outcome outcome = sample();
  EXPECT_EQ(exit_code(outcome), 2);
  outcome.failures.push_back({Failure::Kind::protocol, "not JSON"});
  EXPECT_EQ(exit_code(outcome), 3);
  outcome.failures.clear();
  EXPECT_EQ(exit_code(outcome), 0);
}

}  // namespace
}  // namespace uma::bench
