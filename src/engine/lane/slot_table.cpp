#include "engine/lane/slot_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace uma::engine {
namespace {

std::int32_t as_sequence(std::size_t index) {
  return static_cast<std::int32_t>(index);
}

}  // namespace

SlotTable::SlotTable(llm::Context& context, bool can_shift)
    : context_(context),
      can_shift_(can_shift && context.shape().can_shift),
      slots_(static_cast<std::size_t>(context.shape().sequences)),
      cells_(slots_.size() + 1) {}

std::optional<std::size_t> SlotTable::find_of(const SessionId& session) const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].is_of(session)) return i;
  }
  return std::nullopt;
}

std::optional<std::size_t> SlotTable::find_empty() const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].is_running && slots_[i].is_empty()) return i;
  }
  return std::nullopt;
}

std::int64_t SlotTable::cells_used() const {
  if (shape().is_unified) return cells_.used();
  std::int64_t cells = 0;
  for (const Slot& slot : slots_) cells += std::ssize(slot.tokens);
  return cells;
}

void SlotTable::claim(std::size_t index, kv::StateOwner owner, bool is_ephemeral, llm::AdapterSet adapters) {
  Slot& slot = slots_[index];
  UMA_CHECK(!slot.is_running && (slot.is_empty() || slot.adapters == adapters));
  slot.adapters = std::move(adapters);
  slot.owner = std::move(owner);
  slot.is_running = true;
  slot.is_ephemeral = is_ephemeral;
  ++slot.uses;
  has_changed_ = true;
}

void SlotTable::set_agent(std::size_t index, const Agent& agent, TimePoint now) {
  slots_[index].agent = agent.number();
  slots_[index].pause_s = kv::kPersonPauseS;
  slots_[index].kept_at = {};
  if (agent.parent.empty()) return;
  Slot* newest = nullptr;
  for (Slot& slot : slots_) {
    const bool is_parent = slot.agent == agent.parent_number() && slot.owner.tenant == slots_[index].owner.tenant;
    const bool waits = is_parent && !slot.is_running && slot.pause_s == kv::kToolPauseS;
    if (waits && (newest == nullptr || slot.last_used > newest->last_used)) newest = &slot;
  }
  if (newest != nullptr) newest->kept_at = now;
}

void SlotTable::release(std::size_t index, TimePoint now) {
  slots_[index].is_running = false;
  slots_[index].last_used = now;
  has_changed_ = true;
}

void SlotTable::append(std::size_t index, std::span<const Token> tokens) {
  std::vector<Token>& cached = slots_[index].tokens;
  if (cached.empty()) has_changed_ = true;
  cached.insert(cached.end(), tokens.begin(), tokens.end());
  cells_.add(index, tokens.size());
}

void SlotTable::keep(std::size_t index, std::size_t count) {
  Slot& slot = slots_[index];
  slot.tokens.resize(count);
  if (!slot.was_moved()) slot.moved_from = Slot::kNowhere;
  slot.written_to = std::min(slot.written_to, count);
  if (slot.written_to == 0) slot.write_at = kNever;
  cells_.keep(index, count);
}

bool SlotTable::cut(std::size_t index, std::size_t count) {
  if (count == slots_[index].tokens.size()) return true;
  if (!context_.truncate(as_sequence(index), static_cast<std::int32_t>(count))) {
    drop(index);
    return false;
  }
  keep(index, count);
  return true;
}

bool SlotTable::shift(std::size_t index, std::size_t begin, std::size_t end) {
  if (!can_shift_ || (shape().is_unified && cells_.is_shared(index, end))) return false;
  Slot& slot = slots_[index];
  context_.shift(as_sequence(index), static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end));
  slot.tokens.erase(slot.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                    slot.tokens.begin() + static_cast<std::ptrdiff_t>(end));
  cells_.remove(index, begin, end);
  slot.moved_from = std::min(slot.moved_from, begin);
  return true;
}

void SlotTable::share(std::size_t from, std::size_t to, std::size_t count, TimePoint now) {
  touch(from, now);
  context_.share(as_sequence(from), as_sequence(to), static_cast<std::int32_t>(count));
  cells_.share(from, to, count);
  UMA_CHECK(slots_[from].adapters == slots_[to].adapters);
  const std::vector<Token>& source = slots_[from].tokens;
  slots_[to].tokens.assign(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(count));
}

void SlotTable::touch(std::size_t index, TimePoint now) {
  ++slots_[index].uses;
  slots_[index].last_used = now;
}

std::optional<CellLedger::Range> SlotTable::last_cells(std::size_t count) const {
  const auto range = cells_.last_cells(count);
  const bool is_free = range && range->slot < slots_.size() && range->end <= slots_[range->slot].unmoved().size();
  return is_free ? range : std::nullopt;
}

std::optional<std::size_t> SlotTable::last_slot() const {
  const auto slot = cells_.last_holder();
  return slot && *slot < slots_.size() && !slots_[*slot].was_moved() ? slot : std::nullopt;
}

Expected<Unit> SlotTable::move_down(const CellLedger::Range& range, kv::BytePool& pool) {
  Bytes bytes = pool.take((range.end - range.begin) * shape().kv_bytes_per_token);
  auto moved = context_.move_cells(as_sequence(range.slot), static_cast<std::int32_t>(range.begin),
                                   static_cast<std::int32_t>(range.end), bytes);
  if (moved) {
    cells_.move_down(range);
  } else {
    keep(range.slot, static_cast<std::size_t>(context_.sequence_length(as_sequence(range.slot))));
  }
  pool.give(std::move(bytes));
  return moved;
}

void SlotTable::drop(std::size_t index) {
  UMA_CHECK(context_.truncate(as_sequence(index), 0));
  keep(index, 0);
  has_changed_ = true;
}

void SlotTable::clear(std::size_t index) {
  drop(index);
  slots_[index].owner = {};
  slots_[index].sent = 0;
  slots_[index].uses = 0;
  slots_[index].write_at = kNever;
  slots_[index].failed_writes = 0;
}

void SlotTable::resync(std::size_t index, std::span<const Token> chain) {
  const auto length = static_cast<std::size_t>(context_.sequence_length(as_sequence(index)));
  const std::size_t known = slots_[index].tokens.size();
  if (length < known) {
    keep(index, length);
  } else if (const std::size_t end = std::min(length, chain.size()); known < end) {
    append(index, chain.subspan(known, end - known));
  }
  // Tokens beyond the chain are draft tokens.
  const std::size_t kept = std::min(length, chain.size() - 1);
  if (kept == length) return;
  if (context_.truncate(as_sequence(index), static_cast<std::int32_t>(kept))) {
    keep(index, kept);
  } else {
    drop(index);
  }
}

bool SlotTable::notice_losses() {
  bool has_lost = false;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].was_moved()) continue;
    const auto length = static_cast<std::size_t>(context_.sequence_length(as_sequence(i)));
    if (length >= slots_[i].tokens.size()) continue;
    keep(i, length);
    has_lost = true;
  }
  return has_lost;
}

void SlotTable::set_spare_rows(std::size_t count) {
  const std::size_t spare = slots_.size();
  if (const std::size_t held = cells_.held(spare); count > held) {
    cells_.add(spare, count - held);
  } else {
    cells_.keep(spare, count);
  }
}

bool SlotTable::holds(const SessionId& session) const {
  const MutexLock lock(mutex_);
  return published_.contains(session);
}

std::uint64_t SlotTable::bytes_of(const SessionId& session) const {
  const MutexLock lock(mutex_);
  const auto found = published_.find(session);
  return found == published_.end() ? 0 : found->second * shape().kv_bytes_per_token;
}

void SlotTable::publish() {
  if (!std::exchange(has_changed_, false)) return;
  const MutexLock lock(mutex_);
  published_.clear();
  for (const Slot& slot : slots_) {
    if (!slot.owner.session.empty() && (slot.is_running || !slot.is_empty())) {
      published_[slot.owner.session] = slot.tokens.size();
    }
  }
}

std::int64_t SlotTable::hot_sessions() const {
  return std::ranges::count_if(slots_, [](const Slot& slot) { return !slot.owner.session.empty() && !slot.is_empty(); });
}

std::int64_t SlotTable::running() const {
  return std::ranges::count_if(slots_, &Slot::is_running);
}

void SlotTable::check_invariants() const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    UMA_CHECK(std::ssize(slot.tokens) == context_.sequence_length(as_sequence(i)));
    UMA_CHECK(cells_.held(i) == slot.tokens.size());
    UMA_CHECK(!slot.was_moved() || !slot.owner.session.empty());
    UMA_CHECK(!slot.was_moved() || !shape().is_unified || !cells_.is_shared(i, slot.moved_from));
  }
  UMA_CHECK(cells_used() <= shape().cells);
}

}  // namespace uma::engine
