// `uma-cli run`, `load`, `stop` and `ps`: which models the daemon has in memory.
#pragma once

#include <string>

#include "uma-cli/client.h"
#include "uma-cli/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// Loads the model. A name that the daemon does not know, but that is OWNER/REPO[:FILE-OR-QUANT] or a URL, is pulled by the
// daemon first. Returns the model's name.
[[nodiscard]] Result<std::string> load_or_pull(Client& client, const std::string& model, Interrupts& interrupts);

Result<void> load_model(Client& client, const std::string& model);
Result<void> stop_model(Client& client, const std::string& model);
// Lists the models in memory.
Result<void> print_loaded(Client& client, Output& output, bool as_json);

}  // namespace uma::cli
