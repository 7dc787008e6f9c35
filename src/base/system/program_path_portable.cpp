#include "base/system/program_path.h"

#ifdef __APPLE__
#include <cstdint>
#include <mach-o/dyld.h>
#include <system_error>
#endif

namespace uma {

std::filesystem::path program_path() {
#ifdef __APPLE__
  std::uint32_t size = 0;
  ::_NSGetExecutablePath(nullptr, &size);  // Sets the size.
  std::string path(size, '\0');
  if (::_NSGetExecutablePath(path.data(), &size) != 0) return {};
  std::error_code problem;
  return std::filesystem::canonical(path.c_str(), problem);
#else
  return {};
#endif
}

std::string same_program() {
  return program_path().string();
}

}  // namespace uma
