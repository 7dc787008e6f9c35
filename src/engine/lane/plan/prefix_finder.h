// Finds the longest cached or stored prefix of a sequence's chain that is faster to bring in than to compute. Owned by the
// lane's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/ids.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/run/reuse_check.h"
#include "kv/snapshot.h"
#include "kv/state_store.h"

namespace uma::engine {

// A cached or stored prefix of a chain.
struct PrefixHit {
  enum class Kind : std::uint8_t { none, slot, snapshot, store } kind = Kind::none;
  std::int32_t tokens_count = 0;  // Tokens of the chain that it covers.
  std::size_t slot = 0;           // For kind `slot`.
  bool takes_over = false;        // For kind `slot`: the sequence gets that slot, and the rest of its tokens is lost.
  kv::StoredMatch stored{};       // For kind `store`; for kind `snapshot` only its length and is_own.
  kv::SnapshotPtr held{};         // For kind `store`; null: the state is on disk.

  [[nodiscard]] bool is_slot(std::size_t index) const { return kind == Kind::slot && slot == index; }
  [[nodiscard]] bool is_on_disk() const { return kind == Kind::store && held == nullptr; }
  [[nodiscard]] bool is_loaded() const { return kind == Kind::snapshot || kind == Kind::store; }
};

class PrefixFinder {
 public:
  PrefixFinder(const LaneParts& parts, const ReuseCheck& reuse_check) : parts_(parts), reuse_check_(reuse_check) {}

  // The longest hit that takes less time to bring in than to compute. The last token of a chain is always computed, because its
  // logits are needed.
  [[nodiscard]] PrefixHit find(const Sequence& sequence) const;
  // A running request that computes a prompt with a common prefix, if waiting for it is faster than computing the tokens beyond
  // `hit`; empty: there is none.
  [[nodiscard]] RequestId find_running(const Sequence& sequence, const PrefixHit& hit) const;

 private:
  class Search;
  [[nodiscard]] bool may_share(const Sequence& sequence, const Slot& slot) const;
  [[nodiscard]] bool may_take(std::size_t index, std::int32_t count) const;
  [[nodiscard]] bool can_copy(std::size_t index, std::int32_t lost) const;
  [[nodiscard]] double copy_ms(std::size_t tokens) const;
  void consider_own_slot(Search& search) const;
  [[nodiscard]] PrefixHit find_stored(const Search& search) const;
  void consider_stored(Search& search, PrefixHit hit) const;
  void consider_other_slots(Search& search) const;

  const LaneParts& parts_;
  const ReuseCheck& reuse_check_;
};

}  // namespace uma::engine
