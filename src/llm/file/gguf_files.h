// The files of a model: one GGUF file, or the parts of a split model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "llm/file/gguf_header.h"

namespace uma::llm {

// The file name of one part of a split model, as "model-00001-of-00003.gguf". parse_split_name() returns nothing for other
// names.
struct SplitName {
  std::string stem;  // "model", with its folder.
  std::int64_t index = 0;
  std::int64_t count = 0;
  [[nodiscard]] std::string file(std::int64_t of_index) const;
};
[[nodiscard]] std::optional<SplitName> parse_split_name(std::string_view path);
// All files of a model, by the name of one: the parts if that is the name of a part, else `path` alone. Looks at no file.
[[nodiscard]] std::vector<std::string> model_files(const std::string& path);

// Reads the header of a whole model: the file `path` and, for a split model, all other parts, whose weights are added. Errors:
// as read_gguf_header(); also a missing part, a part of another model, or a `path` that is not the first part.
[[nodiscard]] Expected<GgufHeader> read_model_header(const std::string& path);

}  // namespace uma::llm
