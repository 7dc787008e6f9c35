#include "llm/device/lost_devices.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

using ::testing::HasSubstr;

// The CPU, which is never lost: a device of every machine.
class LostDevicesTest : public ::testing::Test {
 protected:
  LostDevicesTest() {
    init_log(LogLevel::error);
    init_llama();
    device_ = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  }
  [[nodiscard]] DeviceList devices() const { return {&device_, 1}; }

  ggml_backend_dev_t device_ = nullptr;
};

TEST_F(LostDevicesTest, ADeviceStaysLostAndTheFirstReasonIsKept) {
  LostDevices lost;
  EXPECT_FALSE(lost.contains(device_));
  EXPECT_FALSE(lost.contain_any(devices()));
  EXPECT_EQ(lost.story_of(device_), std::nullopt);
  lost.add(device_, "it burns");
  lost.add(device_, "it has burnt");
  EXPECT_TRUE(lost.contain_any(devices()));
  EXPECT_FALSE(lost.contain_any({})) << "a model of the CPU";
  EXPECT_THAT(lost.story_of(device_).value(), HasSubstr("the device CPU was lost at"));
  EXPECT_THAT(lost.story_of(device_).value(), HasSubstr("(it burns): restart umad"));
}

TEST_F(LostDevicesTest, ADeviceThatWorksIsNotLostByAFailure) {
  const auto failed = guarded_on(devices(), ErrorCode::runtime_decode, "decoding", []() -> Expected<Unit> {
    throw std::runtime_error("vk::Device::allocateMemory: ErrorOutOfDeviceMemory");
  });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::runtime_decode);
  EXPECT_EQ(failed.error().message, "decoding: vk::Device::allocateMemory: ErrorOutOfDeviceMemory");
  EXPECT_FALSE(LostDevices::of_process().contain_any(devices()));
  EXPECT_TRUE(guarded_on(devices(), ErrorCode::runtime_decode, "decoding", []() -> Expected<Unit> { return Unit{}; }));
}

}  // namespace
}  // namespace uma::llm
