// Ollama's store. A manifest names the parts of a model, each a file that is named by its hash.
#pragma once

#include <string>

#include "pool/stores/stored_model.h"

namespace uma::pool {

// Adds the models of the store in `folder`, with the system message and the parameters that they have there. The template is
// that of the GGUF file: Ollama's own templates are of another language.
void read_ollama_store(const std::string& folder, StoreContents& contents);

}  // namespace uma::pool
