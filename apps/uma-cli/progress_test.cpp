#include "uma-cli/progress.h"

#include <clocale>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

const ProgressView kView{.name = "model.gguf", .done = 5 << 20, .total = 20 << 20, .bytes_per_s = 1 << 20};

TEST(BarLine, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(bar_line(kView, 80), "model.gguf  [####-------------]   25 %  5.0 MiB / 20.0 MiB  1.0 MiB/s  0:15 left");
}

TEST(JsonLine, HasTheTotalOnceItIsKnown) {
  ProgressView view = kView;
  EXPECT_EQ(json_line(view), R"({"name":"model.gguf","done":5242880,"total":20971520})");
  view.total.reset();
  EXPECT_EQ(json_line(view), R"({"name":"model.gguf","done":5242880})");
}

TEST(BarLine, FitsEveryWidth) {
  ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr);
  for (const char* name :
       {"m.gguf", "a-long-name-of-a-model-that-somebody-made-Q4_K_M.gguf", "\u4f60\u597d\u4f60\u597d\u4f60\u597d.gguf"}) {
    for (std::size_t columns = 0; columns < 200; ++columns) {
      ProgressView view = kView;
      view.name = name;
      EXPECT_LE(display_width(bar_line(view, columns)), columns) << name;
      view.total.reset();
      EXPECT_LE(display_width(bar_line(view, columns)), columns) << name;
    }
  }
}

TEST(BarLine, LeavesOutWhatItDoesNotKnow) {
  ProgressView view = kView;
  view.total.reset();
  EXPECT_EQ(bar_line(view, 80), "model.gguf  5.0 MiB  1.0 MiB/s");
  view.bytes_per_s.reset();
  EXPECT_EQ(bar_line(view, 80), "model.gguf  5.0 MiB");
}

TEST(BarLine, SaysHundredPercentOnlyAtTheEnd) {
  ProgressView view = kView;
  view.done = *view.total - 1;
  EXPECT_THAT(bar_line(view, 80), ::testing::HasSubstr(" 99 %"));
  view.done = *view.total;
  EXPECT_THAT(bar_line(view, 80), ::testing::HasSubstr("100 %"));
}

TEST(PlainLine, IsForALog) {
  EXPECT_EQ(plain_line(kView), "model.gguf: 25 %, 5.0 MiB / 20.0 MiB, 1.0 MiB/s, 0:15 left");
}

TEST(HumanDuration, HasHoursOnlyWhenNeeded) {
  EXPECT_EQ(human_duration(7), "0:07");
  EXPECT_EQ(human_duration(750), "12:30");
  EXPECT_EQ(human_duration(3723), "1:02:03");
  EXPECT_EQ(human_duration(1e30), "99:59:59");
}

TEST(RateMeter, LooksAtTheLastSeconds) {
  RateMeter meter;
  TimePoint now{};
  EXPECT_EQ(meter.bytes_per_s(), std::nullopt);
  for (int second = 0; second <= 60; ++second) meter.add(now += std::chrono::seconds(1), second < 30 ? 0 : 100 * (second - 29));
  EXPECT_EQ(meter.bytes_per_s(), 100);
  meter.add(now + std::chrono::seconds(1), 5);
  EXPECT_EQ(meter.bytes_per_s(), std::nullopt) << "the download began anew";
}

}  // namespace
}  // namespace uma::cli
