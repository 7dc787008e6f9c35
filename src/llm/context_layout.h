// How many KV cells a context gets, and how its sequences share them. Pure.
#pragma once

#include <cstdint>

#include "llm/model.h"

namespace uma::llm {

// The cells of a sequence where nothing states the window.
inline constexpr std::int32_t kDefaultSequenceCells = 4096;

// What the choice depends on. 0: unknown.
struct LayoutFacts {
  std::int64_t train_tokens = 0;         // The context that the model was trained with.
  std::uint64_t kv_bytes_per_token = 0;  // Of all layers.
  std::uint64_t memory_available = 0;    // Free memory of the machine in bytes.
};

struct ContextLayout {
  std::int32_t cells = 0;           // Of all sequences together, without a spare one.
  std::int32_t sequence_cells = 0;  // Limit of one sequence.
  bool is_unified = false;
};

// The cells are ContextOptions::cells; by default 4096 for each sequence, or fewer if the model was trained for fewer, within a
// quarter of the free memory. A sequence may be as long as ContextOptions::sequence_cells, for which there are then enough
// cells; by default as its cells allow. They are split if every sequence gets its window, or 2048 cells where none is given,
// which is faster on a CPU (docs/decisions/0004), else all sequences share them.
[[nodiscard]] ContextLayout choose_layout(const ContextOptions& options, const LayoutFacts& facts);

}  // namespace uma::llm
