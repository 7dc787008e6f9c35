#include "umad/devices_command.h"

#include <algorithm>
#include <cstdio>
#include <format>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/text.h"
#include "llm/device/devices.h"

namespace uma::umad {
namespace {

std::string line(std::string_view name, std::string_view kind, std::string_view memory, std::string_view free,
                 std::string_view backend, std::string_view device) {
  return std::format("{:<12} {:<15} {:>11} {:>11}  {:<8} {}\n", name, kind, memory, free, backend, device);
}

std::string table(const std::vector<llm::Device>& devices) {
  std::string text = line("name", "kind", "memory", "free", "backend", "device");
  for (const llm::Device& device : devices) {
    const bool is_known = device.total > 0;
    text += line(device.name, llm::name_of(device.kind), is_known ? readable_bytes(device.total) : "-",
                 is_known ? readable_bytes(device.free) : "-", device.backend, device.description);
  }
  const bool has_gpu = std::ranges::any_of(devices, [](const llm::Device& device) { return llm::takes_layers(device.kind); });
  if (!has_gpu) text += "no GPU: the CPU computes all models (docs/DEVICES.md tells what a GPU needs)\n";
  return text;
}

}  // namespace

int run_devices_command(std::span<const std::string> arguments) {
  CLI::App app{"umad devices: lists the devices that can compute models, with names for the setting devices.", "umad devices"};
  app.get_formatter()->column_width(24);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 reads a vector from its end.
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 1;
  }
  std::fputs(table(llm::list_devices()).c_str(), stdout);
  return 0;
}

}  // namespace uma::umad
