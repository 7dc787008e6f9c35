#include "base/system/boot_id.h"

#include <fstream>

namespace uma {

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

}  // namespace uma
