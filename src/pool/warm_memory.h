// The memory of stored states outside of contexts. It is reserved before the states grow and returned after they have left; a
// granted but unused part is available to other claims. One thread at a time.
//
// Invariant: the store's limit at rest is never above bytes(). Transfers between contexts, memory and disk are reserved with
// the models' contexts, and the store's limit covers both. Session files of clients can take more memory, which is reserved as
// soon as it is seen.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "engine/model/model_loader.h"
#include "pool/memory_governor.h"

namespace uma::pool {

class WarmMemory {
 public:
  static constexpr char kName[] = "stored states";  // Name in claims and views.
  // Most that the states may grow until the next follow_use(), or half of the memory left.
  static constexpr std::uint64_t kSpare = std::uint64_t{256} << 20;

  // `governor` and `clock` outlive it.
  WarmMemory(MemoryGovernor& governor, const Clock& clock);
  // Called first; `host` owns the states.
  void start(engine::LoaderDelegate& host) { host_ = &host; }

  [[nodiscard]] std::uint64_t bytes() const { return held_.bytes(); }
  // Adjusts to the memory that states really take. `under_way_bytes` is reserved for transfers in addition to bytes().
  void update(std::uint64_t under_way_bytes);
  // Grants the memory that the states may soon need, at most half of what is left, and returns memory that they do not need.
  void follow_use();
  // Grants `bytes` more, or less if memory or the states' limit does not allow it.
  void grow(std::uint64_t bytes);
  // Returns up to `bytes` of granted, but unused memory.
  void give_back_unused(std::uint64_t bytes);
  // Returns `bytes`, after moving states to disk if necessary. Waits for that, a few seconds at most. Returns false if they
  // have not left yet.
  bool give_back(std::uint64_t bytes);

 private:
  void limit(std::uint64_t at_rest);
  void correct();
  [[nodiscard]] std::uint64_t used() const;

  MemoryGovernor& governor_;
  const Clock& clock_;
  engine::LoaderDelegate* host_ = nullptr;
  Reservation held_;
  std::uint64_t limit_ = 0;  // Limit at rest that the store was given; less than held_ while states leave.
  std::uint64_t under_way_ = 0;
};

}  // namespace uma::pool
