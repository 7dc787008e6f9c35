#include "base/system/program_path.h"

#include <system_error>

namespace uma {
namespace {

constexpr const char* kOwnProgram = "/proc/self/exe";

}  // namespace

std::filesystem::path program_path() {
  std::error_code problem;
  return std::filesystem::read_symlink(kOwnProgram, problem);
}

std::string same_program() {
  return kOwnProgram;
}

}  // namespace uma
