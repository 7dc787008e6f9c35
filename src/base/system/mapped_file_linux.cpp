#include "base/system/mapped_file.h"

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <system_error>

namespace uma {

void release_mapped_pages(const std::filesystem::path& file) {
  std::error_code failed;
  const std::string path = std::filesystem::canonical(file, failed).string();
  if (failed) return;
  // Lines such as "7f12a000-7f12c000 r--s 00000000 fe:00 1234    /models/a model.gguf".
  std::ifstream mappings("/proc/self/maps");
  for (std::string line; std::getline(mappings, line);) {
    if (!line.ends_with(" " + path)) continue;
    std::istringstream words(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::string rights;
    if (!(words >> std::hex >> begin >> dash >> end >> rights) || !rights.ends_with('s')) continue;
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // Only advice: a failure is harmless.
  }
}

}  // namespace uma
