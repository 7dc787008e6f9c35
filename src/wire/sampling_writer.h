// Writes a model's defaults of sampling.
#pragma once

#include "core/session_info.h"
#include "json/json_writer.h"

namespace uma::wire {

// The field "sampling": {"temperature": {"value": 0.6, "source": "file"}, …}, as far as the model has defaults, with "family"
// if it is known.
void write_sampling_sources(json::ObjectWriter& parent, const ModelSampling& sampling);

// The field "params": every number, as a chat completion has it that states none.
void write_sampling_params(json::ObjectWriter& parent, const ModelSampling& sampling);

}  // namespace uma::wire
