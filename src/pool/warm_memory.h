// The memory of states that no context holds: reserved before they may grow into it, and given back only after they have left
// it. What is granted and unused is there for whoever asks. One thread at a time.
//
// Invariant: what the store may hold at rest is never more than bytes(). What is under way between contexts, memory and disk
// is reserved with the models' contexts; the store gives states no more than both. Where more is taken, by files that clients
// send and read, that is reserved too, as soon as it is seen.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "engine/worker_source.h"
#include "pool/memory_governor.h"

namespace uma::pool {

class WarmMemory {
 public:
  static constexpr char kName[] = "stored states";  // in claims and views
  static constexpr std::uint64_t kSpare = std::uint64_t{256}
                                          << 20;  // that they may grow by until the next follow_use(), or half

  // `governor` and `clock` outlive it.
  WarmMemory(MemoryGovernor& governor, const Clock& clock);
  // Before all below: whose states they are.
  void start(engine::WorkerHost& host) { host_ = &host; }

  [[nodiscard]] std::uint64_t bytes() const { return held_.bytes(); }
  // Beside bytes() so much is reserved for what is under way. Looks at what states really take.
  void update(std::uint64_t under_way_bytes);
  // Grants what the states may soon need, of what is left at most half; gives back what they do not.
  void follow_use();
  // Grants so much more, or what there is of it and they may ever take.
  void grow(std::uint64_t bytes);
  // Gives back what is granted and unused, up to `bytes`.
  void give_back_unused(std::uint64_t bytes);
  // Gives back so much, after states have gone to disk where that is necessary: waits for it, for seconds at most. False: they
  // have not left yet.
  bool give_back(std::uint64_t bytes);

 private:
  void limit(std::uint64_t at_rest);
  void correct();
  [[nodiscard]] std::uint64_t used() const;

  MemoryGovernor& governor_;
  const Clock& clock_;
  engine::WorkerHost* host_ = nullptr;
  Reservation held_;
  std::uint64_t limit_ = 0;  // at rest, as the store was told; less than held_ while states leave
  std::uint64_t under_way_ = 0;
};

}  // namespace uma::pool
