// Memory for states: how much all of them may take, and that which has been used before. Saving a state into memory that the
// system has to provide first takes ten times as long where the machine is a virtual one (docs/decisions/0017), and streams
// wait for it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/byte_budget.h"
#include "base/bytes.h"
#include "base/mutex.h"

namespace uma::kv {

class BytePool {
 public:
  // Keeps at most so many bytes that nobody uses.
  explicit BytePool(std::uint64_t idle_bytes_max) : idle_bytes_max_(idle_bytes_max) {}

  // What all states may take from now on; without a limit at first.
  void limit(std::uint64_t bytes_max) { budget_->limit(bytes_max); }
  [[nodiscard]] std::uint64_t bytes_max() const { return budget_->bytes_max(); }
  [[nodiscard]] std::uint64_t bytes_reserved() const { return budget_->bytes_used(); }
  // The right to take so much for a state, which lives as long as the state does; empty: the others leave less.
  [[nodiscard]] std::optional<ByteBudget::Share> reserve(std::uint64_t bytes) const;
  // `room`, which may be of nothing, is for so much from now on, whether the others leave it or not: it is held already.
  void correct(ByteBudget::Share& room, std::uint64_t bytes) const;
  // What take(bytes) really takes: sizes are a fifth apart, so that what one state leaves fits the next, a little longer one.
  [[nodiscard]] static std::size_t room_for(std::size_t bytes);

  // From now on; what is too much is freed.
  void limit_idle(std::uint64_t bytes_max);
  [[nodiscard]] std::uint64_t idle_bytes() const;

  // Empty, with room for `bytes`: memory that was used before where there is some. What would be too much beside it is freed.
  [[nodiscard]] Bytes take(std::size_t bytes);
  // Whether the next `count` of take() would find some.
  [[nodiscard]] bool has(std::size_t bytes, std::size_t count = 1) const;
  void give(Bytes bytes);
  // Whether it may keep so many.
  [[nodiscard]] bool can_keep(std::size_t bytes, std::size_t count) const;
  // New memory for give(), which its owner has to use first.
  [[nodiscard]] static Bytes make(std::size_t bytes);

 private:
  void free_excess(std::uint64_t idle_bytes_max, std::vector<Bytes>& freed) REQUIRES_LOCK(mutex_);

  const std::shared_ptr<ByteBudget> budget_ = std::make_shared<ByteBudget>(std::numeric_limits<std::uint64_t>::max());
  mutable Mutex mutex_;
  std::uint64_t idle_bytes_max_ GUARDED_BY(mutex_);
  std::map<std::size_t, std::vector<Bytes>> idle_ GUARDED_BY(mutex_);  // by room
  std::uint64_t idle_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace uma::kv
