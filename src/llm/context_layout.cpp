#include "llm/context_layout.h"

#include <algorithm>

namespace uma::llm {
namespace {

// The smallest part that is worth a split where no window is given.
constexpr std::int64_t kSplitPartMin = 2048;
constexpr std::int64_t kCellsMax = std::int64_t{1} << 24;

// The cells that a quarter of the free memory has.
std::int64_t affordable_cells(const LayoutFacts& facts) {
  if (facts.memory_available == 0 || facts.kv_bytes_per_token == 0) return kCellsMax;
  return static_cast<std::int64_t>(std::min<std::uint64_t>(facts.memory_available / 4 / facts.kv_bytes_per_token, kCellsMax));
}

}  // namespace

ContextLayout choose_layout(const ContextOptions& options, const LayoutFacts& facts) {
  const std::int64_t train = facts.train_tokens > 0 ? facts.train_tokens : kDefaultSequenceCells;
  const std::int64_t sequences = std::max(1, options.sequences);
  const bool is_window_given = options.sequence_cells > 0;
  const std::int64_t window = is_window_given ? std::min<std::int64_t>(options.sequence_cells, train) : train;

  bool is_split = options.layout == KvLayout::split;
  std::int64_t cells = options.cells;
  if (cells <= 0) {
    const std::int64_t usual = std::min<std::int64_t>(window, kDefaultSequenceCells);
    cells = std::max(std::min(usual * sequences, affordable_cells(facts)), is_window_given ? window : usual);
    if (is_split && is_window_given) cells = window * sequences;
  }
  const std::int64_t part = cells / sequences;  // What a sequence has at least if the cells are split.
  if (options.layout == KvLayout::automatic) is_split = part >= (is_window_given ? window : std::min(train, kSplitPartMin));
  return {.cells = static_cast<std::int32_t>(cells),
          .sequence_cells = static_cast<std::int32_t>(std::min(is_split ? part : cells, window)),
          .is_unified = !is_split};
}

}  // namespace uma::llm
