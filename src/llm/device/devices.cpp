#include "llm/device/devices.h"

#include <algorithm>
#include <charconv>
#include <format>
#include <numeric>

#include "base/read_number.h"
#include "base/utf8.h"
#include "llm/device/rpc_address.h"

namespace uma::llm {
namespace {

constexpr std::size_t kNameBytesMax = 128;
constexpr std::size_t kNamesMax = 64;
constexpr float kProportionMax = 1e6;

bool is_blank(char letter) {
  return letter == ' ' || letter == ',' || letter == '\t' || letter == '\n';
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    while (i < text.size() && !is_blank(text[i])) ++i;
    if (i > begin) words.emplace_back(text.substr(begin, i - begin));
    while (i < text.size() && is_blank(text[i])) ++i;
  }
  return words;
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

Placement placement_of(const std::vector<Device>& used, const std::vector<std::int32_t>& counts, std::int32_t layers_count,
                       std::int32_t experts_on_cpu) {
  const std::int32_t all = layers_count + 1;
  const std::int32_t placed = std::accumulate(counts.begin(), counts.end(), 0);
  if (placed == 0) return {};
  std::vector<std::string> names;
  std::vector<std::string> hardware;
  for (std::size_t i = 0; i < used.size(); ++i) {
    const std::string share = used.size() > 1 ? std::format(" ({})", counts[i]) : "";
    names.push_back(used[i].name + share);
    hardware.push_back(std::format("{} {}{}", used[i].backend, used[i].description, share));
  }
  // Layers that are on the CPU as a whole come first.
  const std::int32_t without_experts = std::max(0, experts_on_cpu - (all - placed));
  const std::string experts = without_experts > 0 ? std::format(", {} without their experts", without_experts) : "";
  return {.devices = std::format("{}on {}{}", placed < all ? std::format("{} of {} layers ", placed, all) : "", joined(names),
                                 experts),
          .identity = std::format("{}{}{}", joined(hardware), placed < all ? std::format(" {}/{}", placed, all) : "", experts)};
}

std::expected<DeviceNames, std::string> device_names_of(std::string_view text) {
  constexpr const char* kExpected = "auto, none, or names of devices (umad devices lists them) and rpc://HOST:PORT";
  if (text == "auto") return std::nullopt;
  if (text == "none") return std::vector<std::string>();
  std::vector<std::string> names = words_of(text);
  const auto is_wrong = [&](const std::string& name) {
    const bool is_control = std::ranges::any_of(name, [](unsigned char letter) { return letter < ' ' || letter == 127; });
    return name == "auto" || name == "none" || name.size() > kNameBytesMax || is_control || !is_utf8(name) ||
           std::ranges::count(names, name) > 1 || (is_rpc_name(name) && !rpc_name_of(name));
  };
  if (names.empty() || names.size() > kNamesMax || std::ranges::any_of(names, is_wrong)) return std::unexpected(kExpected);
  return names;
}

std::string device_names_text(const DeviceNames& names) {
  if (!names) return "auto";
  if (names->empty()) return "none";
  return joined(*names, "\n");
}

std::expected<DeviceSplit, std::string> device_split_of(std::string_view text) {
  constexpr const char* kExpected = "auto, or numbers from 0 on, one for each device, such as 3,1";
  DeviceSplit split;
  if (text == "auto") return split;
  for (const std::string& word : words_of(text)) {
    float proportion = 0;
    const auto [end, problem] = read_number(word.data(), word.data() + word.size(), proportion);
    const bool is_number = problem == std::errc() && end == word.data() + word.size();
    if (!is_number || !(proportion >= 0 && proportion <= kProportionMax)) return std::unexpected(kExpected);
    split.push_back(proportion);
  }
  const bool has_any = std::ranges::any_of(split, [](float proportion) { return proportion > 0; });
  if (split.size() > kNamesMax || !has_any) return std::unexpected(kExpected);
  return split;
}

std::string device_split_text(const DeviceSplit& split) {
  if (split.empty()) return "auto";
  std::vector<std::string> numbers;
  for (const float proportion : split) numbers.push_back(std::format("{}", proportion));
  return joined(numbers, "\n");
}

std::expected<std::string, std::string> main_device_of(std::string_view text) {
  const auto names = device_names_of(text);
  if (names && !*names) return std::string();
  if (!names || (*names)->size() != 1) return std::unexpected("auto, or the name of a device (umad devices lists them)");
  return (*names)->front();
}

std::string main_device_text(const std::string& name) {
  return name.empty() ? "auto" : name;
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
