// How many of a model's layers fit onto its devices. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace uma::llm {

// The memory of a device for one model.
struct DeviceRoom {
  std::uint64_t bytes = 0;
  std::uint64_t fixed = 0;  // Bytes that are needed beside the layers, if there are any.
};

// Returns how many layers each device takes: consecutive ones in the order of the devices, which end with the last layer.
// `layers` are the bytes of each. At most `layers_max` are placed, and as many as fit. Of the ways to place them, the one in
// which the fullest device has the smallest share of its room in use.
[[nodiscard]] std::vector<std::int32_t> fit_layers(std::span<const std::uint64_t> layers, std::span<const DeviceRoom> devices,
                                                   std::int32_t layers_max);

// Returns how many layers each device takes if they are divided in these proportions: as many as fit, at most `layers_max`.
[[nodiscard]] std::vector<std::int32_t> fit_layers(std::span<const std::uint64_t> layers, std::span<const DeviceRoom> devices,
                                                   std::int32_t layers_max, std::span<const float> proportions);

// Divides `count` layers in these proportions, as the library does. Requires: a proportion that is not 0.
[[nodiscard]] std::vector<std::int32_t> split_layers(std::int32_t count, std::span<const float> proportions);

}  // namespace uma::llm
