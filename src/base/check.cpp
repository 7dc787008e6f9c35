#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace uma {

void check_failed(std::string_view condition, const char* file, int line) {
  std::fprintf(stderr, "uma-serve: internal error at %s:%d: %.*s does not hold\n", file, line,
               static_cast<int>(condition.size()), condition.data());
  std::abort();
}

}  // namespace uma
