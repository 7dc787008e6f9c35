// The command `umad devices`, which lists the devices that models can be loaded on.
#pragma once

#include <span>
#include <string>

namespace uma::umad {

// `arguments` follow the word "devices". Prints the list, or the help; returns the exit status. Asks the drivers of all
// devices.
[[nodiscard]] int run_devices_command(std::span<const std::string> arguments);

}  // namespace uma::umad
