// Models and contexts on libllama. See model.h for what they do.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "llm/model.h"

namespace uma::llm {

struct LoadOptions {
  // Called from the loading thread with 0 to 1; returning false cancels the load.
  std::function<bool(double)> on_progress = nullptr;
  // False: the weights are read into memory of this model's own, instead of being mapped from the file and shared with every
  // other model loaded from it.
  bool shares_file = true;
  // False: the weights stay in the mapped file, in its order, on no device, so that none is read before it is computed with.
  bool reads_weights = true;
};

// Makes the library ready: loads its computing back ends and sends its log to ours. Idempotent; call before anything else here.
void init_llama();
// "libllama 0.7.0".
[[nodiscard]] std::string llama_version_text();

// Whether weights can lie where a CPU's matrix units (AMX) take them from.
[[nodiscard]] bool offers_amx();

// Names a file's contents, ModelFacts::identity without loading: XXH3-128 of its size, its first MiB (metadata) and 64 samples
// of 64 KiB spread over the rest. Errors: E_MODEL_002 with the file and the reason.
[[nodiscard]] Expected<std::string> model_identity(const std::string& path);

// Loads a GGUF file; blocks for as long as that takes. Errors: E_MODEL_002 with the file and the library's own reason.
[[nodiscard]] Expected<std::shared_ptr<const Model>> load_llama_model(const std::string& path, const LoadOptions& options);

}  // namespace uma::llm
