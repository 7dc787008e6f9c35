#include "llm/media/image_batch.h"

#include <cstddef>

namespace uma::llm {

llama_batch image_batch(const ImageRows& rows, std::int32_t position, bool has_grids, const llama_batch& arrays,
                        std::vector<llama_pos>& positions) {
  const std::size_t count = rows.tokens.size();
  const std::size_t dimensions = has_grids ? GridPlace{}.size() : 1;
  positions.resize(count * dimensions);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t dimension = 0; dimension < dimensions; ++dimension) {
      positions[dimension * count + i] = rows.grid.places.empty()
                                             ? position + static_cast<std::int32_t>(i)
                                             : rows.grid.places[i][dimension] + rows.grid.moves[dimension] * position;
    }
  }
  llama_batch batch = arrays;
  batch.n_tokens = static_cast<std::int32_t>(count);
  batch.token = nullptr;  // The library refuses a batch with both tokens and embeddings.
  batch.embd = const_cast<float*>(rows.values.data());
  batch.pos = positions.data();
  for (std::size_t i = 0; i < count; ++i) {
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = rows.sequence;
    batch.logits[i] = static_cast<std::int8_t>(rows.wants_logits && i + 1 == count);
  }
  return batch;
}

}  // namespace uma::llm
