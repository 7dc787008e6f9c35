// Shows and changes the cards of models.yaml, for an administrator. Blocks for the disk.
#pragma once

#include <optional>
#include <string>

#include "core/error.h"
#include "pool/model_registry.h"

namespace uma::pool {

// The model's card as models.yaml has it now; for a model that is only a file in a folder, the card that it could have. `model`
// is a name, no alias. Errors: E_MODEL_001; E_IO_001 if the file cannot be read or has a mistake.
[[nodiscard]] Expected<std::string> read_card(const ModelRegistry& registry, const std::string& model);

// Writes the model's card into models.yaml, where it takes effect when the registry is read again; all other lines stay. The
// whole file is examined before, as at the start. Returns the card as read_card() then does. Errors: as above; E_PROTO_003 with
// the line for a mistake in `card`, and if the model would not be the one of this card; E_SESSION_002 if read_card() would not
// return `was`, which is compared under the lock of the file. Nullopt: any card is replaced.
[[nodiscard]] Expected<std::string> store_card(const ModelRegistry& registry, const std::string& model, const std::string& card,
                                               const std::optional<std::string>& was = std::nullopt);

}  // namespace uma::pool
