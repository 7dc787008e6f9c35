// models.yaml: a map from the names of models to their settings.
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

// Parses the cards, in the order of the file. Errors: every mistake, each as "NAME:LINE:COLUMN: message"; `name` is the name of
// the file.
[[nodiscard]] std::expected<std::vector<ModelCard>, std::vector<std::string>> parse_cards(const std::string& yaml,
                                                                                          std::string_view name);

// Parses one card, the text below the name of a model in the file. Errors: every mistake, each as "line LINE: message".
[[nodiscard]] std::expected<ModelCard, std::vector<std::string>> parse_card(const std::string& name, const std::string& yaml);

}  // namespace uma::pool
