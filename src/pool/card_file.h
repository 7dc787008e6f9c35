// models.yaml: a map from the name of a model to what is said of it.
//
//   assistant:
//     path: assistant-q4.gguf
//     aliases: [gpt-4o, default]
//     pin: true
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "pool/model_card.h"

namespace uma::pool {

// In the order of the file. Errors: every mistake, each as "NAME:LINE:COLUMN: what"; `name` is the file's.
[[nodiscard]] std::expected<std::vector<ModelCard>, std::vector<std::string>> parse_cards(const std::string& yaml,
                                                                                          std::string_view name);

}  // namespace uma::pool
