// The names of general.file_type in GGUF files, which says in what format most weights are stored.
#pragma once

#include <cstdint>
#include <string_view>

namespace uma::llm {

// The usual name, such as "Q4_K_M"; empty for an unknown number.
[[nodiscard]] std::string_view file_type_name(std::int64_t file_type);

}  // namespace uma::llm
