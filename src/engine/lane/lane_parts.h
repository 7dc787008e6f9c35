// The objects that the parts of a lane share. Each part owns one thing; all use these. The references outlive the parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/mailbox.h"
#include "engine/lane/cell_ledger.h"
#include "engine/lane/lane_command.h"
#include "engine/lane/lane_options.h"
#include "engine/lane/lane_stats.h"
#include "engine/lane/move/transfer_cost.h"
#include "engine/lane/plan/core_share.h"
#include "engine/lane/run/prefill_lane.h"
#include "engine/lane/sequence.h"
#include "engine/lane/slot_table.h"
#include "engine/lane/state_families.h"
#include "kv/byte_pool.h"
#include "kv/state_store.h"
#include "llm/model.h"
#include "sched/bytes_moved.h"
#include "sched/fair_share.h"
#include "sched/recent_work.h"
#include "sched/slot_shares.h"
#include "sched/step_model.h"

namespace uma::engine {

constexpr std::int32_t kReusedMin = 16;  // In tokens: a shorter prefix is not worth a copy.

struct LaneParts {
  const LaneOptions& options;
  const llm::Vocab& vocab;
  const Clock& clock;
  llm::Context& context;
  StateFamilies& families;
  kv::BytePool& pool;  // The memory of states: the store's pool, if there is a store.
  LaneStats& stats;
  CoreShare& cores;
  sched::BandwidthBudget& bandwidth;
  const std::shared_ptr<Mailbox<LaneCommand>>& inbox;  // Shared with jobs on other threads, which may outlive the lane.
  const std::unique_ptr<PrefillLane>& prefill;         // Null: there is no prefill lane.
  sched::StepModel& step_model;
  sched::FairShare& shares;
  sched::SlotShares& slot_shares;
  sched::RecentWork& recent_work;
  TransferCost& transfer;
  SequenceList& sequences;
  SlotTable& slots;

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
  // Reserves memory for a state; less valuable states are evicted for it. Empty: there is not enough memory, or not yet.
  [[nodiscard]] std::optional<ByteBudget::Share> reserve(std::uint64_t bytes, kv::GiveWay how) const;
  // Saves at least one piece of the slot's state, and others until `until`. `save` is not complete.
  [[nodiscard]] Expected<Unit> save_pieces(SequenceSave& save, std::size_t slot, TimePoint until) const;
  // The estimated time of computing `tokens` tokens behind `cached` ones.
  [[nodiscard]] double compute_ms(std::int32_t tokens, std::int32_t cached) const;
  // Whether a state of so many tokens and bytes may be kept on disk: reading and loading it is faster than computing it.
  [[nodiscard]] kv::Keep keep_of(std::int32_t tokens, std::uint64_t bytes) const;
  // The query for stored states that the sequence may use.
  [[nodiscard]] kv::PrefixQuery prefix_query_of(const Sequence& sequence) const;
  // Charges the sequence's tenant and client with work.
  void charge(const Sequence& sequence, std::int64_t tokens) const;
  // Sends the sequence's prompt to the prefill lane.
  void send(Sequence& sequence, PrefillJob job) const;
  // Cancels the sequence's job in the prefill lane, if it has one there or is on its way.
  void recall(Sequence& sequence) const;
};

// The session's id in a log line; "-" for none.
[[nodiscard]] std::string_view log_name(const SessionId& session);

}  // namespace uma::engine
