#include "umad/machine.h"

namespace uma::umad {

std::string this_cpu_name() {
  return cpu_name("/proc/cpuinfo");
}

}  // namespace uma::umad
