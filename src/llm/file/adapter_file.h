// Checks a file with a LoRA adapter before the library opens it: the library ends the process for a wrong type of a number, and
// computes with shapes that do not fit. A file may come from anywhere (gguf_header.h).
#pragma once

#include <cstdint>
#include <string>

#include "core/error.h"
#include "llm/file/gguf_header.h"

namespace uma::llm {

inline constexpr std::uint64_t kAdapterBytesMax = std::uint64_t{1} << 30;  // The tensors of an adapter.

// Reads the header of an adapter file and checks its tensors. Errors: as read_gguf_header(); also a file that is no adapter, or
// an unsupported one.
[[nodiscard]] Expected<GgufHeader> read_adapter_header(const std::string& path);
// Checks the tensors of a header that was read from elsewhere. Errors: as above, without the file's name.
[[nodiscard]] Expected<Unit> check_adapter_tensors(const GgufHeader& adapter);
// Whether an adapter may be loaded with a model. The library compares the shapes.
[[nodiscard]] Expected<Unit> check_adapter_fits(const GgufHeader& adapter, const GgufHeader& model);
// Reads the whole file and checks that its numbers are finite: others would spread to all computations of a context. Errors
// begin with the path.
[[nodiscard]] Expected<Unit> check_adapter_values(const std::string& path, const GgufHeader& adapter);

}  // namespace uma::llm
