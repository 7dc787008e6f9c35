// The stores of other programs on this machine, and the models in them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pool/stores/stored_model.h"

namespace uma::pool {

// Folders of each program's stores; they need not exist.
struct StoreFolders {
  std::vector<std::string> hub{};        // Caches of huggingface_hub: models--OWNER--NAME/snapshots/COMMIT/FILE.
  std::vector<std::string> lm_studio{};  // OWNER/NAME/FILE.
  std::vector<std::string> llama_cpp{};  // Files of all repositories together: OWNER_NAME_FILE.
  std::vector<std::string> ollama{};     // manifests/HOST/OWNER/NAME/TAG, and blobs.
};

// Where the programs keep their models. `variable` gives an environment variable's value, empty if it is not set.
[[nodiscard]] StoreFolders usual_stores(const std::function<std::string(const char*)>& variable);

// Reads what is stored now. Looks at folders and at Ollama's manifests, not into models.
[[nodiscard]] StoreContents read_stores(const StoreFolders& stores);

}  // namespace uma::pool
