// Knows which KV cells the slots of a unified context hold, because the library does not report them: like the library it gives
// new tokens the lowest free cells (docs/LIBLLAMA.md). A copied prefix shares its cells with its origin; a cell is free when no
// slot holds it. Owned by a lane.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <ranges>
#include <span>
#include <vector>

namespace uma::engine {

class CellLedger {
 public:
  explicit CellLedger(std::size_t slots) : held_(slots) {}

  // Adds `count` new cells to the end of the slot.
  void add(std::size_t slot, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) held_[slot].push_back(take_lowest());
  }

  // The empty slot `to` shares the first `count` cells of `from`.
  void share(std::size_t from, std::size_t to, std::size_t count) {
    held_[to].assign(held_[from].begin(), held_[from].begin() + static_cast<std::ptrdiff_t>(count));
    for (const std::uint32_t cell : held_[to]) ++holders_[cell];
  }

  // The slot keeps its first `count` cells.
  void keep(std::size_t slot, std::size_t count) {
    std::vector<std::uint32_t>& held = held_[slot];
    while (held.size() > count) {
      const std::uint32_t cell = held.back();
      held.pop_back();
      release(cell);
    }
  }

  // Removes the slot's cells [begin, end); the cells behind them move up.
  void remove(std::size_t slot, std::size_t begin, std::size_t end) {
    std::vector<std::uint32_t>& held = held_[slot];
    const std::vector<std::uint32_t> behind(held.begin() + static_cast<std::ptrdiff_t>(end), held.end());
    for (const std::uint32_t cell : behind) ++holders_[cell];
    keep(slot, begin);
    held.insert(held.end(), behind.begin(), behind.end());
  }

  // Cells [begin, end) of a slot.
  struct Range {
    std::size_t slot = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  // The last used cell and the slot's cells before it, at most `count`, as far as they lie behind the first used() cells and no
  // other slot shares them. Nullopt: no cell lies there, or the last one is shared.
  [[nodiscard]] std::optional<Range> last_cells(std::size_t count) const {
    if (top_ <= static_cast<std::size_t>(used_)) return std::nullopt;
    const auto slot = last_holder();
    if (!slot) return std::nullopt;
    const std::vector<std::uint32_t>& held = held_[*slot];
    const auto last = std::ranges::find(held | std::views::reverse, static_cast<std::uint32_t>(top_ - 1));
    const auto can_move = [&](std::uint32_t cell) { return cell >= static_cast<std::size_t>(used_) && holders_[cell] == 1; };
    const auto end = static_cast<std::size_t>(last.base() - held.begin());
    std::size_t begin = end;
    while (begin > 0 && end - begin < count && can_move(held[begin - 1])) --begin;
    return Range{.slot = *slot, .begin = begin, .end = end};
  }

  // The slot that alone holds the last used cell. Nullopt: no cell is used, or several slots hold it.
  [[nodiscard]] std::optional<std::size_t> last_holder() const {
    if (top_ == 0 || holders_[top_ - 1] != 1) return std::nullopt;
    const auto holds = [&](const std::vector<std::uint32_t>& held) {
      return std::ranges::contains(held, static_cast<std::uint32_t>(top_ - 1));
    };
    return static_cast<std::size_t>(std::ranges::find_if(held_, holds) - held_.begin());
  }

  // The cells of the range are given up, and the slot gets the lowest free ones in their place.
  void move_down(const Range& range) {
    const std::span<std::uint32_t> cells = std::span(held_[range.slot]).subspan(range.begin, range.end - range.begin);
    for (const std::uint32_t cell : cells) release(cell);
    for (std::uint32_t& cell : cells) cell = take_lowest();
  }

  // The number of cells up to the last used one, which the library reads for each row.
  [[nodiscard]] std::size_t top() const { return top_; }

  // The number of the slot's cells that no other slot shares.
  [[nodiscard]] std::size_t held_alone(std::size_t slot) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(held_[slot], [&](std::uint32_t cell) { return holders_[cell] == 1; }));
  }

  // Whether another slot shares a cell of this slot from `begin` on.
  [[nodiscard]] bool is_shared(std::size_t slot, std::size_t begin) const {
    return std::ranges::any_of(held_[slot] | std::views::drop(begin), [&](std::uint32_t cell) { return holders_[cell] > 1; });
  }

  // The first cells of a slot.
  struct Part {
    std::size_t slot = 0;
    std::size_t count = 0;
  };
  // The number of cells in these parts of slots, shared ones counted once.
  [[nodiscard]] std::int64_t held_together(std::span<const Part> parts) const {
    std::vector<bool> is_counted(holders_.size());
    std::int64_t count = 0;
    for (const Part& part : parts) {
      for (const std::uint32_t cell : held_[part.slot] | std::views::take(part.count)) {
        if (!is_counted[cell]) ++count;
        is_counted[cell] = true;
      }
    }
    return count;
  }

  [[nodiscard]] std::size_t held(std::size_t slot) const { return held_[slot].size(); }
  [[nodiscard]] std::int64_t used() const { return used_; }

 private:
  std::uint32_t take_lowest() {
    if (free_.empty()) {
      free_.push(static_cast<std::uint32_t>(holders_.size()));
      holders_.push_back(0);
    }
    const std::uint32_t cell = free_.top();
    free_.pop();
    ++holders_[cell];
    ++used_;
    top_ = std::max<std::size_t>(top_, cell + 1);
    return cell;
  }

  void release(std::uint32_t cell) {
    if (--holders_[cell] > 0) return;
    free_.push(cell);
    --used_;
    while (top_ > 0 && holders_[top_ - 1] == 0) --top_;
  }

  std::vector<std::vector<std::uint32_t>> held_;  // Per slot, in order of position.
  std::vector<std::uint16_t> holders_;            // Per cell.
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> free_;
  std::int64_t used_ = 0;
  std::size_t top_ = 0;
};

}  // namespace uma::engine
