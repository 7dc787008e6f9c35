// How many KV cells a context gets, and how its sequences share them. Pure.
#pragma once

#include <cstdint>

#include "llm/model.h"

namespace uma::llm {

// The window of a conversation where nothing states the model's, and what each sequence has at least if many share the memory.
inline constexpr std::int32_t kDefaultSequenceCells = 4096;
// A window that coding agents need: if memory is short, more of it is used to reach this one.
inline constexpr std::int32_t kAgentSequenceCells = 32'768;

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

// A sequence may be as long as ContextOptions::sequence_cells, by default as the model was trained for. The cells are
// ContextOptions::cells; by default as many as one such sequence needs, or 4096 for each sequence if that is more, within a
// quarter of the free memory, or half of it up to a window of 32,768. They are split if every sequence gets its window, which
// is faster on a CPU (docs/decisions/0004), else all sequences share them.
[[nodiscard]] ContextLayout choose_layout(const ContextOptions& options, const LayoutFacts& facts);

}  // namespace uma::llm
