#include "llm/device/devices.h"

#include <cstdlib>
#include <format>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/device/layer_fit.h"
#include "llm/device/llama_devices.h"
#include "llm/footprint.h"
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

TEST(DeviceSplits, AreAutoOrProportions) {
  EXPECT_THAT(*device_split_of("auto"), ElementsAre());
  EXPECT_THAT(*device_split_of("3, 1.5"), ElementsAre(3, 1.5));
  EXPECT_THAT(*device_split_of("0\n1\n"), ElementsAre(0, 1));
  for (const char* wrong : {"", "0", "0,0", "-1", "nan", "inf", "1e9", "1;2", "a", "auto,1"}) {
    EXPECT_FALSE(device_split_of(wrong)) << wrong;
  }
  for (const char* text : {"auto", "3,1.5", "1"}) {
    EXPECT_EQ(*device_split_of(device_split_text(*device_split_of(text))), *device_split_of(text));
  }
}

TEST(MainDevices, AreAutoOrOneName) {
  EXPECT_EQ(*main_device_of("auto"), "");
  EXPECT_EQ(*main_device_of("CUDA1"), "CUDA1");
  EXPECT_EQ(main_device_text(""), "auto");
  for (const char* wrong : {"", "none", "A,B", "A\x01"}) EXPECT_FALSE(main_device_of(wrong)) << wrong;
}

TEST(Devices, WithoutThemAllLayersAreOnTheProcessor) {
  for (const DeviceOptions& options : {DeviceOptions{.layers = 0}, DeviceOptions{.names = std::vector<std::string>()}}) {
    const auto chosen = ChosenDevices::of(options);
    ASSERT_TRUE(chosen);
    EXPECT_FALSE(chosen->are_used());
    EXPECT_EQ(chosen->first(), nullptr);
    EXPECT_THAT(chosen->layers_of(4), ElementsAre());
    EXPECT_THAT(*devices_of(options), ElementsAre());
  }
  EXPECT_FALSE(ChosenDevices::of({.names = {{"Nothing7"}}, .layers = 0})) << "a wrong name is wrong without layers, too";
}

// A machine with a CPU, a GPU that two backends drive, another GPU, and two integrated ones.
std::vector<Device> many_devices() {
  using enum DeviceKind;
  return {{.name = "ROCm0", .description = "R", .backend = "ROCm", .hardware = "0000:03:00.0", .kind = gpu},
          {.name = "Vulkan0", .description = "V", .backend = "Vulkan", .hardware = "", .kind = integrated_gpu},
          {.name = "Vulkan1", .description = "R", .backend = "Vulkan", .hardware = "0000:03:00.0", .kind = gpu},
          {.name = "Vulkan2", .description = "W", .backend = "Vulkan", .hardware = "", .kind = gpu},
          {.name = "Vulkan3", .description = "X", .backend = "Vulkan", .hardware = "", .kind = integrated_gpu},
          {.name = "CPU", .description = "C", .backend = "CPU", .hardware = "", .kind = cpu}};
}

TEST(ChooseDevices, AutoTakesEveryGpuOnceOrOneIntegrated) {
  std::vector<Device> all = many_devices();
  EXPECT_THAT(*choose_devices(all, std::nullopt), ElementsAre(0, 3));
  std::erase_if(all, [](const Device& device) { return device.kind == DeviceKind::gpu; });
  EXPECT_THAT(*choose_devices(all, std::nullopt), ElementsAre(0));
  EXPECT_THAT(*choose_devices({all.back()}, std::nullopt), ElementsAre());
}

TEST(ChooseDevices, NamesCountLetterByLetterAndInTheirOrder) {
  const std::vector<Device> all = many_devices();
  EXPECT_THAT(*choose_devices(all, {{"Vulkan3", "ROCm0"}}), ElementsAre(4, 0));
  EXPECT_THAT(*choose_devices(all, std::vector<std::string>()), ElementsAre());
  for (const char* wrong : {"vulkan3", "Vulkan", "CPU", "Vulkan9"}) {
    EXPECT_THAT(choose_devices(all, {{wrong}}).error(), HasSubstr("known: ROCm0, Vulkan0, Vulkan1, Vulkan2, Vulkan3")) << wrong;
  }
}

TEST(Placements, DifferByHardwareBackendOrderAndLayers) {
  const std::vector<Device> all = many_devices();
  EXPECT_EQ(placement_of({}, {}, 4).identity, "");
  EXPECT_EQ(placement_of({all[3]}, {0}, 4).devices, "");
  EXPECT_EQ(placement_of({all[3]}, {5}, 4).devices, "on Vulkan2");
  EXPECT_EQ(placement_of({all[3]}, {2}, 4).devices, "2 of 5 layers on Vulkan2");
  EXPECT_EQ(placement_of({all[0], all[3]}, {3, 2}, 4).devices, "on ROCm0 (3), Vulkan2 (2)");
  std::set<std::string> identities;
  for (const auto& used : {std::vector{all[0]}, std::vector{all[2]}, std::vector{all[3]}, std::vector{all[0], all[3]},
                           std::vector{all[3], all[0]}}) {
    identities.insert(placement_of(used, split_layers(5, std::vector<float>(used.size(), 1)), 4).identity);
  }
  EXPECT_EQ(placement_of({all[3]}, {5}, 4, 3).devices, "on Vulkan2, 3 without their experts");
  EXPECT_EQ(placement_of({all[3]}, {3}, 4, 3).devices, "3 of 5 layers on Vulkan2, 1 without their experts");
  EXPECT_EQ(placement_of({all[3]}, {3}, 4, 2).devices, "3 of 5 layers on Vulkan2");
  identities.insert(placement_of({all[3]}, {5}, 4, 3).identity);
  identities.insert(placement_of({all[3]}, {5}, 4, 4).identity);
  identities.insert(placement_of({all[3]}, {2}, 4).identity);
  identities.insert(placement_of({all[0], all[3]}, {4, 1}, 4).identity);
  EXPECT_EQ(identities.size(), 9u);
}

}  // namespace
}  // namespace uma::llm
