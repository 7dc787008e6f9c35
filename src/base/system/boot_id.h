// The present boot of the machine.
#pragma once

#include <string>

namespace uma {

// A random name that the system has from its start to its end; empty: the system does not tell. Thread-safe.
[[nodiscard]] std::string boot_id();

}  // namespace uma
