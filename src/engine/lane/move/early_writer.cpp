#include "engine/lane/move/early_writer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thrown.h"

namespace uma::engine {
namespace {

constexpr double kWriteSliceMs = 4;  // For how long the streams wait.
// Bytes in memory on their way to disk. A read waits for as much.
constexpr std::size_t kWrittenAtOnce = std::size_t{16} << 20;
constexpr Duration kWritePause = std::chrono::seconds(1);    // There is no memory, or the slot runs.
constexpr Duration kFailurePause = std::chrono::minutes(1);  // Twice as long after each failure.
constexpr Duration kFailurePauseMax = std::chrono::hours(1);
// A state without pieces is saved at once, for which streams wait; so long it waits for them.
constexpr Duration kStreamPatience = std::chrono::minutes(1);

// The number of the slot's tokens to write: if it runs, those of its former turn.
std::size_t tokens_to_write(const Slot& slot) {
  return slot.is_running ? std::min(slot.written_to, slot.tokens.size()) : slot.tokens.size();
}

}  // namespace

std::optional<std::size_t> EarlyWriter::next_due() const {
  const auto first = std::ranges::min_element(parts_.slots, {}, &Slot::write_at);
  if (first == parts_.slots.end() || first->write_at == kNever) return std::nullopt;
  return static_cast<std::size_t>(first - parts_.slots.begin());
}

TimePoint EarlyWriter::next_wake() const {
  if (writing_) return writing_->is_on_way ? kNever : std::max(writing_->waits_until, parts_.clock.now());
  const auto next = next_due();
  return next ? parts_.slots[*next].write_at : kNever;
}

bool EarlyWriter::advance() {
  const TimePoint now = parts_.clock.now();
  try {
    return writing_ ? work(now) : begin(now);
  } catch (...) {
    note_thrown();
    if (writing_) {
      end_failed();
    } else if (const auto next = next_due()) {
      parts_.slots.put_off_write(*next, now + kFailurePause);
    }
    return false;
  }
}

bool EarlyWriter::begin(TimePoint now) {
  const auto index = next_due();
  if (!index || parts_.slots[*index].write_at > now) return false;
  const Slot& slot = parts_.slots[*index];
  const auto sequence = static_cast<std::int32_t>(*index);
  const bool knows_pieces = parts_.shape().knows_pieces();
  std::size_t count = tokens_to_write(slot);
  while (knows_pieces && count > 0 && !parts_.context.can_truncate(sequence, static_cast<std::int32_t>(count))) --count;
  const bool may_write = count > 0 && !parts_.context.is_lost() && !slot.is_ephemeral && !slot.was_moved() &&
                         parts_.states.family_of(slot.adapters) != 0;
  if (!may_write) {
    parts_.slots.set_write_at(*index, kNever);
    return false;
  }
  const bool disturbs = !knows_pieces && parts_.sequences.someone_streams() && now < slot.last_used + kStreamPatience;
  if (disturbs || (slot.is_running && !knows_pieces)) {
    parts_.slots.put_off_write(*index, now + kWritePause);
    return false;
  }
  const std::uint64_t bytes = reservation_bytes(static_cast<std::int32_t>(count), sequence);
  if (parts_.keep_of(static_cast<std::int32_t>(count), bytes) == kv::Keep::in_memory) {
    parts_.slots.set_write_at(*index, kNever);
    return false;
  }
  Writing next{.slot = *index,
               .owner = slot.owner,
               .adapters = slot.adapters,
               .tokens = {slot.tokens.begin(), slot.tokens.begin() + static_cast<std::ptrdiff_t>(count)},
               .ends = piece_ends(parts_.context, sequence, static_cast<std::int32_t>(count))};
  const kv::EarlyWrite begun =
      parts_.options.store->begin_early(slot.owner, parts_.identity_of(slot.adapters), next.tokens, next.ends, bytes);
  if (begun.id == 0) {
    const TimePoint again = begun.again_after > Duration(0) ? now + begun.again_after : kNever;
    again == kNever ? parts_.slots.set_write_at(*index, kNever) : parts_.slots.put_off_write(*index, again);
    return false;
  }
  next.id = begun.id;
  next.pieces = begun.known;
  writing_ = std::move(next);
  return true;
}

// Whether the tokens are still where they were; KV of the same tokens is the same.
bool EarlyWriter::is_in_slot() const {
  const Slot& slot = parts_.slots[writing_->slot];
  if (slot.owner != writing_->owner || slot.adapters != writing_->adapters) return false;
  if (slot.unmoved().size() < writing_->tokens.size()) return false;
  if (!parts_.shape().knows_pieces() && (slot.is_running || slot.tokens.size() != writing_->tokens.size())) return false;
  return std::ranges::equal(writing_->tokens, std::span(slot.tokens).first(writing_->tokens.size()));
}

bool EarlyWriter::work(TimePoint now) {
  if (writing_->is_on_way || now < writing_->waits_until) return false;
  if (!is_in_slot()) {
    end(now + kWritePause);
    return false;
  }
  if (!writing_->save && !begin_save(now)) return false;
  const ContextCalls::PrefillPause pause(calls_);
  SequenceSave& save = *writing_->save;
  if (const auto saved = parts_.save_pieces(save, writing_->slot, now + from_ms(kWriteSliceMs)); !saved) {
    log_warning("lane {}: the state of slot {} is not written: {}", parts_.options.index, writing_->slot,
                saved.error().message);
    end_failed();
    return false;
  }
  if (!save.is_complete()) return true;
  kv::Snapshot snapshot = save.take(parts_.states.pool());
  writing_->pieces = snapshot.pieces.size();
  writing_->save.reset();
  writing_->is_on_way = true;
  const auto tell = [inbox = inbox_, id = writing_->id](bool is_written) { inbox->push(WrittenReport{id, is_written}); };
  parts_.options.store->write_early(writing_->id, std::move(snapshot), tell);
  return true;
}

void EarlyWriter::accept(const WrittenReport& report) {
  if (!writing_ || writing_->id != report.id) return;
  writing_->is_on_way = false;
  if (!report.is_written) return end_failed();
  if (writing_->pieces < writing_->ends.size()) return;
  log_debug("lane {}: {} tokens of slot {} are on disk", parts_.options.index, writing_->tokens.size(), writing_->slot);
  end(kNever);
}

// For `count` tokens, which are all of the sequence in a context that cannot be cut.
std::uint64_t EarlyWriter::reservation_bytes(std::int32_t count, std::int32_t sequence) const {
  return parts_.shape().can_truncate ? prompt_reservation_bytes(parts_.shape(), count)
                                     : state_reservation_bytes(parts_.context, sequence);
}

// False: there is no memory.
bool EarlyWriter::begin_save(TimePoint now) {
  const std::vector<std::int32_t>& ends = writing_->ends;
  const std::size_t begin = writing_->pieces;
  const std::int32_t begin_token = begin == 0 ? 0 : ends[begin - 1];
  const auto sequence = static_cast<std::int32_t>(writing_->slot);
  const std::uint64_t most = std::min<std::uint64_t>(kWrittenAtOnce, parts_.states.pool().bytes_max() / 4);
  std::size_t last = begin;
  while (last + 1 < ends.size() && reservation_bytes(ends[last + 1] - begin_token, sequence) <= most) ++last;
  const std::uint64_t bytes = reservation_bytes(ends[last] - begin_token, sequence);
  auto reserved = parts_.states.pool().reserve(bytes);
  if (!reserved && bytes > parts_.states.pool().bytes_max()) {
    end_failed();
    return false;
  }
  if (!reserved) {
    writing_->waits_until = now + kWritePause;
    return false;
  }
  kv::Snapshot begun{.identity = {}, .tokens = {}, .room = std::move(*reserved), .pieces = {}};
  for (std::size_t i = 0; i < begin; ++i) begun.pieces.push_back({i == 0 ? 0 : ends[i - 1], ends[i], Bytes()});
  const auto tokens = std::span(writing_->tokens).first(static_cast<std::size_t>(ends[last]));
  writing_->save.emplace(parts_.context, tokens, writing_->adapters, std::move(begun));
  return true;
}

// `again`: when the slot's state is tried again; kNever: it is on disk.
void EarlyWriter::end(TimePoint again) {
  const std::size_t index = writing_->slot;
  const std::size_t count = writing_->tokens.size();
  const bool is_same = parts_.slots[index].owner == writing_->owner;
  give_up();
  const Slot& slot = parts_.slots[index];
  if (!is_same || slot.write_at == kNever) return;
  if (again != kNever) return parts_.slots.put_off_write(index, again);
  if (slot.written_to <= count) parts_.slots.set_write_at(index, kNever);
}

void EarlyWriter::end_failed() {
  const std::size_t index = writing_->slot;
  const Duration pause = std::min(kFailurePauseMax, kFailurePause * (1U << std::min(parts_.slots[index].failed_writes, 10U)));
  end(parts_.clock.now() + pause);
  parts_.slots.note_write_failed(index);
}

void EarlyWriter::forget(const SessionId& session) {
  if (writing_ && writing_->owner.session == session) give_up();
}

void EarlyWriter::give_up() {
  if (!writing_) return;
  if (writing_->save) (void)writing_->save->give_up(parts_.states.pool());
  const std::uint64_t id = writing_->id;
  writing_.reset();
  parts_.options.store->end_early(id);
}

}  // namespace uma::engine
