#include "llm/context_layout.h"

#include <algorithm>

namespace uma::llm {
namespace {

constexpr std::int64_t kSlotCells = 4096;     // The usual cells of a sequence.
constexpr std::int64_t kSplitPartMin = 2048;  // The smallest part that is worth a split where only the cells are given.
constexpr std::int32_t kCellsMin = 4096;      // Cells of all sequences, where nothing is given and memory is short.
constexpr std::int64_t kTrainUnknown = 4096;  // Window of a model that does not state what it was trained for.
constexpr std::int64_t kCellsMax = std::int64_t{1} << 24;

std::int64_t affordable_cells(const LayoutFacts& facts) {
  if (!facts.memory || facts.kv_bytes_per_token == 0) return kCellsMax;
  return static_cast<std::int64_t>(std::min<std::uint64_t>(*facts.memory / 4 / facts.kv_bytes_per_token, kCellsMax));
}

}  // namespace

ContextLayout choose_layout(const ContextOptions& options, const LayoutFacts& facts) {
  const std::int64_t train = facts.train_tokens > 0 ? facts.train_tokens : kTrainUnknown;
  const std::int64_t sequences = std::max(1, options.sequences);
  const bool is_window_given = options.sequence_cells > 0;
  const bool are_cells_given = options.cells > 0;
  const std::int64_t window = is_window_given ? std::min<std::int64_t>(options.sequence_cells, train) : train;

  bool is_split = options.layout == KvLayout::split;
  std::int64_t cells = options.cells;
  if (!are_cells_given) {
    const std::int64_t affordable = affordable_cells(facts);
    const std::int64_t usual = std::min(window, kSlotCells);
    const std::int64_t of_one = is_window_given ? window
                                : is_split      ? usual
                                                : std::min(window, std::max<std::int64_t>(affordable, kLongWindow));
    cells = std::max(std::min(usual * sequences, affordable), of_one);
    // Cells that take no memory are not shared.
    if ((is_split && is_window_given) || facts.kv_bytes_per_token == 0) cells = std::min(window * sequences, kCellsMax);
  }
  const std::int64_t part = cells / sequences;  // Cells that a sequence has at least if they are split.
  if (options.layout == KvLayout::automatic) {
    is_split = part >= (are_cells_given && !is_window_given ? std::min(train, kSplitPartMin) : window);
  }
  return {.cells = static_cast<std::int32_t>(cells),
          .sequence_cells = static_cast<std::int32_t>(std::min(is_split ? part : cells, window)),
          .is_unified = !is_split};
}

std::optional<ContextOptions> with_half_the_cells(ContextOptions options) {
  if (options.cells / 2 < kCellsMin) return std::nullopt;
  const bool is_long = options.cells > kLongWindow;
  options.cells = is_long ? std::max(options.cells / 2, kLongWindow) : options.cells / 2;
  options.sequence_cells = std::min(options.sequence_cells, options.cells);
  options.layout = KvLayout::unified;
  return options;
}

}  // namespace uma::llm
