#include "llm/device/layer_fit.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::llm {
namespace {

using ::testing::ElementsAre;

std::int32_t sum(const std::vector<std::int32_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0);
}

// The bytes that each device needs for the last layers; a device without layers needs nothing.
std::vector<std::uint64_t> needs(std::span<const std::uint64_t> layers, std::span<const DeviceRoom> devices,
                                 const std::vector<std::int32_t>& counts) {
  std::vector<std::uint64_t> bytes;
  std::span<const std::uint64_t> rest = layers.last(static_cast<std::size_t>(sum(counts)));
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto mine = rest.first(static_cast<std::size_t>(counts[i]));
    bytes.push_back(mine.empty() ? 0 : std::accumulate(mine.begin(), mine.end(), devices[i].fixed));
    rest = rest.subspan(mine.size());
  }
  return bytes;
}

bool do_fit(std::span<const std::uint64_t> layers, std::span<const DeviceRoom> devices,
            const std::vector<std::int32_t>& counts) {
  const auto bytes = needs(layers, devices, counts);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (bytes[i] > devices[i].bytes) return false;
  }
  return true;
}

TEST(LayerFit, AsManyOfTheLastLayersAsFit) {
  const std::vector<std::uint64_t> layers = {10, 10, 10, 30};
  EXPECT_THAT(fit_layers(layers, std::vector<DeviceRoom>{{.bytes = 100}}, 4), ElementsAre(4));
  EXPECT_THAT(fit_layers(layers, std::vector<DeviceRoom>{{.bytes = 55}}, 4), ElementsAre(3));
  EXPECT_THAT(fit_layers(layers, std::vector<DeviceRoom>{{.bytes = 55, .fixed = 10}}, 4), ElementsAre(2));
  EXPECT_THAT(fit_layers(layers, std::vector<DeviceRoom>{{.bytes = 29}}, 4), ElementsAre(0));
  EXPECT_THAT(fit_layers(layers, std::vector<DeviceRoom>{{.bytes = 100}}, 2), ElementsAre(2));
  EXPECT_THAT(fit_layers(layers, std::vector<DeviceRoom>{{.bytes = 100}}, 0), ElementsAre(0));
}

TEST(LayerFit, DevicesAreFilledInProportionToTheirRoom) {
  const std::vector<std::uint64_t> layers(8, 10);
  EXPECT_THAT(fit_layers(layers, std::vector<DeviceRoom>{{.bytes = 1000}, {.bytes = 1000}}, 8), ElementsAre(4, 4));
  EXPECT_THAT(fit_layers(layers, std::vector<DeviceRoom>{{.bytes = 300}, {.bytes = 100}}, 8), ElementsAre(6, 2));
  EXPECT_THAT(fit_layers(layers, std::vector<DeviceRoom>{{.bytes = 5}, {.bytes = 100}}, 8), ElementsAre(0, 8));
}

TEST(LayerFit, ProportionsAreKept) {
  const std::vector<std::uint64_t> layers(8, 10);
  const std::vector<DeviceRoom> devices = {{.bytes = 1000}, {.bytes = 25}};
  EXPECT_THAT(fit_layers(layers, devices, 8, std::vector{3.0F, 1.0F}), ElementsAre(6, 2));
  EXPECT_THAT(fit_layers(layers, devices, 8, std::vector{1.0F, 1.0F}), ElementsAre(3, 2));
  EXPECT_THAT(split_layers(4, std::vector{1.0F, 3.0F}), ElementsAre(1, 3));
  EXPECT_THAT(split_layers(5, std::vector{0.0F, 1.0F}), ElementsAre(0, 5));
  for (std::int32_t first = 0; first <= 33; ++first) {
    const std::vector counts = {static_cast<float>(first), static_cast<float>(33 - first)};
    EXPECT_THAT(split_layers(33, counts), ElementsAre(first, 33 - first)) << "counts as proportions stay themselves";
  }
}

// Every way to place the layers, by counting.
TEST(LayerFit, NoOtherWayPlacesMore) {
  std::mt19937 random(7);
  const auto below = [&](std::uint64_t end) { return std::uniform_int_distribution<std::uint64_t>(0, end - 1)(random); };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::uint64_t> layers(1 + below(7));
    for (auto& layer : layers) layer = 1 + below(20);
    std::vector<DeviceRoom> devices(1 + below(3));
    for (auto& device : devices) device = {.bytes = below(70), .fixed = below(15)};
    const auto layers_max = static_cast<std::int32_t>(below(9));
    const auto counts = fit_layers(layers, devices, layers_max);
    ASSERT_EQ(counts.size(), devices.size());
    EXPECT_TRUE(do_fit(layers, devices, counts));
    std::int32_t most = 0;
    std::vector<std::int32_t> other(devices.size(), 0);
    const auto all = static_cast<std::int32_t>(layers.size());
    for (;;) {
      if (sum(other) <= std::min(all, layers_max) && do_fit(layers, devices, other)) most = std::max(most, sum(other));
      std::size_t i = 0;
      while (i < other.size() && ++other[i] > all) other[i++] = 0;
      if (i == other.size()) break;
    }
    EXPECT_EQ(sum(counts), most);
  }
}

}  // namespace
}  // namespace uma::llm
