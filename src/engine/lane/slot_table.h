// The slots of a context: the tokens that the context has cached for each of its sequences, and their owners. All changes of
// the caches go through this table. Owned by the lane's thread, except for the published part.
//
// Invariants: (1) A slot's tokens are exactly those that the context has cached for its sequence. (2) A slot belongs to at most
// one running sequence, or to one idle session, or is empty, or has the tokens of an ended one-shot request. All its tokens
// were computed with the same adapters. (3) In a unified context the number of used cells, with shared ones counted once, never
// exceeds the context's. (4) Cells that a context shift has moved stay in their session's slot: they are neither saved nor
// shared (docs/decisions/0018).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "core/agent.h"
#include "core/error.h"
#include "core/ids.h"
#include "engine/lane/cell_ledger.h"
#include "kv/byte_pool.h"
#include "kv/state_owner.h"
#include "kv/tier_policy.h"
#include "llm/adapters.h"
#include "llm/model.h"

namespace uma::engine {

struct Slot {
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

  std::vector<Token> tokens;  // Cached in the context.
  kv::StateOwner owner;       // The owner of the tokens; without a session: an ended one-shot request.
  llm::AdapterSet adapters;   // The adapters that the tokens were computed with.
  std::size_t sent = 0;       // The length of the last prompt, of which some may not be cached; tokens behind were generated.
  bool is_running = false;
  bool is_ephemeral = false;          // Never stored.
  std::size_t moved_from = kNowhere;  // Tokens from here on were moved by a context shift.
  std::uint32_t uses = 0;
  TimePoint last_used{};
  TimePoint kept_at{};                 // An agent that this one has begun was served then, so that it waits and has not left.
  std::uint64_t agent = 0;             // Agent::number()
  double pause_s = kv::kPersonPauseS;  // The typical time until its next use.
  TimePoint write_at = kNever;  // When the first `written_to` tokens are to be on their way to disk; kNever: they are there.
  std::size_t written_to = 0;
  std::uint32_t failed_writes = 0;  // One after another.

  [[nodiscard]] bool is_empty() const { return tokens.empty(); }
  [[nodiscard]] bool is_of(const SessionId& session) const { return !session.empty() && owner.session == session; }
  [[nodiscard]] bool was_moved() const { return moved_from < tokens.size(); }
  // The tokens whose cells have not been moved.
  [[nodiscard]] std::span<const Token> unmoved() const { return std::span(tokens).first(std::min(moved_from, tokens.size())); }
};

class SlotTable {
 public:
  // `context` outlives the table. `can_shift`: turns may be removed from the middle of a slot.
  SlotTable(llm::Context& context, bool can_shift);

  [[nodiscard]] std::size_t size() const { return slots_.size(); }
  [[nodiscard]] const Slot& operator[](std::size_t index) const { return slots_[index]; }
  [[nodiscard]] auto begin() const { return slots_.begin(); }
  [[nodiscard]] auto end() const { return slots_.end(); }
  // The session's slot; absent: it has none, or `session` is empty.
  [[nodiscard]] std::optional<std::size_t> find_of(const SessionId& session) const;
  // The lowest empty slot; the library computes neighbouring slots faster.
  [[nodiscard]] std::optional<std::size_t> find_empty() const;
  // The number of used cells.
  [[nodiscard]] std::int64_t cells_used() const;
  // The number of cells up to the last used one; 0 in a split context.
  [[nodiscard]] std::size_t cells_top() const { return shape().is_unified ? cells_.top() : 0; }
  // The last of the cells behind the first cells_used(), at most `count` of one slot. Nullopt: there are none, or the last one
  // cannot be moved. Requires: a unified context.
  [[nodiscard]] std::optional<CellLedger::Range> last_cells(std::size_t count) const;
  // The number of cells in these parts of slots, shared ones counted once. Requires: a unified context.
  [[nodiscard]] std::int64_t cells_of(std::span<const CellLedger::Part> parts) const { return cells_.held_together(parts); }

  // --- Ownership
  // A sequence begins to run in the slot. Requires: the slot is empty, or its tokens were computed with the same adapters.
  void claim(std::size_t index, kv::StateOwner owner, bool is_ephemeral, llm::AdapterSet adapters = {});
  // The slot's sequence has ended or leaves the context; the tokens stay.
  void release(std::size_t index, TimePoint now);
  // Takes the tokens from their session; they stay its tenant's.
  void disown(std::size_t index) {
    slots_[index].owner.session = {};
    has_changed_ = true;
  }

  // --- Caches
  // The context has computed or loaded these tokens at the end of the slot.
  void append(std::size_t index, std::span<const Token> tokens);
  // The context has dropped all but the first `count` tokens.
  void keep(std::size_t index, std::size_t count);
  // Drops all but the first `count` tokens. False: the context cannot, and the slot is empty.
  bool cut(std::size_t index, std::size_t count);
  // Removes the tokens [begin, end) and moves up the tokens behind them. False, and nothing has changed: the context cannot, or
  // another slot shares cells that would move.
  [[nodiscard]] bool shift(std::size_t index, std::size_t begin, std::size_t end);
  // The empty slot `to` shares the first `count` cells of `from`. Requires: a unified context.
  void share(std::size_t from, std::size_t to, std::size_t count, TimePoint now);
  // All its tokens are to be on their way to disk at this time; kNever: they are.
  void set_write_at(std::size_t index, TimePoint at) {
    slots_[index].write_at = at;
    slots_[index].written_to = slots_[index].tokens.size();
    if (at == kNever) slots_[index].failed_writes = 0;
  }
  void note_write_failed(std::size_t index) { ++slots_[index].failed_writes; }
  void put_off_write(std::size_t index, TimePoint at) { slots_[index].write_at = at; }
  // Tokens behind the first `count` are generated ones.
  void set_sent(std::size_t index, std::size_t count) { slots_[index].sent = count; }
  // The slot's sequence is one of this agent. The idle slot of the agent that has begun it, if its tool runs, is kept.
  void set_agent(std::size_t index, const Agent& agent, TimePoint now);
  void set_pause(std::size_t index, double pause_s) { slots_[index].pause_s = pause_s; }
  // Counts a use of the slot's tokens.
  void touch(std::size_t index, TimePoint now);
  // The slot that holds the last used cell, if that can be moved or freed. Requires: a unified context.
  [[nodiscard]] std::optional<std::size_t> last_slot() const;
  // The number of the slot's tokens whose cells no other slot shares.
  [[nodiscard]] std::size_t tokens_alone(std::size_t index) const {
    return shape().is_unified ? cells_.held_alone(index) : slots_[index].tokens.size();
  }
  // Moves last_cells() to the lowest free cells, by way of the pool. On failure the slot may have fewer tokens. Requires: the
  // context can move cells.
  [[nodiscard]] Expected<Unit> move_down(const CellLedger::Range& range, kv::BytePool& pool);
  // Empties the slot; its owner keeps it.
  void drop(std::size_t index);
  // Empties the slot and removes its owner.
  void clear(std::size_t index);
  // After a failed call: takes over from the context the tokens that it kept of a running sequence's chain. The last token of
  // the chain is computed again, because its logits were lost with the call.
  void resync(std::size_t index, std::span<const Token> chain);
  // After a failed call, which can lose moved cells of any slot. Returns whether one has fewer tokens now.
  bool notice_losses();
  // Sets the number of cells that the spare sequence uses.
  void set_spare_rows(std::size_t count);

  // --- Any thread, as of the last publish().
  [[nodiscard]] bool holds(const SessionId& session) const;
  // The size of the session's cached tokens.
  [[nodiscard]] std::uint64_t bytes_of(const SessionId& session) const;

  // Publishes the sessions of this table to other threads, if they have changed.
  void publish();
  [[nodiscard]] std::int64_t hot_sessions() const;
  [[nodiscard]] std::int64_t running() const;
  void check_invariants() const;

 private:
  [[nodiscard]] const llm::ContextShape& shape() const { return context_.shape(); }

  llm::Context& context_;
  const bool can_shift_;

  // Owned by the lane's thread.
  std::vector<Slot> slots_;
  CellLedger cells_;          // The last entry is the spare sequence's.
  bool has_changed_ = false;  // Since publish().

  // Shared.
  mutable Mutex mutex_;
  std::unordered_map<SessionId, std::size_t> published_ GUARDED_BY(mutex_);  // Sessions and their cached tokens.
};

}  // namespace uma::engine
