#include "llm/devices.h"

#include <cstdlib>
#include <format>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/footprint.h"
#include "llm/llama_devices.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

TEST(DeviceNames, AreAutoNoneOrNames) {
  EXPECT_EQ(device_names_of("auto"), std::nullopt);
  EXPECT_THAT(device_names_of("none")->value(), ElementsAre());
  EXPECT_THAT(device_names_of("Vulkan0")->value(), ElementsAre("Vulkan0"));
  EXPECT_THAT(device_names_of(" Vulkan0, CUDA1\nRPC[host:1] ")->value(), ElementsAre("Vulkan0", "CUDA1", "RPC[host:1]"));
  for (const char* wrong : {"", " , ", "Vulkan0 Vulkan0", "Vulkan0 none", "auto Vulkan0", "a\x01"}) {
    EXPECT_FALSE(device_names_of(wrong)) << wrong;
  }
  EXPECT_FALSE(device_names_of(std::string(200, 'a')));
  EXPECT_FALSE(device_names_of("\xff")) << "not UTF-8";
  std::string many;
  for (int i = 0; i < 1000; ++i) many += std::format("Vulkan{} ", i);
  EXPECT_FALSE(device_names_of(many));
}

TEST(DeviceNames, AreWrittenAsTheyAreRead) {
  for (const char* text : {"auto", "none", "Vulkan0", "Vulkan0\nCUDA1"}) {
    EXPECT_EQ(device_names_text(*device_names_of(text)), text);
  }
}

TEST(DeviceLayers, AreAutoOrANumber) {
  EXPECT_EQ(device_layers_of("auto"), std::nullopt);
  EXPECT_EQ(device_layers_of("0")->value(), 0);
  EXPECT_EQ(device_layers_of("33")->value(), 33);
  for (const char* wrong : {"", "-1", "10001", "3.5", "all", "7 "}) EXPECT_FALSE(device_layers_of(wrong)) << wrong;
  EXPECT_EQ(device_layers_text(7), "7");
  EXPECT_EQ(device_layers_text(std::nullopt), "auto");
}

TEST(DeviceOptions, AreNotUsedWithoutDevicesOrLayers) {
  EXPECT_TRUE(DeviceOptions{}.are_used());
  EXPECT_TRUE((DeviceOptions{.names = {{"Vulkan0"}}, .layers = 3}.are_used()));
  EXPECT_FALSE((DeviceOptions{.names = std::vector<std::string>()}.are_used()));
  EXPECT_FALSE((DeviceOptions{.layers = 0}.are_used()));
}

TEST(Devices, TheProcessorIsAlwaysListed) {
  const std::vector<Device> devices = list_devices();
  EXPECT_THAT(devices, Contains(Field(&Device::kind, DeviceKind::cpu)));
  for (const Device& device : devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_LE(device.free, device.total);
  }
}

TEST(Devices, AnUnknownOneIsRefusedByName) {
  const char* model = std::getenv("UMA_TEST_MODEL");
  ASSERT_NE(model, nullptr);
  const DeviceOptions options{.names = {{"Nothing7"}}};
  const auto loaded = load_llama_model(model, {.devices = options});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::model_load);
  EXPECT_THAT(loaded.error().message, HasSubstr("no GPU is called \"Nothing7\""));
  EXPECT_FALSE(load_llama_model(model, {.devices = {.names = {{"CPU"}}}})) << "the CPU is not a device that takes layers";
}

TEST(Devices, WithoutThemStatesAreThoseOfTheProcessor) {
  for (const DeviceOptions& options : {DeviceOptions{.layers = 0}, DeviceOptions{.names = std::vector<std::string>()}}) {
    EXPECT_EQ(placement_of(options, 4).identity, "");
    EXPECT_EQ(placement_of(options, 4).devices, "");
  }
}

}  // namespace
}  // namespace uma::llm
