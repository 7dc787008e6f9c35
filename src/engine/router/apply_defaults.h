// Completes requests with the defaults of the model.
#pragma once

#include "core/model_defaults.h"
#include "core/request.h"

namespace uma::engine {

// Sets what the request leaves open. The system message is only for messages that begin a conversation: for those of a one-shot
// request, or of a response that continues nothing and has no instructions. Pure.
void apply_defaults(const ModelDefaults& defaults, GenerateRequest& request);

}  // namespace uma::engine
