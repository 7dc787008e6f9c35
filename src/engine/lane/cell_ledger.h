// Counts the KV cells that the slots of a unified context hold, because the library does not report them. A copied prefix
// shares its cells with its origin; a cell is free when no slot holds it. Owned by a lane.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <vector>

namespace uma::engine {

class CellLedger {
 public:
  explicit CellLedger(std::size_t slots) : held_(slots) {}

  // Adds `count` new cells to the end of the slot.
  void add(std::size_t slot, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      if (free_.empty()) {
        free_.push_back(static_cast<std::uint32_t>(holders_.size()));
        holders_.push_back(0);
      }
      ++holders_[free_.back()];
      held_[slot].push_back(free_.back());
      free_.pop_back();
      ++used_;
    }
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
      if (--holders_[cell] > 0) continue;
      free_.push_back(cell);
      --used_;
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
  std::vector<std::vector<std::uint32_t>> held_;  // Per slot, in order of position.
  std::vector<std::uint16_t> holders_;            // Per cell.
  std::vector<std::uint32_t> free_;
  std::int64_t used_ = 0;
};

}  // namespace uma::engine
