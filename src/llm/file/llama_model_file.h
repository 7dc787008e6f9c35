// Loads and frees the library's models. These, and the release of a file's mapped pages, exclude each other.
#pragma once

#include <memory>
#include <string>

#include <llama.h>

#include "llm/device/lost_devices.h"

namespace uma::llm {

// Weights on a lost device are freed, too: only the end of a computation can fail, and a model computes nothing.
struct FreeModel {
  void operator()(llama_model* model) const;
};
using LoadedModel = std::unique_ptr<llama_model, FreeModel>;

// Null: the library could not load it (LibraryLog::last_error). Throws what the library throws.
[[nodiscard]] LoadedModel load_model_file(const std::string& path, const llama_model_params& params);

// The devices that a model of load_model_file() was loaded on; empty: the CPU. Valid as long as the model. Any thread.
[[nodiscard]] DeviceList devices_under(const llama_model* model);

// Releases the mapped pages of a model's files, whose weights the library has copied into the layout of its kernels and does
// not read again; as soon as no other model is being loaded or freed: their mappings come and go, and the same addresses would
// be other memory. Until then the pages count as memory of this process.
void release_copied_weights(const std::string& path);

}  // namespace uma::llm
