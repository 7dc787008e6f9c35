#include "base/system/descriptors.h"

#include <sys/resource.h>

namespace uma {

std::size_t descriptors_max() {
  constexpr std::size_t kLeast = 20;  // Number that POSIX promises.
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<std::size_t>(limit.rlim_cur) : kLeast;
}

}  // namespace uma
