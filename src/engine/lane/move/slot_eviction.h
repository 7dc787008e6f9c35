// Moves states out of the context: stores the states of slots, and chooses the idle slot to evict for a request. Owned by the
// lane's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/move_only_function.h"
#include "core/ids.h"
#include "engine/lane/lane_command.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/state_transfer.h"
#include "kv/state_store.h"

namespace uma::engine {

class SlotEviction {
 public:
  explicit SlotEviction(const LaneParts& parts) : parts_(parts) {}

  // Copies the slot's state to the store, if it is worth storing and memory is free. Its first `staying` tokens stay in the
  // context.
  void store(std::size_t index, std::size_t staying = 0);
  enum class Then : std::uint8_t { frees, stays };
  // Copies the slot's state to the store for a request that needs the slot, which `then` says. False: the request has to wait,
  // for memory while other states are written to disk, or since the state is saved piece by piece beside streams. A state that
  // has no memory after a limit is dropped.
  [[nodiscard]] bool store_by_disk(std::size_t index, Then then, std::size_t staying = 0);
  // Frees the cells of the idle slot whose tokens are worth least for their size, and which is not in `except`. False: there is
  // none, or its state has to wait.
  [[nodiscard]] bool evict_idle(kv::GiveWay how, std::span<const std::size_t> except = {});
  // Frees cells of idle slots for the next call. Beside streams nothing is saved for it: a slot that is not worth storing is
  // emptied, and another one is stored piece by piece and loses its last tokens that are not saved yet, at least `wanted` if it
  // has so many. False: there is none.
  [[nodiscard]] bool free_cells(std::size_t wanted);
  // Begins to store the idle slot whose cells streams will need soon, as they get `rows` tokens in a tick, so that free_cells()
  // does not have to drop any.
  void store_ahead(std::int64_t rows);
  // The idle slot with which least is lost. The first `kept` tokens of slot `reused` are not lost, unless it is a session's.
  [[nodiscard]] std::optional<std::size_t> least_valuable_slot(std::size_t reused, std::size_t kept) const;
  // Frees an idle slot. False: its state has to wait, for memory, or since it is saved piece by piece beside streams.
  [[nodiscard]] bool evict(std::size_t index, kv::GiveWay how);
  // The idle slot with which least is lost, among those with more than `tokens` tokens that are worth storing and are not
  // shared. Nullopt: there is none.
  [[nodiscard]] std::optional<std::size_t> find_idle(std::size_t tokens) const;
  // Begins to store the state of an idle slot piece by piece. False: memory or the store have no place for it now.
  [[nodiscard]] bool begin_store(std::size_t index);
  // Copies the state of a session's idle slot to the store piece by piece, after those that are being saved.
  void copy(CopyCommand command) { copies_.push_back(std::move(command)); }
  [[nodiscard]] bool is_storing() const { return storing_ || !copies_.empty(); }
  [[nodiscard]] bool is_copying() const { return storing_ && storing_->then == Then::stays; }
  // Streams will need the cells of the slot that is being stored.
  [[nodiscard]] bool is_pressing() const { return storing_ && storing_->is_pressing; }
  // Saves at least one piece of what is being stored. After the last one the slot is freed, unless it stays. Gives up if the
  // slot was used meanwhile.
  void continue_store(TimePoint until);
  // Whether the next piece has to wait for memory.
  [[nodiscard]] bool waits_for_memory();
  // Gives up, and returns the memory. Every other state that leaves the context goes first.
  void give_up_store();
  // Gives up what is being stored, and all copies.
  void give_up();
  // The sequence has ended. A session keeps its slot for its next turn; the tokens of a one-shot request stay while they may be
  // the prefix of another request. A state that cannot be cut is also stored at the end of each turn, as a checkpoint.
  void leave(const Sequence& sequence);
  // The lane ends: stores all states that are worth it, and waits for memory as in LaneOptions::wait_for_disk.
  void store_all();

  // The next request waits until a state is saved, or another one is written to disk.
  [[nodiscard]] bool is_waiting() const { return is_waiting_; }
  // Called when admission begins, and when it has placed a request or ended.
  void begin_admission() { is_waiting_ = false; }
  void end_wait() {
    stored_.reset();
    wanted_since_ = kNever;
    pieces_failed_ = false;
  }

 private:
  // A slot and its content at one moment.
  struct Seen {
    std::size_t index = 0;
    std::uint32_t uses = 0;
    TimePoint last_used{};
    SessionId session;
    std::size_t tokens_count = 0;
    bool operator==(const Seen& other) const = default;
  };
  // An idle slot whose state is being stored, as it was when that began.
  struct Storing {
    Seen slot;
    Then then = Then::frees;
    SequenceSave save;
    bool is_pressing = false;              // Streams will need its cells.
    std::optional<CopyCommand> copy = {};  // Why it is stored; nullopt: for a request, or since it is idle.
  };

  [[nodiscard]] std::optional<std::size_t> least_valuable(const std::function<bool(std::size_t)>& may_go) const;
  [[nodiscard]] kv::StateView view_of(std::size_t index) const;
  [[nodiscard]] bool is_over_share(const TenantId& tenant) const;
  [[nodiscard]] bool is_worth_storing(const Slot& slot, std::size_t staying = 0) const;
  [[nodiscard]] bool is_in_memory(const Slot& slot) const;
  [[nodiscard]] bool is_worth_the_wait(const Slot& slot, std::int32_t lost) const;
  [[nodiscard]] std::optional<ByteBudget::Share> reserve(std::size_t index, kv::GiveWay how);
  void save(std::size_t index, ByteBudget::Share reserved);
  void put(const Slot& slot, SequenceSave& save);
  void report_not_stored(std::size_t index);
  // Whether the store can keep the slot's state without losing another one of its tenant.
  [[nodiscard]] bool has_place_for(std::size_t index) const;
  void end_store();
  [[nodiscard]] bool empty_shared();
  bool empty(std::size_t index);
  [[nodiscard]] bool drop_last(std::size_t index, std::size_t wanted);
  void begin_copies();
  void end_copies(const std::function<bool(const CopyCommand&)>& which);
  [[nodiscard]] bool begin_copy(const CopyCommand& command);
  [[nodiscard]] bool begin_saving(std::size_t index, Then then, kv::GiveWay how);
  [[nodiscard]] Seen seen(std::size_t index) const;
  [[nodiscard]] bool is_same() const;
  [[nodiscard]] bool waits_for_pieces(std::size_t index, Then then, std::size_t staying);

  const LaneParts& parts_;
  std::optional<Storing> storing_;
  std::deque<CopyCommand> copies_;  // Begun when nothing else is being stored.
  bool copied_last_ = false;        // The last state that was stored was a copy.
  std::optional<Seen> stored_;      // A slot that stays, after a request has waited for its state.
  bool is_waiting_ = false;
  TimePoint wanted_since_ = kNever;  // When the wait for memory began.
  bool pieces_failed_ = false;       // During the wait a state could not be saved; the next one is saved as a whole.
};

}  // namespace uma::engine
