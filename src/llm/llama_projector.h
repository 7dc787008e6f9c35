// Projector on libmtmd. Internal to llm: includes the library's header.
#pragma once

#include <memory>
#include <string>

#include <llama.h>

#include "llm/projector.h"

namespace uma::llm {

// Loads the file beside `model`, whose weights the projector keeps alive. Errors: E_MODEL_002 for a file that is none, that
// does not fit the model, or whose images need positions of more than one dimension (M-RoPE).
[[nodiscard]] Expected<std::unique_ptr<Projector>> load_llama_projector(const std::string& path,
                                                                        std::shared_ptr<llama_model> model,
                                                                        std::int32_t threads);

}  // namespace uma::llm
