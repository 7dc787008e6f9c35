// The adapters of a request.
#pragma once

#include <string_view>

#include "core/error.h"
#include "core/request.h"
#include "engine/model/model_loader.h"
#include "llm/adapters.h"
#include "llm/model.h"

namespace uma::engine {

// The adapter that a client means by `asked`, a name of `model` ("MODEL:ADAPTER"); empty: none.
[[nodiscard]] std::string_view named_adapter(const ModelLoader& source, std::string_view model, std::string_view asked);

// The set of the adapters in GenerateOptions::adapters, and of `named`, which the model's name in the request means (empty:
// none). `model`: the model's name, for errors. Errors: E_PROTO_003 for an adapter that the model does not have, or that is
// chosen twice; E_MODEL_002 for one that could not be loaded.
[[nodiscard]] Expected<llm::AdapterSet> choose_adapters(const GenerateOptions& options, std::string_view named,
                                                        std::string_view model, const llm::ModelFacts& facts);

}  // namespace uma::engine
