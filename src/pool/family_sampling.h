// The sampling that the makers of known families of models recommend, for files that do not state it themselves.
#pragma once

#include <optional>
#include <string_view>

#include "core/sampling_fields.h"
#include "llm/file/gguf_header.h"

namespace uma::pool {

struct FamilySampling {
  std::string_view family;  // Name, such as "Qwen3-Coder".
  SamplingValues values;
};

// Recognizes the family by the architecture and the names in the file. Nullopt: it is unknown, or a model that was not trained
// for conversations. Pure.
[[nodiscard]] std::optional<FamilySampling> family_sampling(const llm::GgufHeader& header);

}  // namespace uma::pool
