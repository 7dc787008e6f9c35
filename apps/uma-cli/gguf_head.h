// The first bytes of a GGUF file: magic, version, number of tensors, number of key-value pairs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace uma::cli {

inline constexpr std::size_t kGgufHeadBytes = 24;

// Why a file that begins with `head` (all of it, where the file is shorter than kGgufHeadBytes) is no model; empty: it may be
// one.
[[nodiscard]] std::string why_not_gguf(std::string_view head);

}  // namespace uma::cli
