// Memory for stored states: the limit of all states together, and a supply of memory that has been used before. Saving a state
// into fresh memory takes ten times as long on a virtual machine (docs/decisions/0017), and streams wait meanwhile. Any thread.
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
  // Keeps at most this many unused bytes.
  explicit BytePool(std::uint64_t idle_bytes_max) : idle_bytes_max_(idle_bytes_max) {}

  // Sets the limit of all states together; unlimited at first.
  void limit(std::uint64_t bytes_max) { budget_->limit(bytes_max); }
  [[nodiscard]] std::uint64_t bytes_max() const { return budget_->bytes_max(); }
  [[nodiscard]] std::uint64_t bytes_reserved() const { return budget_->bytes_used(); }
  // Reserves bytes for a state until the reservation is destroyed; nullopt if they do not fit.
  [[nodiscard]] std::optional<ByteBudget::Share> reserve(std::uint64_t bytes) const;
  // Changes the size of `room`, which may be empty, even beyond the limit, because that memory is already in use.
  void correct(ByteBudget::Share& room, std::uint64_t bytes) const;
  // Size that take(bytes) really allocates. Sizes are a fifth apart, so that the memory of one state fits the next, slightly
  // longer one.
  [[nodiscard]] static std::size_t room_for(std::size_t bytes);

  // Sets the limit of unused bytes; frees the excess.
  void limit_idle(std::uint64_t bytes_max);
  [[nodiscard]] std::uint64_t idle_bytes() const;

  // Returns an empty buffer with capacity for `bytes`, from used memory that is at most half larger if possible. Frees unused
  // memory that would exceed the limit. New memory waits for all threads of the process that return theirs to the system.
  [[nodiscard]] Bytes take(std::size_t bytes);
  // Whether the next `count` calls of take() would find used memory.
  [[nodiscard]] bool has(std::size_t bytes, std::size_t count = 1) const;
  void give(Bytes bytes);
  // Whether that many unused bytes are within the limit.
  [[nodiscard]] bool can_keep(std::size_t bytes, std::size_t count) const;
  // New memory for give(); the caller has to write to it first.
  [[nodiscard]] static Bytes make(std::size_t bytes);

 private:
  using Idle = std::map<std::size_t, std::vector<Bytes>>;

  [[nodiscard]] Idle::const_iterator find(std::size_t bytes) const REQUIRES_LOCK(mutex_);
  void free_excess(std::uint64_t idle_bytes_max, std::vector<Bytes>& freed) REQUIRES_LOCK(mutex_);

  const std::shared_ptr<ByteBudget> budget_ = std::make_shared<ByteBudget>(std::numeric_limits<std::uint64_t>::max());
  mutable Mutex mutex_;
  std::uint64_t idle_bytes_max_ GUARDED_BY(mutex_);
  Idle idle_ GUARDED_BY(mutex_);  // Keyed by capacity.
  std::uint64_t idle_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace uma::kv
