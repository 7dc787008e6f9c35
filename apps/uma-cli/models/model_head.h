// The first bytes of a model's file. GGUF: magic, version, number of tensors, number of key-value pairs. Safetensors: the
// length of a JSON object, and its beginning.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace uma::cli {

inline constexpr std::size_t kModelHeadBytes = 24;

// Explains why a file that begins with `head` is no model; empty: it may be one. `head` is the whole file if that is shorter
// than kModelHeadBytes.
[[nodiscard]] std::string why_not_model(std::string_view head);

}  // namespace uma::cli
