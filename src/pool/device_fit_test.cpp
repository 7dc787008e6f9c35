#include "pool/device_fit.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::pool {
namespace {

using ::testing::ElementsAre;

// A model with four layers of 100 bytes, an output of 200, keys and values of 40 bytes a layer, and 50 bytes for computations
// on each device.
class DeviceFits : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kLayer = 140;
  static constexpr std::uint64_t kOutput = 200;
  static constexpr std::uint64_t kCompute = 50;

  DeviceFits() {
    header_.block_count = 4;
    header_.layer_bytes = {{100}, {100}, {100}, {100}};
    header_.output_bytes = kOutput;
  }
  Expected<MemoryNeed> measure(const llm::DeviceOptions& devices) {
    ++measured_;
    MemoryNeed need{.weights = 600, .contexts = 160 + kCompute, .cache = 160};
    std::size_t layer = 5 - static_cast<std::size_t>(devices.layers.value_or(0));
    for (std::size_t i = 0; i < devices.names->size(); ++i) {
      need.contexts_on_devices.add(devices.names->at(i), kCompute);
      for (const std::size_t end = layer + static_cast<std::size_t>(devices.split[i]); layer < end; ++layer) {
        need.weights_on_devices.add(devices.names->at(i), header_.layer_weights(devices.experts_on_cpu)[layer]);
        if (layer < 4) need.contexts_on_devices.add(devices.names->at(i), 40);
      }
    }
    return need;
  }
  llm::DeviceOptions fit(const std::vector<RoomOnDevice>& rooms, const llm::DeviceOptions& wanted = {}) {
    measured_ = 0;
    const auto fit = fit_devices(header_, wanted, rooms, [this](const auto& devices) { return measure(devices); });
    EXPECT_TRUE(fit.has_value());
    EXPECT_EQ(fit->need, *measure(fit->devices));
    for (const RoomOnDevice& room : rooms) {
      EXPECT_LE((fit->need.weights_on_devices + fit->need.contexts_on_devices).of(room.name), room.bytes);
    }
    return fit->devices;
  }

  llm::GgufHeader header_;
  int measured_ = 0;
};

TEST_F(DeviceFits, AWholeModelIsMeasuredOnce) {
  const auto devices = fit({{"GPU0", 4 * kLayer + kOutput + kCompute}});
  EXPECT_THAT(*devices.names, ElementsAre("GPU0"));
  EXPECT_EQ(devices.layers, 5);
  EXPECT_EQ(measured_, 2);
}

TEST_F(DeviceFits, WhatDoesNotFitStaysOnTheCpu) {
  EXPECT_EQ(fit({{"GPU0", 4 * kLayer + kOutput + kCompute - 1}}).layers, 4);
  EXPECT_EQ(fit({{"GPU0", kOutput + kLayer + kCompute}}).layers, 2);
  EXPECT_EQ(fit({{"GPU0", kOutput + kCompute}}).layers, 1);
  EXPECT_THAT(*fit({{"GPU0", kOutput + kCompute - 1}}).names, ElementsAre());
  EXPECT_THAT(*fit({{"GPU0", 0}}).names, ElementsAre());
}

TEST_F(DeviceFits, TheNumberOfLayersIsTheMost) {
  EXPECT_EQ(fit({{"GPU0", 10'000}}, {.layers = 3}).layers, 3);
  EXPECT_EQ(fit({{"GPU0", kOutput + kLayer + kCompute}}, {.layers = 3}).layers, 2);
}

TEST_F(DeviceFits, OneDeviceBeforeSeveral) {
  const auto devices = fit({{"GPU0", 5000}, {"GPU1", 10'000}});
  EXPECT_THAT(*devices.names, ElementsAre("GPU1"));
  EXPECT_THAT(*fit({{"GPU0", 5000}, {"GPU1", 10'000}}, {.main_device = "GPU0"}).names, ElementsAre("GPU0"));
}

TEST_F(DeviceFits, SeveralDevicesHaveWhatOneCannot) {
  const auto devices = fit({{"GPU0", 3 * kLayer + kCompute}, {"GPU1", kLayer + kOutput + kCompute}});
  EXPECT_THAT(*devices.names, ElementsAre("GPU0", "GPU1"));
  EXPECT_THAT(devices.split, ElementsAre(3, 2));
  EXPECT_EQ(fit({{"GPU0", kLayer + kCompute}, {"GPU1", kLayer + kOutput + kCompute}}).layers, 3);
  EXPECT_THAT(*fit({{"GPU0", 10}, {"GPU1", kLayer + kOutput + kCompute}}).names, ElementsAre("GPU1"));
}

TEST_F(DeviceFits, AGivenSplitIsKept) {
  const auto devices = fit({{"GPU0", 10'000}, {"GPU1", 10'000}}, {.split = {4, 1}});
  EXPECT_THAT(devices.split, ElementsAre(4, 1));
  EXPECT_THAT(*devices.names, ElementsAre("GPU0", "GPU1"));
}

TEST_F(DeviceFits, ExpertsStayOnTheCpuBeforeLayersDo) {
  constexpr std::uint64_t kExperts = 70;
  constexpr std::uint64_t kWhole = 4 * kLayer + kOutput + kCompute;
  header_.layer_bytes.assign(4, {.all = 100, .experts = kExperts});
  header_.expert_bytes = 4 * kExperts;
  for (std::int32_t without = 0; without <= 4; ++without) {
    const std::uint64_t room = kWhole - static_cast<std::uint64_t>(without) * kExperts;
    for (const std::uint64_t more : {std::uint64_t{0}, kExperts - 1}) {
      const auto devices = fit({{"GPU0", room + (without > 0 ? more : 0)}});
      EXPECT_EQ(devices.layers, 5) << without;
      EXPECT_EQ(devices.experts_on_cpu, without);
      EXPECT_LE(measured_, 4);
    }
  }
  const auto devices = fit({{"GPU0", kWhole - 4 * kExperts - 1}});
  EXPECT_EQ(devices.layers, 4);
  EXPECT_EQ(devices.experts_on_cpu, 4) << "of the four layers there, the first is on the CPU as a whole";
}

TEST_F(DeviceFits, SeveralDevicesHaveTheExpertsThatOneCannot) {
  header_.layer_bytes.assign(4, {.all = 100, .experts = 70});
  header_.expert_bytes = 280;
  const auto devices = fit({{"GPU0", 2 * kLayer + kCompute}, {"GPU1", 2 * kLayer + kOutput + kCompute}});
  EXPECT_THAT(devices.split, ElementsAre(2, 3));
  EXPECT_EQ(devices.experts_on_cpu, 0);
  const auto less = fit({{"GPU0", 2 * kLayer + kCompute}, {"GPU1", 2 * kLayer + kOutput + kCompute - 1}});
  EXPECT_THAT(less.split, ElementsAre(3, 2)) << "two layers without their experts leave room for a third";
  EXPECT_EQ(less.experts_on_cpu, 2);
}

TEST_F(DeviceFits, AGivenSplitKeepsTheExperts) {
  header_.layer_bytes.assign(4, {.all = 100, .experts = 70});
  header_.expert_bytes = 280;
  const std::vector<RoomOnDevice> rooms = {{"GPU0", 10'000}, {"GPU1", 3 * kLayer}};
  EXPECT_EQ(fit(rooms, {.split = {1, 1}}).experts_on_cpu, 0);
  EXPECT_GT(fit({rooms[1]}, {.split = {1}}).experts_on_cpu, 0);
}

TEST_F(DeviceFits, AsManyLayersAsAreThereWithoutExperts) {
  std::mt19937 random(7);
  const auto below = [&](std::uint64_t limit) { return std::uniform_int_distribution<std::uint64_t>(1, limit)(random); };
  for (int i = 0; i < 1000; ++i) {
    header_.layer_bytes.assign(4, {.all = 100, .experts = below(90)});
    header_.expert_bytes = 4 * header_.layer_bytes[0].experts;
    const std::uint64_t room = below(900);
    const std::uint64_t layer = kLayer - header_.layer_bytes[0].experts;
    const std::uint64_t fitting =
        room < kOutput + kCompute ? 0 : 1 + std::min<std::uint64_t>(4, (room - kOutput - kCompute) / layer);
    EXPECT_EQ(fit({{"GPU0", room}}).layers.value_or(0), static_cast<std::int32_t>(fitting)) << room << ' ' << layer;
  }
}

TEST_F(DeviceFits, AnErrorOfTheMeasurementIsReturned) {
  const std::vector<RoomOnDevice> rooms = {{"GPU0", 10'000}};
  const auto fit = fit_devices(header_, {}, rooms, [](const auto&) { return fail(ErrorCode::model_load, "bad file"); });
  ASSERT_FALSE(fit.has_value());
  EXPECT_EQ(fit.error().message, "bad file");
}

}  // namespace
}  // namespace uma::pool
