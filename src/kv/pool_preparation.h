// Prepares the memory that states are expected to need: fresh memory is slow to write to for the first time, and keeps a core
// busy while it is, so it is written to in small steps before it is needed. Owned by one thread.
#pragma once

#include <cstddef>

#include "base/bytes.h"
#include "base/clock.h"
#include "kv/byte_pool.h"

namespace uma::kv {

class PoolPreparation {
 public:
  // `pool` outlives the object.
  explicit PoolPreparation(BytePool& pool) : pool_(pool) {}

  // Announces `count` pieces of `bytes`, in place of what was announced before. While a piece is wanted, nothing is announced.
  void expect(std::size_t bytes, std::size_t count, TimePoint now);
  // Somebody waits for a piece of `bytes`: its steps are without pauses.
  void want(std::size_t bytes, TimePoint now);
  // Writes to a little more memory; the next step is due after `pause`. `has_room`: a piece of bytes() may be kept.
  void step(bool has_room, TimePoint now, Duration pause);

  // Size of the announced pieces; 0: nothing is announced.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  // When the next step is due; kNever: no step.
  [[nodiscard]] TimePoint next() const { return next_; }

 private:
  void begin(std::size_t bytes, std::size_t count, TimePoint now);
  void stop();

  BytePool& pool_;
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
  bool is_wanted_ = false;
  Bytes memory_;            // The piece that is being written to.
  ByteBudget::Share room_;  // The reservation of memory_.
  std::size_t used_ = 0;    // Bytes of memory_ that were written to.
  TimePoint next_ = kNever;
};

}  // namespace uma::kv
