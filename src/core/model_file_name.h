// The names of models' files, which tell the pieces of a split model, and which projector belongs to which model. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace uma {

// The file name of one piece of a split model, as "model-00001-of-00003.gguf". parse_split_name() returns nothing for other
// names.
struct SplitName {
  std::string stem;  // "model", with its folder.
  std::int64_t index = 0;
  std::int64_t count = 0;
  [[nodiscard]] std::string file(std::int64_t of_index) const;
};
[[nodiscard]] std::optional<SplitName> parse_split_name(std::string_view path);

// All files of a model, by the name of one: the pieces if that is the name of a piece, else `path` alone. Looks at no file.
[[nodiscard]] std::vector<std::string> model_files(const std::string& path);

// The common part of the file names of a model and its projector: lower case, without "mmproj" and the quantization at the end.
// For example, "mmproj-Gemma-3-4b-it-F16" and "gemma-3-4b-it-Q4_K_M" both give "gemma-3-4b-it".
[[nodiscard]] std::string pairing_name(std::string_view stem);

}  // namespace uma
