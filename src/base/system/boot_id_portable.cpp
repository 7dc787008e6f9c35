#include "base/system/boot_id.h"

namespace uma {

std::string boot_id() {
  return "";
}

}  // namespace uma
