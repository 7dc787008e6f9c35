// Reads the head of a safetensors file: the names, types, sizes and places of its tensors. The bytes may come from anywhere:
// the result is always a value or an error with the reason, and at most kSafetensorsHeadBytesMax bytes are read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"
#include "llm/file/gguf_header.h"

namespace uma::llm {

inline constexpr std::uint64_t kSafetensorsHeadBytesMax = 8ul << 20;

[[nodiscard]] bool is_safetensors_name(std::string_view path);

// Reads a header like that of GGUF: `tensors` with their sizes in the library's order and `data_offset`; the architecture
// kDiffusionArchitecture if it has the network of Stable Diffusion, else none. Errors: E_MODEL_002 without the file's name.
[[nodiscard]] Expected<GgufHeader> read_safetensors_header(std::uint64_t file_bytes, const ReadAt& read);
// Reads a regular file. Errors as those of read_gguf_header().
[[nodiscard]] Expected<GgufHeader> read_safetensors_header(const std::string& path);

}  // namespace uma::llm
