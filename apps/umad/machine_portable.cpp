#include "umad/machine.h"

#ifdef __APPLE__
#include <cstddef>
#include <sys/sysctl.h>
#endif

namespace uma::umad {

std::string this_cpu_name() {
#ifdef __APPLE__
  std::string name(256, '\0');
  std::size_t size = name.size();
  if (::sysctlbyname("machdep.cpu.brand_string", name.data(), &size, nullptr, 0) == 0) return name.c_str();
#endif
  return "unknown";
}

}  // namespace uma::umad
