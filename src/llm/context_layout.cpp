#include "llm/context_layout.h"

#include <algorithm>

namespace uma::llm {
namespace {

// The smallest part of explicitly given cells that is worth a split.
constexpr std::int64_t kSplitPartMin = 2048;
constexpr std::int64_t kCellsMax = std::int64_t{1} << 24;

// The cells that free memory allows; at least those of one default window.
std::int64_t affordable_cells(std::int64_t window, const LayoutFacts& facts) {
  if (facts.memory_available == 0 || facts.kv_bytes_per_token == 0) return kCellsMax;
  const auto cells_in = [&](std::uint64_t bytes) {
    return static_cast<std::int64_t>(std::min<std::uint64_t>(bytes / facts.kv_bytes_per_token, kCellsMax));
  };
  const std::int64_t quarter = cells_in(facts.memory_available / 4);
  const std::int64_t half = cells_in(facts.memory_available / 2);
  const std::int64_t wanted = std::min<std::int64_t>(window, kAgentSequenceCells);
  return std::max({quarter, std::min(half, wanted), std::min<std::int64_t>(window, kDefaultSequenceCells)});
}

}  // namespace

ContextLayout choose_layout(const ContextOptions& options, const LayoutFacts& facts) {
  const std::int64_t train = facts.train_tokens > 0 ? facts.train_tokens : kDefaultSequenceCells;
  const std::int64_t sequences = std::max(1, options.sequences);
  const bool is_window_given = options.sequence_cells > 0;
  const std::int64_t window = is_window_given ? std::min<std::int64_t>(options.sequence_cells, train) : train;

  std::int64_t cells = options.cells;
  std::int64_t part = cells / sequences;  // What a sequence has at least if the cells are split.
  bool is_split = options.layout == KvLayout::split;
  if (cells > 0) {
    if (options.layout == KvLayout::automatic) is_split = part >= (is_window_given ? window : std::min(train, kSplitPartMin));
  } else {
    const std::int64_t usual = std::min<std::int64_t>(window, kDefaultSequenceCells);
    cells = std::min(std::max(window, usual * sequences), affordable_cells(window, facts));
    if (is_window_given) cells = std::max(cells, window);
    if (is_split && is_window_given) cells = window * sequences;
    part = cells / sequences;
    if (options.layout == KvLayout::automatic) is_split = part >= window;
  }
  return {.cells = static_cast<std::int32_t>(cells),
          .sequence_cells = static_cast<std::int32_t>(std::min(is_split ? part : cells, window)),
          .is_unified = !is_split};
}

}  // namespace uma::llm
