// The block of one model in the text of models.yaml. People edit that file, too, so a change leaves every line of the other
// blocks as it is. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::pool {

// The model's card as a text of its own: its lines without their indentation, or what stands behind its name. Nullopt: the file
// has none. Errors: E_IO_001 if the file is no map of names, or has the card in a form that only a person can edit.
[[nodiscard]] Expected<std::optional<std::string>> card_in(const std::string& file, const std::string& name);

// The file's text with this card in place of the model's, or with a new block at its end. Requires: parse_card() accepts it.
// Errors: as above; E_PROTO_003 for characters that a block cannot have.
[[nodiscard]] Expected<std::string> with_card(const std::string& file, const std::string& name, std::string_view card);

}  // namespace uma::pool
