#include "base/system/mapped_file.h"

namespace uma {

// Only Linux lists a process's mappings in a file. Elsewhere the pages stay until the system needs the memory.
void release_mapped_pages(const std::filesystem::path& /*file*/) {}

}  // namespace uma
