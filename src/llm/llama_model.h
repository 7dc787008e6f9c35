// Models and contexts on libllama. model.h documents the interfaces.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llm/adapters.h"
#include "llm/device/devices.h"
#include "llm/model.h"

namespace uma::llm {

struct LoadOptions {
  // Called on the loading thread with 0 to 1. Returning false cancels the load.
  std::function<bool(double)> on_progress = nullptr;
  // True: the weights are mapped from the file and shared with every other model loaded from it. False: they are read into
  // memory of this model.
  bool shares_file = true;
  // False: the weights stay in the mapped file, in its order and on no device. Each weight is read by its first computation.
  bool reads_weights = true;
  DeviceOptions devices{};
  // LoRA adapters to load with the model. One that cannot be loaded is left out (AdapterFacts::problem).
  std::vector<AdapterSource> adapters{};
  // How the model makes a vector of a text, whatever the file says; nullopt: as the file says.
  std::optional<Pooling> pooling{};
};

// Initialises the library: loads its compute back ends and redirects its log to ours. Idempotent. Call it before every other
// function here.
void init_llama();
// For example "libllama 0.7.0".
[[nodiscard]] std::string llama_version_text();
// The instructions that the library's back ends use on this machine, as "CPU : SSE3 = 1 | AVX = 1", and the devices beside the
// CPU. Speeds that were measured with others do not hold.
[[nodiscard]] std::string backends_text();

// Whether weights can be stored in the layout of a CPU's matrix units (AMX).
[[nodiscard]] bool offers_amx();

// Identifies a file's contents without loading it (ModelFacts::identity): XXH3-128 of its size, its first MiB (metadata) and 64
// samples of 64 KiB spread over the rest. Errors: E_MODEL_002 with the file and the reason.
[[nodiscard]] Expected<std::string> model_identity(const std::string& path);

// Loads a GGUF file and its adapters; blocks until they are loaded. Errors: E_MODEL_002 with the file and the library's reason.
[[nodiscard]] Expected<std::shared_ptr<const Model>> load_llama_model(const std::string& path, const LoadOptions& options);

}  // namespace uma::llm
