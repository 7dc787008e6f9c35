// The header of a model of one GGUF file or of several.
#pragma once

#include <string>

#include "core/error.h"
#include "llm/file/gguf_header.h"

namespace uma::llm {

// Reads the header of a whole model: the file `path` and, for a split model, all other parts, whose weights are added. Errors:
// as read_gguf_header(); also a missing part, a part of another model, or a `path` that is not the first part.
[[nodiscard]] Expected<GgufHeader> read_model_header(const std::string& path);

}  // namespace uma::llm
