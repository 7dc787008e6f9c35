#include "llm/device/device_timer.h"

#include <gtest/gtest.h>

#include "llm/device/devices.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};

TimePoint at(double s) {
  return kStart + from_ms(1000 * s);
}

TEST(BusyTime, CallsAtTheSameTimeCountOnce) {
  BusyTime time(kStart);
  time.begin(at(1));
  time.begin(at(2));
  time.end(at(3));
  time.end(at(4));
  const BusyTime::Reading reading = time.read(at(4));
  EXPECT_DOUBLE_EQ(reading.busy_s, 3);
  EXPECT_DOUBLE_EQ(reading.ratio, 0.75);
}

TEST(BusyTime, ARunningCallCountsUntilNow) {
  BusyTime time(kStart);
  time.begin(at(1));
  EXPECT_DOUBLE_EQ(time.read(at(4)).busy_s, 3);
  EXPECT_DOUBLE_EQ(time.read(at(3.5)).busy_s, 3) << "a time before the last one";
  time.end(at(5));
  EXPECT_DOUBLE_EQ(time.read(at(5)).busy_s, 4);
}

TEST(BusyTime, TheRatioForgetsWhatIsLongAgo) {
  BusyTime time(kStart);
  EXPECT_EQ(time.read(kStart).ratio, 0);
  time.begin(at(0));
  time.end(at(6));
  EXPECT_DOUBLE_EQ(time.read(at(12)).ratio, 0) << "the last call ended six seconds ago";
  time.begin(at(15));
  time.end(at(16));
  EXPECT_DOUBLE_EQ(time.read(at(16)).ratio, 0.1) << "one of the last ten seconds";
  EXPECT_DOUBLE_EQ(time.read(at(16)).busy_s, 7);
}

// The CPU, a device of every machine, which no model of another test is on.
DeviceBusy of_cpu() {
  for (const DeviceBusy& device : device_busy()) {
    if (device.name == "CPU") return device;
  }
  return {};
}

TEST(DeviceTimer, NamesTheDevicesThatComputed) {
  init_llama();
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  EXPECT_EQ(of_cpu().name, "");
  {
    const DeviceTimer timer({&cpu, 1});
    EXPECT_EQ(of_cpu().busy_s, 0);
    EXPECT_TRUE(of_cpu().is_used);
    (void)timer.begin();
    EXPECT_GT(of_cpu().busy_s, 0);
  }
  EXPECT_GT(of_cpu().busy_s, 0) << "it only grows";
  EXPECT_FALSE(of_cpu().is_used);
  (void)DeviceTimer({}).begin();
}

}  // namespace
}  // namespace uma::llm
