#include "base/thrown.h"

#include <exception>
#include <string>
#include <string_view>
#include <typeinfo>

#include "base/log.h"
#include "base/metrics.h"
#include "base/system/thread_name.h"

namespace uma {
namespace {

Counter& thrown() {
  static Counter counter;
  return counter;
}

std::string what_is_handled() {
  try {
    throw;
  } catch (const std::exception& problem) {
    return problem.what();
  } catch (...) {
    return "an unknown exception";
  }
}

}  // namespace

void note_thrown(const std::source_location& place) {
  thrown().add();
  std::string_view file = place.file_name();
  file.remove_prefix(file.rfind('/') + 1);  // Without a slash, npos + 1 is 0.
  log_error("{}: exception at {}:{}: {}", thread_name(), file, place.line(), what_is_handled());
}

std::uint64_t thrown_count() {
  return thrown().value();
}

}  // namespace uma
