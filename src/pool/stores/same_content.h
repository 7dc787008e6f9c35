// Whether two large files are copies of each other, without reading them whole.
#pragma once

#include <string>

namespace uma::pool {

// Compares the sizes, the beginnings and samples from everywhere, about 2 MiB of each. Two models whose weights differ differ
// in the samples. False also if a file cannot be read.
[[nodiscard]] bool have_same_content(const std::string& first, const std::string& second);

}  // namespace uma::pool
