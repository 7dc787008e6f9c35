// The first bytes of a GGUF file: magic, version, number of tensors, number of key-value pairs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace uma::cli {

inline constexpr std::size_t kGgufHeadBytes = 24;

// Explains why a file that begins with `head` is not a GGUF model; empty: it may be one. `head` is the whole file if that is
// shorter than kGgufHeadBytes.
[[nodiscard]] std::string why_not_gguf(std::string_view head);

}  // namespace uma::cli
