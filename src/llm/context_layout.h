// How many KV cells a context gets, and how its sequences share them. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "llm/model.h"

namespace uma::llm {

// A window that no memory limits: what a coding agent needs for its instructions and some turns.
inline constexpr std::int32_t kLongWindow = 32'768;

// The facts that decide the layout of a context.
struct LayoutFacts {
  std::int64_t train_tokens = 0;         // The tokens that the model supports (supported_tokens()); 0: unknown.
  std::uint64_t kv_bytes_per_token = 0;  // All layers together; 0: a cell takes no memory.
  std::optional<std::uint64_t> memory;   // Bytes of which a quarter is for the cells; absent: no limit.
};

struct ContextLayout {
  std::int32_t cells = 0;           // All sequences together, without a spare one.
  std::int32_t sequence_cells = 0;  // Limit of one sequence.
  bool is_unified = false;
};

// The window, the most tokens of a sequence, is ContextOptions::sequence_cells, by default what the model was trained for. The
// cells are ContextOptions::cells; by default one window, or 4096 for each sequence if that is more and a quarter of the memory
// has them. A window that is not given may be shorter, as a quarter of the memory has no more, but not shorter than
// kLongWindow. The cells are split if every sequence gets its window, or 2048 where only the cells are given, else all
// sequences share them (docs/decisions/0051).
[[nodiscard]] ContextLayout choose_layout(const ContextOptions& options, const LayoutFacts& facts);

// Half of the cells, but kLongWindow before fewer, shared by all sequences, for options whose layout is chosen; absent: they
// are few already.
[[nodiscard]] std::optional<ContextOptions> with_half_the_cells(ContextOptions options);

}  // namespace uma::llm
