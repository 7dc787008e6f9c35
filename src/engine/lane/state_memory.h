// The memory that a lane's states are saved in, and their families in the store: one for each set of adapters, because KV that
// was computed with one set is useless with another. Owned by the lane's thread, except for base_family().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "kv/byte_pool.h"
#include "kv/state_store.h"
#include "llm/adapters.h"

namespace uma::engine {

class StateMemory {
 public:
  // The states of further sets are not stored: clients choose the scales, so the number of sets has no other limit.
  static constexpr std::size_t kSetsMax = 256;

  // `identity`: llm::Context::state_identity(). The store outlives the object; null: there is none.
  StateMemory(kv::StateStore* store, const std::string& identity, bool can_cut)
      : store_(store), identity_(identity), can_cut_(can_cut), base_(store == nullptr ? 0 : store->join(identity, can_cut)) {}

  // The store's pool, if there is a store.
  [[nodiscard]] kv::BytePool& pool() { return store_ != nullptr ? store_->pool() : own_pool_; }
  // Reserves memory for a state; less valuable states are evicted for it. Empty: there is not enough memory, or not yet.
  [[nodiscard]] std::optional<ByteBudget::Share> reserve(std::uint64_t bytes, kv::GiveWay how) {
    return store_ != nullptr ? store_->make_room(bytes, how) : own_pool_.reserve(bytes);
  }
  // The family of states without adapters; any thread.
  [[nodiscard]] kv::FamilyId base_family() const { return base_; }
  // The family of states that were computed with `adapters`; 0: they are not stored.
  [[nodiscard]] kv::FamilyId family_of(const llm::AdapterSet& adapters) {
    if (adapters.is_empty() || store_ == nullptr) return base_;
    if (const auto known = by_set_.find(adapters.identity); known != by_set_.end()) return known->second;
    if (by_set_.size() == kSetsMax) return 0;
    return by_set_[adapters.identity] = store_->join(identity_ + adapters.identity, can_cut_);
  }

 private:
  kv::StateStore* const store_;
  kv::BytePool own_pool_{0};
  const std::string identity_;
  const bool can_cut_;
  const kv::FamilyId base_;
  std::map<std::string, kv::FamilyId> by_set_;
};

}  // namespace uma::engine
