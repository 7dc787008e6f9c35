#include "llm/devices.h"

#include <algorithm>
#include <charconv>
#include <format>

#include "base/utf8.h"

namespace uma::llm {
namespace {

constexpr std::size_t kNameBytesMax = 128;
constexpr std::size_t kNamesMax = 64;

bool is_blank(char letter) {
  return letter == ' ' || letter == ',' || letter == '\t' || letter == '\n';
}

std::string joined(const std::vector<std::string>& texts, std::string_view separator = ", ") {
  std::string all;
  for (const std::string& text : texts) all += std::format("{}{}", all.empty() ? "" : separator, text);
  return all;
}

// Every GPU once, though several backends may drive it, or the first integrated one.
std::vector<std::size_t> choose_automatically(const std::vector<Device>& all) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto is_same = [&](std::size_t other) { return !all[i].hardware.empty() && all[other].hardware == all[i].hardware; };
    if (all[i].kind == DeviceKind::gpu && !std::ranges::any_of(chosen, is_same)) chosen.push_back(i);
  }
  const auto integrated = std::ranges::find(all, DeviceKind::integrated_gpu, &Device::kind);
  if (chosen.empty() && integrated != all.end()) chosen.push_back(static_cast<std::size_t>(integrated - all.begin()));
  return chosen;
}

}  // namespace

std::string_view name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "CPU";
    case DeviceKind::gpu:
      return "GPU";
    case DeviceKind::integrated_gpu:
      return "integrated GPU";
    case DeviceKind::accelerator:
      return "accelerator";
    case DeviceKind::group:
      break;
  }
  return "group";
}

std::expected<std::vector<std::size_t>, std::string> choose_devices(const std::vector<Device>& all, const DeviceNames& names) {
  if (!names) return choose_automatically(all);
  std::vector<std::size_t> chosen;
  for (const std::string& name : *names) {
    const auto found =
        std::ranges::find_if(all, [&](const Device& device) { return device.name == name && takes_layers(device.kind); });
    if (found != all.end()) {
      chosen.push_back(static_cast<std::size_t>(found - all.begin()));
      continue;
    }
    std::vector<std::string> known;
    for (const Device& device : all) {
      if (takes_layers(device.kind)) known.push_back(device.name);
    }
    return std::unexpected(std::format("devices: no GPU is called \"{}\"; {} (umad devices lists them)", name,
                                       known.empty() ? "this machine has none" : "known: " + joined(known)));
  }
  return chosen;
}

Placement placement_of(const std::vector<Device>& used, DeviceLayers layers, std::int32_t layers_count) {
  if (used.empty() || layers == 0) return {};
  std::vector<std::string> names;
  std::vector<std::string> hardware;
  for (const Device& device : used) {
    names.push_back(device.name);
    hardware.push_back(std::format("{} {}", device.backend, device.description));
  }
  const std::int32_t all = layers_count + 1;
  const std::int32_t placed = std::min(layers.value_or(all), all);
  return {.devices = std::format("{}on {}", placed < all ? std::format("{} of {} layers ", placed, all) : "", joined(names)),
          .identity = std::format("{}{}", joined(hardware), placed < all ? std::format(" {}/{}", placed, all) : "")};
}

std::expected<DeviceNames, std::string> device_names_of(std::string_view text) {
  constexpr const char* kExpected = "auto, none, or names of devices (umad devices lists them)";
  if (text == "auto") return std::nullopt;
  std::vector<std::string> names;
  if (text == "none") return names;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    while (i < text.size() && !is_blank(text[i])) ++i;
    if (i > begin) names.emplace_back(text.substr(begin, i - begin));
    while (i < text.size() && is_blank(text[i])) ++i;
  }
  const auto is_wrong = [&](const std::string& name) {
    const bool is_control = std::ranges::any_of(name, [](unsigned char letter) { return letter < ' ' || letter == 127; });
    return name == "auto" || name == "none" || name.size() > kNameBytesMax || is_control || !is_utf8(name) ||
           std::ranges::count(names, name) > 1;
  };
  if (names.empty() || names.size() > kNamesMax || std::ranges::any_of(names, is_wrong)) return std::unexpected(kExpected);
  return names;
}

std::string device_names_text(const DeviceNames& names) {
  if (!names) return "auto";
  if (names->empty()) return "none";
  return joined(*names, "\n");
}

std::expected<DeviceLayers, std::string> device_layers_of(std::string_view text) {
  if (text == "auto") return std::nullopt;
  std::int32_t layers = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), layers);
  if (problem == std::errc() && end == text.data() + text.size() && layers >= 0 && layers <= kDeviceLayersMax) return layers;
  return std::unexpected(std::format("auto or an integer from 0 to {}", kDeviceLayersMax));
}

std::string device_layers_text(DeviceLayers layers) {
  return layers ? std::to_string(*layers) : "auto";
}

}  // namespace uma::llm
