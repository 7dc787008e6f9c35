#include "uma-bench/measure.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::bench {
namespace {

using ::testing::ElementsAre;

double figure(const Figures& figures, const std::string& name) {
  for (const Figure& each : figures) {
    if (each.name == name) {
      return each.value;
    }
  }
  ADD_FAILURE() << "no figure " << name;
  return 0;
}

TEST(Percentile, IsTheNearestRank) {
  const std::vector<double> values{50, 10, 40, 20, 30};
  EXPECT_EQ(percentile(values, 0.5), 30);
  EXPECT_EQ(percentile(values, 0.2), 10);
  EXPECT_EQ(percentile(values, 0.21), 20);
  EXPECT_EQ(percentile(values, 0.95), 50);
  EXPECT_EQ(percentile(values, 0), 10);
  EXPECT_EQ(percentile(values, 1), 50);
  EXPECT_EQ(percentile({7}, 0.99), 7);
}

TEST(Percentile, OfNothingIsNotANumber) {
  EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
}

TEST(TokenGaps, AreCountedWhereTheLaterTokenArrived) {
  StreamRecord record;
  record.token_ms = {100, 110, 130, 500};
  EXPECT_THAT(token_gaps(record), ElementsAre(10, 20, 370));
  EXPECT_THAT(token_gaps(record, 110), ElementsAre(20, 370));
  EXPECT_THAT(token_gaps(record, -1, 130), ElementsAre(10, 20));
}

TEST(Summarize, CountsAllTokensOverAllTheTime) {
  StreamRecord first;
  first.start_ms = 0;
  first.token_ms = {100, 120, 140, 160, 180};
  first.prompt_tokens = 32;
  first.completion_tokens = 5;
  StreamRecord second = first;
  second.start_ms = 50;
  second.token_ms = {200, 4000};
  second.completion_tokens = 2;
  second.failure = Failure{Failure::Kind::server, "broke off"};

  const Figures figures = summarize(std::vector{first, second}, {.wall_ms = 4000, .cpu_s = 7});
  EXPECT_EQ(figure(figures, "requests"), 2);
  EXPECT_EQ(figure(figures, "failures"), 1);
  EXPECT_EQ(figure(figures, "generated_tokens"), 7);
  EXPECT_EQ(figure(figures, "tokens_per_s"), 7 / 4.0);
  EXPECT_EQ(figure(figures, "ttft_p50_ms"), 100);
  EXPECT_EQ(figure(figures, "ttft_max_ms"), 150);
  EXPECT_EQ(figure(figures, "fifth_token_p50_ms"), 180);
  EXPECT_EQ(figure(figures, "inter_token_max_ms"), 3800);
  EXPECT_EQ(figure(figures, "worst_pause_first_3s_ms"), 20) << "the long pause ends later than 3 s after the first token";
  EXPECT_EQ(figure(figures, "server_cpu_ms_per_token"), 1000);
}

TEST(Summarize, SaysNothingWhereNothingWasMeasured) {
  const Figures figures = summarize({}, {.wall_ms = 0, .cpu_s = std::nan("")});
  EXPECT_TRUE(std::isnan(figure(figures, "tokens_per_s")));
  EXPECT_TRUE(std::isnan(figure(figures, "ttft_p50_ms")));
  EXPECT_TRUE(std::isnan(figure(figures, "server_cpu_ms_per_token")));
}

}  // namespace
}  // namespace uma::bench
