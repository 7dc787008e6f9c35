// Projector on libmtmd. Internal to llm, because it includes the library's header.
#pragma once

#include <memory>
#include <string>

#include <llama.h>

#include "llm/device/devices.h"
#include "llm/media/projector.h"

namespace uma::llm {

// Loads the file for `model`; the projector keeps the model's weights alive. Errors: E_MODEL_002 for a file that is not a
// projector, or that does not fit the model. On a machine with GPUs one of the model's devices encodes.
[[nodiscard]] Expected<std::unique_ptr<Projector>> load_llama_projector(const std::string& path,
                                                                        std::shared_ptr<llama_model> model,
                                                                        const ProjectorOptions& options,
                                                                        const DeviceOptions& devices);

}  // namespace uma::llm
