// The library's batch for rows of an image. Internal to llm, because it includes the library's header.
#pragma once

#include <cstdint>
#include <vector>

#include <llama.h>

#include "llm/media/image_rows.h"

namespace uma::llm {

// Fills `arrays`, which have room for the rows, and returns them as a batch of embeddings, which is valid as long as the rows
// and `positions`. The first row is at `position` of the cache. `has_grids`: the model has positions of several dimensions,
// which stand in `positions` one dimension after the other.
[[nodiscard]] llama_batch image_batch(const ImageRows& rows, std::int32_t position, bool has_grids, const llama_batch& arrays,
                                      std::vector<llama_pos>& positions);

}  // namespace uma::llm
