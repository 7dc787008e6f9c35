// UMA_CHECK(condition) asserts an invariant of this program, in every build. A false condition is a bug: it is logged with its
// place, and the process aborts. User input is validated before it can reach one.
#pragma once

#include <string_view>

namespace uma {

[[noreturn]] void check_failed(std::string_view condition, const char* file, int line);

}  // namespace uma

#define UMA_CHECK(condition)                               \
  do {                                                     \
    if (!(condition)) [[unlikely]]                         \
      ::uma::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
