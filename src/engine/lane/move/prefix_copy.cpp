#include "engine/lane/move/prefix_copy.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thrown.h"

namespace uma::engine {
namespace {

constexpr double kCopySliceMs = 4;     // For how long the streams wait.
constexpr double kWholeMaxMs = 10;     // Streams wait for a whole sequence at most so long.
constexpr std::size_t kLongerMax = 2;  // A sequence that is copied as a whole has at most so many times the tokens.

// An empty slot that is in use for the object's lifetime.
class BorrowedSlot {
 public:
  BorrowedSlot(const LaneParts& parts, std::size_t index, const CopyPrefixCommand& command) : parts_(parts), index_(index) {
    parts_.slots.claim(index, command.owner, false, command.adapters);
  }
  BorrowedSlot(const BorrowedSlot&) = delete;
  ~BorrowedSlot() {
    parts_.slots.release(index_, parts_.clock.now());
    parts_.slots.clear(index_);
  }

 private:
  const LaneParts& parts_;
  const std::size_t index_;
};

}  // namespace

std::optional<std::size_t> PrefixCopy::find_slot(const CopyPrefixCommand& command) const {
  const std::size_t count = command.tokens.size();
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < parts_.slots.size(); ++i) {
    const Slot& slot = parts_.slots[i];
    if (slot.is_ephemeral || slot.owner.is_private || slot.was_moved() || slot.adapters != command.adapters) continue;
    if (command.owner.is_public ? !slot.owner.is_public : slot.owner.tenant != command.owner.tenant) continue;
    if (slot.tokens.size() < count || !std::ranges::equal(std::span(slot.tokens).first(count), command.tokens)) continue;
    if (reuse_check_.is_being_verified(i)) continue;
    if (!found || slot.tokens.size() < parts_.slots[*found].tokens.size()) found = i;
  }
  return found;
}

void PrefixCopy::begin(CopyPrefixCommand command) {
  give_up();
  const bool may_copy = parts_.options.store != nullptr && parts_.shape().can_truncate && !parts_.context.is_lost() &&
                        !command.tokens.empty() && parts_.states.family_of(command.adapters) != 0;
  const auto slot = may_copy ? find_slot(command) : std::nullopt;
  const std::uint64_t bytes = prompt_reservation_bytes(parts_.shape(), size_of(command.tokens));
  const kv::Keep keep = parts_.options.store == nullptr ? kv::Keep::in_memory : parts_.keep_of(size_of(command.tokens), bytes);
  if (!slot || !parts_.options.store->has_place_for(command.owner.tenant, bytes, keep)) return command.then();
  if (parts_.shape().knows_pieces()) {
    auto reserved = parts_.states.pool().reserve(bytes);
    if (!reserved) return command.then();
    SequenceSave save(parts_.context, command.tokens, command.adapters, std::move(*reserved));
    copying_.emplace(std::move(command), std::move(save));
    return;
  }
  auto copied = contain([&] { return copy_by_slot(command, *slot); });
  if (copied) return put(std::move(command), std::move(*copied));
  log_debug("lane {}: the beginning of a prompt is not copied for other nodes: {}", parts_.options.index,
            copied.error().message);
  command.then();
}

Expected<kv::Snapshot> PrefixCopy::copy_by_slot(const CopyPrefixCommand& command, std::size_t from) {
  const std::vector<Token> whole = parts_.slots[from].tokens;
  const std::uint64_t bytes = prompt_reservation_bytes(parts_.shape(), size_of(command.tokens));
  if (whole.size() > kLongerMax * command.tokens.size()) return fail(ErrorCode::limit_wait, "the conversation is too long");
  const bool streams_wait = parts_.sequences.someone_streams();
  const std::size_t bytes_moved = (whole.size() + command.tokens.size()) * parts_.shape().kv_bytes_per_token;
  if (streams_wait && parts_.costs.transfer.move_ms(bytes_moved) > kWholeMaxMs) {
    return fail(ErrorCode::limit_wait, "streams would wait for it");
  }
  auto room_for_all = parts_.states.pool().reserve(state_reservation_bytes(parts_.context, static_cast<std::int32_t>(from)));
  auto room = parts_.states.pool().reserve(bytes);
  if (!room_for_all || !room) return fail(ErrorCode::limit_wait, "there is no free memory");
  if (!streams_wait && !parts_.slots.find_empty()) (void)eviction_.evict_idle(kv::GiveWay::at_once, std::span(&from, 1));
  const auto to = parts_.slots.find_empty();
  if (!to) return fail(ErrorCode::limit_wait, "no slot is free");
  const ContextCalls::PrefillPause pause(calls_);
  const auto to_sequence = static_cast<std::int32_t>(*to);
  const BorrowedSlot borrowed(parts_, *to, command);
  auto all = save_sequence(parts_.context, static_cast<std::int32_t>(from), whole, command.adapters, parts_.states.pool(),
                           std::move(*room_for_all));
  if (!all) return all;
  const auto loaded = restore_sequence(parts_.context, to_sequence, command.adapters, *all);
  kv::recycle(std::move(*all), parts_.states.pool());
  if (!loaded) return std::unexpected(loaded.error());
  parts_.slots.append(*to, whole);
  if (!parts_.slots.cut(*to, command.tokens.size())) return fail(ErrorCode::runtime_decode, "the copy cannot be cut");
  return save_sequence(parts_.context, to_sequence, command.tokens, command.adapters, parts_.states.pool(), std::move(*room));
}

void PrefixCopy::put(CopyPrefixCommand command, kv::Snapshot snapshot) {
  log_debug("lane {}: {} tokens that other prompts begin with, too, are in the store", parts_.options.index,
            command.tokens.size());
  const kv::Keep keep = parts_.keep_of(size_of(snapshot.tokens), snapshot.bytes());
  parts_.options.store->put(std::move(command.owner), std::move(snapshot), keep);
  command.then();
}

bool PrefixCopy::advance() {
  if (!copying_) return false;
  try {
    work(parts_.clock.now() + from_ms(kCopySliceMs));
  } catch (...) {
    note_thrown();
    give_up();
  }
  return true;
}

void PrefixCopy::work(TimePoint until) {
  const auto slot = find_slot(copying_->command);
  if (!slot) return give_up();
  const ContextCalls::PrefillPause pause(calls_);
  if (const auto saved = parts_.save_pieces(copying_->save, *slot, until); !saved) {
    log_warning("lane {}: the beginning of a prompt could not be copied for other nodes: {}", parts_.options.index,
                saved.error().message);
    return give_up();
  }
  if (!copying_->save.is_complete()) return;
  kv::Snapshot snapshot = copying_->save.take(parts_.states.pool());
  CopyPrefixCommand command = std::move(copying_->command);
  copying_.reset();
  put(std::move(command), std::move(snapshot));
}

void PrefixCopy::give_up() {
  if (!copying_) return;
  (void)copying_->save.give_up(parts_.states.pool());
  MoveOnlyFunction<void()> then = std::move(copying_->command.then);
  copying_.reset();
  run_noting(then);
}

}  // namespace uma::engine
