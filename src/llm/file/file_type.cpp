#include "llm/file/file_type.h"

#include <array>
#include <cstddef>

namespace uma::llm {

std::string_view file_type_name(std::int64_t file_type) {
  // Missing names are of formats that the library has dropped.
  static constexpr std::array<std::string_view, 41> kNames = {
      "F32",    "F16",     "Q4_0",   "Q4_1",   "",       "",       "",       "Q8_0",  "Q5_0",    "Q5_1",   "Q2_K",
      "Q3_K_S", "Q3_K_M",  "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K",  "IQ2_XXS", "IQ2_XS", "Q2_K_S",
      "IQ3_XS", "IQ3_XXS", "IQ1_S",  "IQ4_NL", "IQ3_S",  "IQ3_M",  "IQ2_S",  "IQ2_M", "IQ4_XS",  "IQ1_M",  "BF16",
      "",       "",        "",       "TQ1_0",  "TQ2_0",  "MXFP4",  "NVFP4",  "Q1_0"};
  const auto index = static_cast<std::size_t>(file_type);
  return file_type < 0 || index >= kNames.size() ? std::string_view() : kNames[index];
}

}  // namespace uma::llm
