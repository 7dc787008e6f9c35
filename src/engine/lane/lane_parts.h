// The objects that the parts of a lane share. Each part owns one thing; all use these. The references outlive the parts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "engine/lane/cell_ledger.h"
#include "engine/lane/lane_costs.h"
#include "engine/lane/lane_options.h"
#include "engine/lane/lane_stats.h"
#include "engine/lane/sequence.h"
#include "engine/lane/slot_table.h"
#include "engine/lane/state_memory.h"
#include "engine/lane/tenant_shares.h"
#include "kv/state_store.h"
#include "llm/model.h"

namespace uma::engine {

constexpr std::int32_t kReusedMin = 16;  // In tokens: a shorter prefix is not worth a copy.

struct LaneParts {
  const LaneOptions& options;  // With stats.
  const Clock& clock;
  llm::Context& context;
  LaneCosts& costs;
  TenantShares& tenants;
  StateMemory& states;
  SequenceList& sequences;
  SlotTable& slots;

  [[nodiscard]] LaneStats& stats() const { return *options.stats; }
  [[nodiscard]] const llm::ContextShape& shape() const { return context.shape(); }
  [[nodiscard]] const Slot& slot_of(const Sequence& sequence) const { return slots[sequence.slot]; }
  // The identity of states that were computed with `adapters`.
  [[nodiscard]] std::string identity_of(const llm::AdapterSet& adapters) const {
    return context.state_identity() + adapters.identity;
  }
  // The number of cached tokens of the sequence's chain.
  [[nodiscard]] std::int32_t cached(const Sequence& sequence) const { return size_of(slots[sequence.slot].tokens); }

  // Cells that are used, or reserved for the prompts of running sequences.
  [[nodiscard]] std::int64_t cells_reserved() const;
  // Cells that the running sequences use, or that are reserved for their prompts, without those of `except`, and with the cells
  // of `also`. Requires: a unified context.
  [[nodiscard]] std::int64_t cells_of_running(std::span<const Sequence* const> except = {}, CellLedger::Part also = {}) const;
  // Cells that are used, or that restores in progress will use.
  [[nodiscard]] std::int64_t cells_expected() const;
  // Saves pieces of the slot's state until `until`, at least one unless it has to wait for memory. `save` is not complete.
  [[nodiscard]] Expected<Unit> save_pieces(SequenceSave& save, std::size_t slot, TimePoint until) const;
  // Whether states leave the context piece by piece now, because somebody other than `except` streams and would wait for a
  // whole one. A split context, and one that cannot be cut at any token, save whole states beside streams too: the library ends
  // the process for a part of a sequence there, or has no part of it.
  [[nodiscard]] bool saves_by_pieces(const Sequence* except = nullptr) const {
    return shape().knows_pieces() && sequences.someone_streams(except);
  }
  // Beside streams cells are needed before a state is saved: drops the slot's last tokens that `save` lacks, at least `cells`
  // if it lacks so many. Afterwards the slot is empty, or the save is complete, or goes on with the tokens before them.
  // Requires: a context that knows pieces, and a save of the slot's tokens that is not complete.
  void drop_unsaved(SequenceSave& save, std::size_t slot, std::size_t cells) const;
  // Drops at least `cells` tokens at the end of the slot, but not the first `kept`. Returns how many are left. Requires: a
  // context that knows pieces, which can be cut behind `kept` tokens.
  std::size_t drop_last(std::size_t slot, std::size_t cells, std::size_t kept) const;
  // Whether the next piece waits while the store's thread makes memory for it: beside streams a lane takes none from the
  // system.
  [[nodiscard]] bool waits_for_memory(SequenceSave& save, std::size_t slot) const;
  // Whether a state of so many tokens and bytes may be kept on disk: reading and loading it is faster than computing it.
  [[nodiscard]] kv::Keep keep_of(std::int32_t tokens, std::uint64_t bytes) const;
  // The query for stored states that the sequence may use.
  [[nodiscard]] kv::PrefixQuery prefix_query_of(const Sequence& sequence) const;
};

// The session's id in a log line; "-" for none.
[[nodiscard]] std::string_view log_name(const SessionId& session);

}  // namespace uma::engine
