#include "engine/lane/move/slot_eviction.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thrown.h"
#include "engine/lane/move/state_transfer.h"
#include "kv/tier_policy.h"

namespace uma::engine {
namespace {

// Tokens without a session that are always stored: agents send their whole history with every turn.
constexpr std::int32_t kWorthAPause = 2048;
constexpr double kWaitMaxMs = 2000;  // How long a request waits until a state is saved, or another one is written to disk.

}  // namespace

// A slot without a session does not lose its first `staying` tokens.
bool SlotEviction::is_worth_storing(const Slot& slot, std::size_t staying) const {
  if (parts_.context.is_lost()) return false;
  if (slot.is_ephemeral || slot.was_moved() || parts_.states.family_of(slot.adapters) == 0) return false;
  if (size_of(slot.tokens) < parts_.options.stored_tokens_min) return false;
  if (!slot.owner.session.empty()) return true;
  const auto lost = size_of(slot.tokens) - static_cast<std::int32_t>(staying);
  return lost >= kWorthAPause || (lost > 0 && is_worth_the_wait(slot, lost));
}

// A prompt that was asked again leaves its context with tokens that the store had from the first time.
bool SlotEviction::is_in_memory(const Slot& slot) const {
  const kv::FamilyId family = parts_.states.family_of(slot.adapters);
  return parts_.options.store != nullptr && family != 0 && parts_.options.store->has_in_memory(slot.owner, family, slot.tokens);
}

// In a burst of prompts every one waits for all states that are stored before it; so do streams where a state has no pieces.
// Another tenant counts as one, so that its burst does not cost this one its states.
bool SlotEviction::is_worth_the_wait(const Slot& slot, std::int32_t lost) const {
  const bool streams_wait = !parts_.shape().knows_pieces();
  std::size_t waiting = 0;
  std::set<std::string_view> others;
  for (const SequencePtr& each : parts_.sequences) {
    if (!each->is_waiting() && !(streams_wait && each->is_running() && each->generated() > 0)) continue;
    const std::string& tenant = each->job.flow.tenant;
    if (tenant == slot.owner.tenant.value || others.insert(tenant).second) ++waiting;
  }
  const std::uint64_t bytes = slot.tokens.size() * parts_.shape().kv_bytes_per_token;
  const double compute_ms = parts_.costs.step_model.prefill_ms(lost, size_of(slot.tokens) - lost);
  return kv::is_worth_the_wait(waiting, parts_.costs.transfer.save_ms(bytes), compute_ms);
}

// No other state is evicted from memory for a state without a session.
std::optional<ByteBudget::Share> SlotEviction::reserve(std::size_t index, kv::GiveWay how) {
  give_up_store();
  const std::uint64_t bytes = state_reservation_bytes(parts_.context, static_cast<std::int32_t>(index));
  const bool is_of_session = !parts_.slots[index].owner.session.empty();
  return is_of_session ? parts_.options.store->make_room(bytes, how) : parts_.states.pool().reserve(bytes);
}

void SlotEviction::store(std::size_t index, std::size_t staying) {
  if (!is_worth_storing(parts_.slots[index], staying) || is_in_memory(parts_.slots[index])) return;
  if (auto reserved = reserve(index, kv::GiveWay::at_once)) {
    save(index, std::move(*reserved));
  } else {
    report_not_stored(index);
  }
}

void SlotEviction::save(std::size_t index, ByteBudget::Share reserved) {
  const Slot& slot = parts_.slots[index];
  const TimePoint began = parts_.clock.now();
  SequenceSave save(parts_.context, slot.tokens, slot.adapters, std::move(reserved));
  if (const auto saved = parts_.save_pieces(save, index, kNever); !saved) {
    log_warning("session {}: its state could not be saved and will be computed again: {}", log_name(slot.owner.session),
                saved.error().message);
    (void)save.give_up(parts_.states.pool());
    return;
  }
  put(slot, save);
  const double ms = to_ms(parts_.clock.now() - began);
  log_debug("lane {}: stored {} tokens of slot {} in {:.1f} ms", parts_.options.index, slot.tokens.size(), index, ms);
  parts_.stats().save.record_ms(ms);
}

void SlotEviction::put(const Slot& slot, SequenceSave& save) {
  kv::Snapshot snapshot = save.take(parts_.states.pool());
  const kv::Keep keep = parts_.keep_of(size_of(slot.tokens), snapshot.bytes());
  parts_.options.store->put(slot.owner, std::move(snapshot), keep);
}

void SlotEviction::report_not_stored(std::size_t index) {
  const Slot& slot = parts_.slots[index];
  if (slot.owner.session.empty()) return;
  log_warning("session {}: there is no memory for the state of its {} tokens, so they will be computed again",
              slot.owner.session.value, slot.tokens.size());
  parts_.options.store->note_dropped();
}

bool SlotEviction::store_by_disk(std::size_t index, Then then, std::size_t staying) {
  if (stored_ == seen(index) || is_in_memory(parts_.slots[index])) return true;
  if (waits_for_pieces(index, then, staying)) return false;
  const Slot& slot = parts_.slots[index];
  // A state of which a piece could not be saved, or for which there is no memory, is not saved as a whole either.
  const bool may_save = !parts_.saves_by_pieces();
  if (slot.owner.session.empty() || !is_worth_storing(slot)) {
    if (may_save) store(index, staying);
    return true;
  }
  if (!may_save && pieces_failed_) {
    report_not_stored(index);
    return true;
  }
  if (auto reserved = may_save ? reserve(index, kv::GiveWay::by_disk) : std::nullopt) {
    save(index, std::move(*reserved));
    return true;
  }
  const TimePoint now = parts_.clock.now();
  const bool may_fit =
      state_reservation_bytes(parts_.context, static_cast<std::int32_t>(index)) <= parts_.states.pool().bytes_max();
  if (wanted_since_ == kNever) wanted_since_ = now;
  is_waiting_ = may_fit && now < wanted_since_ + from_ms(kWaitMaxMs);
  if (!is_waiting_) report_not_stored(index);
  return !is_waiting_;
}

kv::StateView SlotEviction::view_of(std::size_t index) const {
  const Slot& slot = parts_.slots[index];
  const std::size_t alone = parts_.slots.tokens_alone(index);
  return {.id = index,
          .bytes = alone * parts_.shape().kv_bytes_per_token,
          .tokens_count = alone,
          .uses = slot.uses,
          .idle_s = to_ms(parts_.clock.now() - std::max(slot.last_used, slot.kept_at)) / 1000,
          .pause_s = slot.pause_s,
          .is_over_share = is_over_share(slot.owner.tenant)};
}

// Whether the tenant has more slots than an equal part of them, so that no tenant's names and uses cost another one its own.
bool SlotEviction::is_over_share(const TenantId& tenant) const {
  std::set<std::string_view> tenants;
  std::size_t used = 0;
  std::size_t own = 0;
  for (const Slot& slot : parts_.slots) {
    if (slot.is_empty()) continue;
    tenants.insert(slot.owner.tenant.value);
    ++used;
    own += slot.owner.tenant == tenant ? 1 : 0;
  }
  return own * tenants.size() > used;
}

// The idle slot that is least valuable among those that `may_go` allows.
std::optional<std::size_t> SlotEviction::least_valuable(const std::function<bool(std::size_t)>& may_go) const {
  std::vector<kv::StateView> idle;
  for (std::size_t i = 0; i < parts_.slots.size(); ++i) {
    const Slot& slot = parts_.slots[i];
    if (!slot.is_running && !slot.is_empty() && may_go(i)) idle.push_back(view_of(i));
  }
  const kv::StateView* least = kv::least_valuable(idle, parts_.options.eviction);
  return least == nullptr ? std::nullopt : std::optional<std::size_t>(least->id);
}

bool SlotEviction::evict_idle(kv::GiveWay how, std::span<const std::size_t> except) {
  const auto index = least_valuable([&](std::size_t i) { return !std::ranges::contains(except, i); });
  return index && evict(*index, how);
}

std::optional<std::size_t> SlotEviction::find_idle(std::size_t tokens) const {
  if (parts_.options.store == nullptr) return std::nullopt;
  return least_valuable([&](std::size_t i) {
    const Slot& slot = parts_.slots[i];
    return slot.tokens.size() > tokens && parts_.slots.tokens_alone(i) > tokens && is_worth_storing(slot);
  });
}

bool SlotEviction::free_cells(std::size_t wanted) {
  if (!parts_.saves_by_pieces()) return evict_idle(kv::GiveWay::at_once);
  if (storing_ && !is_same()) give_up_store();
  const auto is_stored = [&](std::size_t i) { return storing_ && storing_->slot.index == i; };
  const auto has_own = [&](std::size_t i) { return parts_.slots.tokens_alone(i) > 0; };
  // A copy has been asked for, so it is the last to lose tokens.
  if (storing_ && !storing_->copy && has_own(storing_->slot.index)) return drop_last(storing_->slot.index, wanted);
  auto index = least_valuable([&](std::size_t i) { return !is_stored(i) && has_own(i); });
  if (!index && storing_ && has_own(storing_->slot.index)) return drop_last(storing_->slot.index, wanted);
  if (!index) return empty_shared();
  if (storing_ && !storing_->copy) give_up_store();
  const Slot& slot = parts_.slots[*index];
  if (!is_worth_storing(slot, slot.tokens.size() - parts_.slots.tokens_alone(*index))) return empty(*index);
  if (!storing_ && !begin_saving(*index, Then::frees, kv::GiveWay::at_once)) {
    report_not_stored(*index);
    return empty(*index);
  }
  if (!storing_->copy) storing_->is_pressing = true;
  return drop_last(*index, wanted);
}

// Empties an idle slot whose cells other idle slots share: its tokens stay there until these are stored. False: running
// sequences share all cells of idle slots, so none would be free.
bool SlotEviction::empty_shared() {
  std::vector<CellLedger::Part> running;
  for (std::size_t i = 0; i < parts_.slots.size(); ++i) {
    if (parts_.slots[i].is_running) running.push_back({.slot = i, .count = parts_.slots[i].tokens.size()});
  }
  const auto index = least_valuable([](std::size_t) { return true; });
  return index && parts_.slots.cells_of(running) < parts_.slots.cells_used() && empty(*index);
}

bool SlotEviction::empty(std::size_t index) {
  if (storing_ && storing_->slot.index == index) give_up_store();
  parts_.slots.clear(index);
  return true;
}

// Drops at least `wanted` tokens at the end of the idle slot that are not saved, if it has so many.
bool SlotEviction::drop_last(std::size_t index, std::size_t wanted) {
  const bool is_stored = storing_->slot.index == index;
  if (is_stored) {
    parts_.drop_unsaved(storing_->save, index, wanted);
    storing_->slot = seen(index);
  } else {
    (void)parts_.drop_last(index, wanted, 0);
  }
  if (parts_.slots[index].is_empty()) return empty(index);
  if (is_stored && storing_->save.is_complete()) end_store();
  return true;
}

void SlotEviction::store_ahead(std::int64_t rows) {
  if (storing_ || !parts_.saves_by_pieces()) return;
  const auto pieces_of = [&](const Slot& slot) {
    const bool is_idle = !slot.is_running && !slot.is_empty();
    return is_idle ? static_cast<std::int64_t>(state_size(parts_.shape(), size_of(slot.tokens)).pieces) : 0;
  };
  // Every second tick saves a piece at least; the others may be StateMoves'.
  const std::int64_t free = parts_.shape().cells - parts_.cells_reserved();
  const auto is_soon = [&](std::int64_t pieces) { return pieces > 0 && free <= rows * 2 * (pieces + 1); };
  if (std::ranges::none_of(parts_.slots, is_soon, pieces_of)) return;
  const auto index = least_valuable([&](std::size_t i) { return parts_.slots.tokens_alone(i) > 0; });
  if (!index || !is_soon(pieces_of(parts_.slots[*index]))) return;
  const std::size_t shared = parts_.slots[*index].tokens.size() - parts_.slots.tokens_alone(*index);
  if (!is_worth_storing(parts_.slots[*index], shared)) return;
  if (begin_saving(*index, Then::frees, kv::GiveWay::by_disk)) storing_->is_pressing = true;
}

bool SlotEviction::begin_store(std::size_t index) {
  return has_place_for(index) && begin_saving(index, Then::frees, kv::GiveWay::by_disk);
}

// Requests and copies take turns.
void SlotEviction::begin_copies() {
  if (is_waiting_ && copied_last_) return;
  while (!storing_ && !copies_.empty()) {
    CopyCommand next = std::move(copies_.front());
    copies_.pop_front();
    if (begin_copy(next)) {
      storing_->copy = std::move(next);
    } else {
      run_noting(next.then);
    }
  }
}

bool SlotEviction::begin_copy(const CopyCommand& command) {
  const auto slot = parts_.slots.find_of(command.session);
  if (!slot || parts_.slots[*slot].is_running || parts_.slots[*slot].is_empty()) return false;
  if (parts_.options.store == nullptr || !is_worth_storing(parts_.slots[*slot])) return false;
  if (command.how == kv::GiveWay::by_disk && !has_place_for(*slot)) return false;
  return begin_saving(*slot, Then::stays, command.how);
}

bool SlotEviction::has_place_for(std::size_t index) const {
  const Slot& slot = parts_.slots[index];
  const std::uint64_t bytes = state_reservation_bytes(parts_.context, static_cast<std::int32_t>(index));
  return parts_.options.store->has_place_for(slot.owner.tenant, bytes, parts_.keep_of(size_of(slot.tokens), bytes));
}

bool SlotEviction::begin_saving(std::size_t index, Then then, kv::GiveWay how) {
  const Slot& slot = parts_.slots[index];
  auto reserved = reserve(index, how);
  if (!reserved) return false;
  storing_ = Storing{.slot = seen(index),
                     .then = then,
                     .save = SequenceSave(parts_.context, slot.tokens, slot.adapters, std::move(*reserved))};
  return true;
}

bool SlotEviction::waits_for_memory() {
  return storing_ && is_same() && parts_.waits_for_memory(storing_->save, storing_->slot.index);
}

void SlotEviction::continue_store(TimePoint until) {
  begin_copies();
  if (!storing_) return;
  if (!is_same()) return give_up_store();
  const std::size_t index = storing_->slot.index;
  if (const auto saved = parts_.save_pieces(storing_->save, index, until); !saved) {
    if (storing_->is_pressing) {
      give_up_store();
      report_not_stored(index);
      return parts_.slots.clear(index);
    }
    log_warning("lane {}: the idle slot {} stays in the context: {}", parts_.options.index, index, saved.error().message);
    pieces_failed_ = true;
    return give_up_store();
  }
  if (storing_->save.is_complete()) end_store();
}

// All pieces are saved.
void SlotEviction::end_store() {
  const std::size_t index = storing_->slot.index;
  const Slot& slot = parts_.slots[index];
  log_debug("lane {}: {} tokens of the idle slot {} are in the store", parts_.options.index, slot.tokens.size(), index);
  Storing ended = std::move(*storing_);
  storing_.reset();
  copied_last_ = ended.copy.has_value();
  put(slot, ended.save);
  if (ended.copy) {
    run_noting(ended.copy->then);
    end_copies([&](const CopyCommand& each) { return each.session == ended.slot.session; });
  } else if (ended.then == Then::stays) {
    stored_ = ended.slot;
  } else {
    parts_.slots.clear(index);
    end_wait();
    parts_.stats().idle_stored_total.add();
  }
  begin_copies();  // Before a request that waits begins the next one.
}

void SlotEviction::end_copies(const std::function<bool(const CopyCommand&)>& which) {
  for (CopyCommand& each : std::exchange(copies_, {})) {
    which(each) ? run_noting(each.then) : copies_.push_back(std::move(each));
  }
}

void SlotEviction::give_up() {
  give_up_store();
  end_copies([](const CopyCommand&) { return true; });
}

void SlotEviction::give_up_store() {
  if (!storing_) return;
  (void)storing_->save.give_up(parts_.states.pool());
  std::optional<CopyCommand> copy = std::move(storing_->copy);
  storing_.reset();
  if (copy) run_noting(copy->then);
}

std::optional<std::size_t> SlotEviction::least_valuable_slot(std::size_t reused, std::size_t kept) const {
  std::vector<kv::StateView> idle;
  for (std::size_t i = 0; i < parts_.slots.size(); ++i) {
    if (parts_.slots[i].is_running || parts_.slots[i].is_empty()) continue;
    kv::StateView& view = idle.emplace_back(view_of(i));
    view.bytes = 1;  // Every slot is one slot.
    if (i != reused || !parts_.slots[i].owner.session.empty()) continue;
    const std::size_t all = parts_.slots[i].tokens.size();
    view.tokens_count = std::min(view.tokens_count, all - std::min(kept, all));
  }
  const kv::StateView* least = kv::least_valuable(idle, parts_.options.eviction);
  return least == nullptr ? std::nullopt : std::optional<std::size_t>(least->id);
}

SlotEviction::Seen SlotEviction::seen(std::size_t index) const {
  const Slot& slot = parts_.slots[index];
  return {.index = index,
          .uses = slot.uses,
          .last_used = slot.last_used,
          .session = slot.owner.session,
          .tokens_count = slot.tokens.size()};
}

bool SlotEviction::is_same() const {
  return !parts_.slots[storing_->slot.index].is_running && seen(storing_->slot.index) == storing_->slot;
}

// Interactive streams do not wait for a whole state: it is saved piece by piece. A request never ends a copy, which would have
// to begin again.
bool SlotEviction::waits_for_pieces(std::size_t index, Then then, std::size_t staying) {
  if (storing_ && !is_same()) give_up_store();
  if (storing_ && storing_->slot.index == index && !storing_->copy) {
    storing_->then = then;
  } else if (!is_worth_storing(parts_.slots[index], staying)) {
    return false;
  } else if (!storing_ || !storing_->copy) {
    const bool streams_go_on = !pieces_failed_ && parts_.sequences.someone_streams();
    if (!streams_go_on || (!storing_ && !begin_saving(index, then, kv::GiveWay::by_disk))) return false;
  }
  is_waiting_ = true;
  return true;
}

bool SlotEviction::evict(std::size_t index, kv::GiveWay how) {
  const std::size_t shared = parts_.slots[index].tokens.size() - parts_.slots.tokens_alone(index);
  if (how == kv::GiveWay::at_once) {
    store(index, shared);
  } else if (!store_by_disk(index, Then::frees, shared)) {
    return false;
  }
  parts_.slots.clear(index);
  return true;
}

void SlotEviction::leave(const Sequence& sequence) {
  const Slot& slot = parts_.slot_of(sequence);
  parts_.slots.release(sequence.slot, parts_.clock.now());
  const LaneOptions& options = parts_.options;
  if (options.store != nullptr && options.store->write_within() > Duration(0)) {
    // Half of the time is for the disk.
    parts_.slots.set_write_at(sequence.slot, std::min(slot.write_at, parts_.clock.now() + options.store->write_within() / 2));
  }
  const bool stays = options.store != nullptr && !slot.is_ephemeral && !options.is_reproducible;
  if (sequence.job.session.empty() && !stays) {
    parts_.slots.clear(sequence.slot);
  } else if (!parts_.shape().can_truncate) {
    // It has no pieces, and the session's next tokens would change it: it is saved as a whole now, beside streams too.
    store(sequence.slot);
  }
}

void SlotEviction::store_all() {
  for (std::size_t i = 0; i < parts_.slots.size(); ++i) {
    if (parts_.slots[i].is_empty()) continue;
    if (is_worth_storing(parts_.slots[i])) {
      auto reserved = reserve(i, kv::GiveWay::by_disk);
      const auto has_come = [&] { return reserved || (reserved = reserve(i, kv::GiveWay::by_disk)); };
      if (!reserved && parts_.options.wait_for_disk) parts_.options.wait_for_disk(has_come);
      if (reserved) {
        save(i, std::move(*reserved));
      } else {
        report_not_stored(i);
      }
    }
    parts_.slots.clear(i);
  }
}

}  // namespace uma::engine
