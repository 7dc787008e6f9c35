// Files that are mapped into memory, by this program or a library.
#pragma once

#include <filesystem>

namespace uma {

// Lets go of the pages of a file's shared mappings. They stay in the system's cache, from which the next access maps them
// again, but no longer count as memory of this process, and the system may drop them. Any thread.
void release_mapped_pages(const std::filesystem::path& file);

}  // namespace uma
