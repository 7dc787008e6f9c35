// The lane's states: which slot a sequence gets, where the beginning of its chain comes from, and where states go that leave.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/lane.h"
#include "engine/lane_internal.h"
#include "engine/state_transfer.h"
#include "kv/tier_policy.h"

namespace uma::engine {
namespace {

constexpr std::int32_t kSharedMin = 16;  // tokens: a shorter beginning is not worth a copy
constexpr double kMegabyte = 1e6;
constexpr double kKeepsMs = 2000;           // that a background sequence stays which had to wait for its turn
constexpr double kComputeMsPerToken = 0.5;  // until the first prompt was measured
constexpr double kRoomMs = 2000;            // that a request waits at most for a state to go to disk

// What was reused is computed after all.
void note_recomputed(Usage& usage) {
  usage.recomputed_tokens += std::exchange(usage.reused_tokens, 0);
  usage.tier = Tier::none;
  usage.restore_ms = 0;
  usage.reuse_reason = "refused";
}

}  // namespace

std::size_t Lane::Arrival::pieces_wanted() const {
  const auto& pieces = image().pieces;
  return static_cast<std::size_t>(
      std::ranges::find_if(pieces, [&](const kv::StatePiece& piece) { return piece.end >= tokens_wanted; }) - pieces.begin() +
      1);
}

// --- What is cached
// -------------------------------------------------------------------------------------------------------------

std::int64_t Lane::cells_used() const {
  if (shape().is_unified) return cells_.used();
  std::int64_t cells = 0;
  for (const Slot& slot : slots_) cells += size_of(slot.tokens);
  return cells;
}

// Cells in use or promised to the prompts of running sequences.
std::int64_t Lane::cells_promised() const {
  std::int64_t cells = cells_used();
  for (const SequencePtr& sequence : sequences_) {
    if (sequence->state == Sequence::State::running) cells += size_of(sequence->chain) - size_of(slots_[sequence->slot].tokens);
  }
  return cells;
}

std::int64_t Lane::cells_arriving() const {
  std::int64_t cells = 0;
  for (const SequencePtr& sequence : sequences_) {
    if (!sequence->arriving) continue;
    cells += sequence->arriving->tokens_loaded_at_end() - size_of(slots_[sequence->slot].tokens);
  }
  return cells;
}

// The context has computed or loaded these at the end of the slot's.
void Lane::add_cached(std::size_t index, std::span<const Token> tokens) {
  std::vector<Token>& cached = slots_[index].tokens;
  cached.insert(cached.end(), tokens.begin(), tokens.end());
  cells_.add(index, tokens.size());
}

// The context has forgotten the others.
void Lane::keep_cached(std::size_t index, std::size_t count) {
  Slot& slot = slots_[index];
  slot.tokens.resize(count);
  if (!slot.was_moved()) slot.moved_from = Slot::kNowhere;
  cells_.keep(index, count);
}

// Takes turns out of the middle of a slot and moves up what follows. False, and nothing changed: the context cannot, somebody
// shares what would move, or bits count.
bool Lane::shift_slot(std::size_t index, const TurnDrop& drop) {
  const auto begin = static_cast<std::size_t>(drop.begin);
  const auto end = static_cast<std::size_t>(drop.end);
  if (!shape().can_shift || options_.is_reproducible) return false;
  if (shape().is_unified && cells_.is_shared(index, end)) return false;
  Slot& slot = slots_[index];
  context_->shift(static_cast<std::int32_t>(index), drop.begin, drop.end);
  slot.tokens.erase(slot.tokens.begin() + drop.begin, slot.tokens.begin() + drop.end);
  cells_.remove(index, begin, end);
  slot.moved_from = std::min(slot.moved_from, begin);
  return true;
}

// Keeps the first `count` tokens of a slot. False: the context cannot, and the slot is empty.
bool Lane::cut_slot(std::size_t index, std::size_t count) {
  if (count == slots_[index].tokens.size()) return true;
  if (!context_->truncate(static_cast<std::int32_t>(index), static_cast<std::int32_t>(count))) {
    drop_tokens(index);
    return false;
  }
  keep_cached(index, count);
  return true;
}

void Lane::drop_tokens(std::size_t index) {
  UMA_CHECK(context_->truncate(static_cast<std::int32_t>(index), 0));
  keep_cached(index, 0);
  residents_changed_ = true;
}

void Lane::clear_slot(std::size_t index) {
  drop_tokens(index);
  slots_[index].owner = {};
  slots_[index].uses = 0;
}

// --- States that leave
// ----------------------------------------------------------------------------------------------------------

bool Lane::is_worth_storing(const Slot& slot) const {
  if (options_.store == nullptr || slot.is_ephemeral || size_of(slot.tokens) < options_.stored_tokens_min) return false;
  if (slot.was_moved()) return false;
  if (!slot.owner.session.empty()) return true;
  // Nobody's state is worth a pause, and memory that was not used before is slow.
  const StateSize size = state_size(shape(), size_of(slot.tokens));
  const bool someone_decodes = std::ranges::any_of(sequences_, [](const SequencePtr& sequence) {
    return sequence->state == Sequence::State::running && sequence->generated() > 0;
  });
  return !someone_decodes || pool_.has(size.piece_bytes, size.pieces);
}

// For nobody's state no other gives way.
std::optional<ByteBudget::Share> Lane::room_to_store(std::size_t index, kv::GiveWay how) {
  const std::uint64_t bytes = room_of_state(*context_, static_cast<std::int32_t>(index));
  return slots_[index].owner.session.empty() ? pool_.reserve(bytes) : options_.store->make_room(bytes, how);
}

std::optional<ByteBudget::Share> Lane::make_room_at_once(std::uint64_t bytes) {
  return options_.store != nullptr ? options_.store->make_room(bytes, kv::GiveWay::at_once) : pool_.reserve(bytes);
}

// Gives the store a copy of what the slot holds, where it is worth that and memory has room.
void Lane::store_state(std::size_t index) {
  if (!is_worth_storing(slots_[index])) return;
  if (auto room = room_to_store(index, kv::GiveWay::at_once)) {
    store_state(index, std::move(*room));
  } else {
    note_not_stored(index);
  }
}

void Lane::note_not_stored(std::size_t index) {
  const Slot& slot = slots_[index];
  if (slot.owner.session.empty()) return;
  log_warning("session {}: memory has no room for the state of its {} tokens, which will be computed again",
              slot.owner.session.value, slot.tokens.size());
  options_.store->note_dropped();
}

void Lane::store_state(std::size_t index, ByteBudget::Share room) {
  const Slot& slot = slots_[index];
  const TimePoint began = clock_.now();
  auto image = save_sequence(*context_, static_cast<std::int32_t>(index), slot.tokens, pool_, std::move(room));
  if (!image) {
    log_warning("session {}: its state could not be saved and will be computed again: {}",
                slot.owner.session.empty() ? "-" : slot.owner.session.value, image.error().message);
    return;
  }
  options_.store->put(slot.owner, std::move(*image));
  const double ms = to_ms(clock_.now() - began);
  log_debug("lane {}: stored {} tokens of slot {} in {:.1f} ms", options_.index, slot.tokens.size(), index, ms);
  stats_.save.record_ms(ms);
}

// At the end of its sequence: a session keeps its slot for its next turn, and what a one-shot request has computed may be the
// beginning of the next one's. Of a state that cannot be cut there is a copy from the end of each turn to come back to.
void Lane::leave_slot(const Sequence& sequence) {
  Slot& slot = slots_[sequence.slot];
  slot.is_running = false;
  slot.last_used = clock_.now();
  residents_changed_ = true;
  const bool stays = options_.store != nullptr && !slot.is_ephemeral && !options_.is_reproducible &&
                     size_of(slot.tokens) >= options_.stored_tokens_min;
  if (sequence.job.session.empty() && !stays) {
    clear_slot(sequence.slot);
  } else if (!shape().can_truncate) {
    store_state(sequence.slot);
  }
}

// As store_state(), for a request that needs the slot: it waits while others leave memory for the disk. False: it is worth to
// wait a little more. The state is given up where a request has waited for long.
bool Lane::store_by_disk(std::size_t index) {
  const Slot& slot = slots_[index];
  if (slot.owner.session.empty() || !is_worth_storing(slot)) {
    store_state(index);
    return true;
  }
  if (auto room = room_to_store(index, kv::GiveWay::by_disk)) {
    store_state(index, std::move(*room));
    return true;
  }
  const TimePoint now = clock_.now();
  const bool may_fit = room_of_state(*context_, static_cast<std::int32_t>(index)) <= pool_.bytes_max();
  if (room_wanted_since_ == kNever) room_wanted_since_ = now;
  waits_for_room_ = may_fit && now < room_wanted_since_ + from_ms(kRoomMs);
  if (!waits_for_room_) note_not_stored(index);
  return !waits_for_room_;
}

// Frees the least valuable slot that nobody runs in. False: there is none, or it has to wait.
bool Lane::evict_idle(kv::GiveWay how, std::span<const std::size_t> except) {
  std::vector<kv::StateView> idle;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.is_running || slot.tokens.empty() || std::ranges::contains(except, i)) continue;
    idle.push_back({.id = i,
                    .bytes = slot.tokens.size() * shape().kv_bytes_per_token,
                    .tokens_count = slot.tokens.size(),
                    .uses = slot.uses,
                    .idle_s = to_ms(clock_.now() - slot.last_used) / 1000});
  }
  const kv::StateView* least = kv::least_valuable(idle, options_.eviction);
  if (least == nullptr) return false;
  if (how == kv::GiveWay::at_once) {
    store_state(least->id);
  } else if (!store_by_disk(least->id)) {
    return false;
  }
  clear_slot(least->id);
  return true;
}

// Frees cells that no planned call needs: an idle slot's, or what a sequence that is away has left here. False: there are none.
bool Lane::free_unused_cells() {
  if (give_up_verification()) return true;
  if (evict_idle(kv::GiveWay::at_once)) return true;
  for (const SequencePtr& sequence : sequences_) {
    if (!sequence->is_away || slots_[sequence->slot].tokens.empty()) continue;
    drop_tokens(sequence->slot);
    return true;
  }
  return false;
}

// The newest of the least important running sequences.
Lane::Sequence* Lane::choose_victim() {
  Sequence* victim = nullptr;
  std::size_t running = 0;
  for (const SequencePtr& sequence : sequences_) {
    if (sequence->state != Sequence::State::running || sequence->is_elsewhere()) continue;
    ++running;
    if (victim == nullptr || sequence->job.is_background >= victim->job.is_background) victim = sequence.get();
  }
  return running > 1 ? victim : nullptr;
}

void Lane::swap_out(Sequence& sequence) {
  if (sequence.is_away) come_home(sequence);
  end_verification(sequence);
  if (sequence.is_unsound) return begin_anew(sequence);  // what is in its slot must not be kept
  kv::ImagePtr kept;
  kv::StateId id = 0;
  if (sequence.arriving) {
    // What had not come in yet is whole.
    Arrival arrival = std::move(*sequence.arriving);
    sequence.arriving.reset();
    id = arrival.id;
    kept = arrival.report ? kv::share_image(std::move(*arrival.report->image), pool_) : std::move(arrival.stored);
  } else if (const Slot& slot = slots_[sequence.slot]; !slot.tokens.empty() && !slot.was_moved()) {
    const std::uint64_t bytes = room_of_state(*context_, static_cast<std::int32_t>(sequence.slot));
    auto room = make_room_at_once(bytes);
    auto image = room ? save_sequence(*context_, static_cast<std::int32_t>(sequence.slot), slot.tokens, pool_, std::move(*room))
                      : fail(ErrorCode::limit_wait, "memory has no room for it");
    if (image) {
      kept = kv::share_image(std::move(*image), pool_);
    } else {
      log_warning("request {}: its state could not be saved and will be computed again: {}", sequence.job.id.value,
                  image.error().message);
    }
  }
  sequence.image_id = id;
  set_aside(sequence, std::move(kept));
}

// Ends the sequence's stay in the context; `image`, if any, is what it resumes from.
void Lane::set_aside(Sequence& sequence, kv::ImagePtr image) {
  sequence.image = std::move(image);
  if (sequence.is_swapped_out()) {
    stats_.swapped_sequences.add(1);
    stats_.swapped_bytes.add(static_cast<std::int64_t>(sequence.image->bytes()));
  }
  Slot& slot = slots_[sequence.slot];
  clear_slot(sequence.slot);
  slot.is_running = false;
  sequence.state = Sequence::State::waiting;
  sequence.waits_since = clock_.now();
  queue_changed_ = true;
  stats_.queue_depth.add(1);
  stats_.preemptions_total.add();
  log_info("request {}: swapped out at {} tokens; it resumes when there is room", sequence.job.id.value, sequence.chain.size());
}

// --- Values that are not finite
// -------------------------------------------------------------------------------------------------

// Some logits are not finite, so some cells are not, and they spoil what is computed beside them, also once they are free. All
// leave the context, whoever has spoiled cells without them, and it begins with zeros.
void Lane::clear_context() {
  (void)give_up_verification();
  for (const SequencePtr& sequence : sequences_) {
    if (sequence->state != Sequence::State::running) continue;
    if (sequence->is_unsound) {
      begin_anew(*sequence);
    } else if (sequence->is_away) {
      drop_tokens(sequence->slot);
    } else {
      swap_out(*sequence);
    }
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].is_running || slots_[i].tokens.empty()) continue;
    store_state(i);
    clear_slot(i);
  }
  context_->clear();
}

// It is computed from its tokens; who has been, ends. What it reused is nobody's any more.
void Lane::begin_anew(Sequence& sequence) {
  sequence.is_unsound = false;
  stats_.not_finite_total.add();
  log_error("request {} session {} seq {}: its logits are not finite; {}", sequence.job.id.value,
            sequence.job.session.empty() ? "-" : sequence.job.session.value, sequence.slot,
            sequence.is_anew ? "nor are they computed anew, it ends" : "what it has cached is thrown away and computed again");
  clear_slot(sequence.slot);
  if (Usage& usage = sequence.usage; usage.reused_tokens > 0) {
    const auto reused = static_cast<std::size_t>(usage.reused_tokens);
    const std::vector<Token> tokens(sequence.chain.begin(), sequence.chain.begin() + static_cast<std::ptrdiff_t>(reused));
    forget_beginning(tokens, asker_of(sequence));
    note_recomputed(usage);
  }
  if (sequence.is_anew) {
    return finish(sequence, FinishReason::error,
                  Error{ErrorCode::runtime_decode, "the model's numbers are not finite: no token can be chosen from them"});
  }
  sequence.is_anew = sequence.is_refused = true;
  set_aside(sequence, nullptr);
}

// --- Where a beginning comes from
// -----------------------------------------------------------------------------------------------

kv::Asker Lane::asker_of(const Sequence& sequence) const {
  return {.family = family_,
          .tenant = TenantId{sequence.job.flow.tenant},
          .session = sequence.job.session,
          .forked_from = sequence.job.forked_from,
          .takes_others = !options_.is_reproducible};
}

// Whether what is in the slot, which is not the session's own, may be part of the sequence. Where bits count only the session
// that it is a copy of has computed it in the same way.
bool Lane::may_share(const Sequence& sequence, const Slot& slot) const {
  if (slot.is_ephemeral) return false;
  if (options_.is_reproducible) return !slot.owner.session.empty() && slot.owner.session == sequence.job.forked_from;
  if (slot.owner.is_private) return !slot.owner.session.empty() && slot.owner.session == sequence.job.forked_from;
  return slot.owner.is_public || slot.owner.tenant.value == sequence.job.flow.tenant;
}

double Lane::compute_ms(std::int32_t tokens, std::int32_t cached) const {
  const double known_ms = step_model_.prefill_ms(tokens, cached);
  return known_ms > 0 ? known_ms : kComputeMsPerToken * tokens;
}

double Lane::load_ms(std::size_t bytes) const {
  return load_ms_per_mb_ * static_cast<double>(bytes) / kMegabyte;
}

// A copy within a split context is a state, saved and loaded.
double Lane::copy_ms(std::size_t tokens) const {
  return 2 * load_ms(tokens * shape().kv_bytes_per_token);
}

// The source that has most of the chain, unless bringing it in takes longer than computing what it adds. The last token of a
// chain is always computed: its logits are needed.
Lane::Source Lane::choose_source(const Sequence& sequence) const {
  const std::span<const Token> wanted = std::span<const Token>(sequence.chain).first(sequence.chain.size() - 1);
  // How much can be used of what is stored as `tokens`, and of those of a slot.
  const auto usable = [&](std::span<const Token> tokens) {
    const std::size_t common = kv::common_prefix(tokens, wanted);
    return shape().can_truncate || common == tokens.size() ? static_cast<std::int32_t>(common) : 0;
  };
  const auto usable_of_slot = [&](std::size_t index, std::span<const Token> tokens) {
    const auto common = static_cast<std::int32_t>(kv::common_prefix(tokens, wanted));
    return context_->can_truncate(static_cast<std::int32_t>(index), common) ? common : 0;
  };
  Source best;
  const auto consider = [&](const Source& source, double ready_ms) {
    const std::int32_t added = source.tokens_count - best.tokens_count;
    if (added <= 0) return;
    // Where bits count, what was computed is not computed again in another way.
    if (ready_ms <= compute_ms(added, best.tokens_count) || options_.is_reproducible) best = source;
  };
  // Its own state first: it goes on with the same bits, so others' have to hold more of the chain.
  const auto is_own = [&](const Slot& slot) {
    return !sequence.job.session.empty() && slot.owner.session == sequence.job.session;
  };
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!is_own(slots_[i])) continue;
    consider({.kind = Source::Kind::slot, .tokens_count = usable_of_slot(i, slots_[i].tokens), .slot = i}, 0);
  }
  if (sequence.image) {
    Source source{.kind = Source::Kind::image, .tokens_count = usable(sequence.image->tokens)};
    source.stored.tokens_stored = size_of(sequence.image->tokens);
    source.stored.is_own = sequence.image_is_own;
    consider(source, load_ms(sequence.image->bytes()));
  } else if (options_.store != nullptr && !sequence.is_refused) {
    if (const auto match = options_.store->find(asker_of(sequence), wanted); match && match->tokens_count >= kSharedMin) {
      Source source{.kind = Source::Kind::store, .tokens_count = match->tokens_count, .stored = *match};
      // Held until it is loaded, so that what has to leave for this request is something else.
      if (match->tier == Tier::warm) source.image = options_.store->hold(match->id);
      consider(source, match->fetch_ms + load_ms(match->bytes));
    }
  }
  const std::int32_t own_count = best.tokens_count;
  const bool has_slot = std::ranges::any_of(slots_, is_own);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.tokens.empty() || is_own(slot) || !may_share(sequence, slot) || is_in_doubt(i)) continue;
    const std::int32_t count = usable_of_slot(i, slot.unmoved());
    const bool is_parent = !sequence.job.forked_from.empty() && slot.owner.session == sequence.job.forked_from;
    if (count <= own_count || (!is_parent && count < kSharedMin)) continue;
    const bool is_copied = !shape().is_unified && (has_slot || !can_take_over(slot, count));
    // A copy is a state: of a window it has only what its end sees.
    if (is_copied && !shape().can_truncate && count < size_of(slot.tokens)) continue;
    consider({.kind = Source::Kind::slot, .tokens_count = count, .slot = i}, is_copied ? copy_ms(slot.tokens.size()) : 0);
  }
  return best;
}

// Whether the sequence has to wait for a state that is on disk; then it is on its way.
bool Lane::begin_fetch(Sequence& sequence, const Source& source) {
  if (!source.is_on_disk()) return false;
  sequence.fetching_since = clock_.now();
  sequence.image_is_own = source.stored.is_own;
  options_.store->fetch(source.stored.id,
                        [inbox = inbox_, id = sequence.job.id, state = source.stored.id](Expected<kv::ImagePtr> image) {
                          inbox->push(FetchReport{.id = id, .state = state, .image = std::move(image)});
                        });
  return true;
}

// Requests that begin with the same text and arrive together: one computes it, and the others wait for that, where it is at
// least half of the one's prompt and bringing it in from there takes less than computing it again. What is urgent does not wait
// for what is not.
bool Lane::begin_to_wait(Sequence& sequence, const Source& source) {
  if (!shape().can_truncate || options_.is_reproducible) return false;
  const std::span<const Token> wanted = std::span<const Token>(sequence.chain).first(sequence.chain.size() - 1);
  for (const SequencePtr& pointer : sequences_) {
    const Sequence& other = *pointer;
    if (other.state != Sequence::State::running || other.generated() > 0) continue;
    if (other.job.is_background && !sequence.job.is_background) continue;
    const Slot& slot = slots_[other.slot];
    if (!may_share(sequence, slot)) continue;
    const std::size_t common = std::min(kv::common_prefix(other.chain, wanted), slot.moved_from);
    const auto added = static_cast<std::int32_t>(common) - source.tokens_count;
    if (added < sched::kFastChunk || common <= slot.tokens.size() || 2 * common < other.chain.size()) continue;
    if (!shape().is_unified && copy_ms(other.chain.size()) > compute_ms(added, source.tokens_count)) continue;
    sequence.waits_for = other.job.id;
    return true;
  }
  return false;
}

// Until the other one's prompt is computed, or it has left its slot.
bool Lane::waits_for_another(Sequence& sequence) const {
  if (sequence.waits_for == RequestId{}) return false;
  const bool still = std::ranges::any_of(sequences_, [&](const SequencePtr& other) {
    return other->job.id == sequence.waits_for && other->state == Sequence::State::running && other->generated() == 0;
  });
  if (!still) sequence.waits_for = {};
  return still;
}

void Lane::take_fetched(FetchReport report) {
  Sequence* found = find(report.id);
  if (found == nullptr || !found->is_fetching()) return;
  Sequence& sequence = *found;
  sequence.image_ms = to_ms(clock_.now() - std::exchange(sequence.fetching_since, {}));
  if (report.image) {
    sequence.image = std::move(*report.image);
    sequence.image_id = report.state;
  } else {
    sequence.is_refused = true;
    log_warning("request {}: its stored state cannot be used, its tokens are computed again: {}", sequence.job.id.value,
                report.image.error().message);
  }
}

// --- Placing
// --------------------------------------------------------------------------------------------------------------------

// What the sequence begins with is on disk: before memory is filled with that, the state leaves it whose slot it will need.
// False: that has to wait.
bool Lane::make_slot_ahead(const Sequence& sequence) {
  const bool has_slot = std::ranges::any_of(slots_, [&](const Slot& slot) {
    const bool is_own = !sequence.job.session.empty() && slot.owner.session == sequence.job.session;
    return is_own || (!slot.is_running && slot.tokens.empty());
  });
  if (!has_slot) (void)evict_idle(kv::GiveWay::by_disk);
  return !waits_for_room_;
}

// Whether a request that continues the slot's first `count` tokens gets the slot itself: no session owns it, and most of it is
// used.
bool Lane::can_take_over(const Slot& slot, std::int32_t count) {
  return !slot.is_running && slot.owner.session.empty() && count >= size_of(slot.tokens) / 4 * 3;
}

// The session's own slot; a slot left behind that the sequence continues; the lowest free one, since the library rewards
// running slots that lie close together; the least valuable idle one.
std::optional<std::size_t> Lane::choose_slot(const Sequence& sequence, const Source& source) {
  if (!sequence.job.session.empty()) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].owner.session == sequence.job.session) return i;
    }
  }
  const bool is_from_slot = source.kind == Source::Kind::slot;
  if (is_from_slot) {
    if (can_take_over(slots_[source.slot], source.tokens_count)) return source.slot;
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].is_running && slots_[i].tokens.empty()) return i;
  }
  const auto spared = is_from_slot ? std::span(&source.slot, 1) : std::span<const std::size_t>();
  if (evict_idle(kv::GiveWay::by_disk, spared)) return choose_slot(sequence, source);
  if (waits_for_room_ || !is_from_slot || slots_[source.slot].is_running) return std::nullopt;
  // Only the source is left: it changes hands, and what it was for goes to the store.
  if (!store_by_disk(source.slot)) return std::nullopt;
  slots_[source.slot].owner = {};
  return source.slot;
}

// Room for the whole chain beside what the others hold, in a unified context. What comes from another slot shares its cells.
// False: there is none.
bool Lane::make_room_for(const Sequence& sequence, std::size_t index, Source& source) {
  if (!shape().is_unified) return true;
  const auto needed = [&] {
    std::int64_t cells = cells_promised() + size_of(sequence.chain) + 1 - size_of(slots_[index].tokens);
    if (source.kind == Source::Kind::slot && source.slot != index) cells -= source.tokens_count;
    if (source.kind == Source::Kind::image || source.kind == Source::Kind::store) {
      cells = std::max<std::int64_t>(cells, cells_promised() + source.stored.tokens_stored);
    }
    return cells;
  };
  while (needed() > shape().cells) {
    if (give_up_verification()) continue;
    const bool is_slot = source.kind == Source::Kind::slot;
    const std::size_t spared[] = {index, source.slot};
    if (evict_idle(kv::GiveWay::by_disk, is_slot ? std::span(spared) : std::span(spared).first(1))) continue;
    if (waits_for_room_) return false;
    if (source.kind == Source::Kind::none || (is_slot && source.slot == index)) return false;
    // Computed from its tokens it needs less beside what it comes from.
    if (is_slot && !slots_[source.slot].is_running) {
      if (!store_by_disk(source.slot)) return false;
      clear_slot(source.slot);
    }
    source = {};
  }
  return true;
}

bool Lane::place(Sequence& sequence, Source source, TimePoint now) {
  const auto index = choose_slot(sequence, source);
  if (!index) return false;
  Slot& slot = slots_[*index];
  UMA_CHECK(!slot.is_running);
  const bool had_tokens = !slot.tokens.empty() && slot.owner.session == sequence.job.session;
  const bool stays = source.kind == Source::Kind::slot && source.slot == *index;
  if (!cut_slot(*index, stays ? static_cast<std::size_t>(source.tokens_count) : 0)) source = {};
  if (!make_room_for(sequence, *index, source)) return false;
  slot.owner = {.tenant = TenantId{sequence.job.flow.tenant},
                .session = sequence.job.session,
                .is_public = sequence.job.is_public,
                .is_private = sequence.job.is_private};
  slot.is_running = true;
  slot.is_ephemeral = sequence.job.is_ephemeral;
  ++slot.uses;
  residents_changed_ = true;
  queue_changed_ = true;
  if (!sequence.was_placed()) shares_.charge(sequence.job.flow, size_of(sequence.chain));
  if (is_urgent(sequence, now)) sequence.keeps_until = now + from_ms(kKeepsMs);
  sequence.state = Sequence::State::running;
  sequence.slot = *index;
  stats_.queue_depth.add(-1);
  if (sequence.is_swapped_out()) {
    stats_.swapped_sequences.add(-1);
    stats_.swapped_bytes.add(-static_cast<std::int64_t>(sequence.image->bytes()));
  }
  fill_slot(sequence, *index, source);
  if (options_.store != nullptr) {
    const StateSize size = state_size(shape(), size_of(sequence.chain));
    options_.store->expect(size.piece_bytes, size.pieces);
  }
  if (!sequence.was_placed()) write_receipt(sequence, source, had_tokens);
  sequence.image.reset();
  sequence.placed_at = now;
  log_debug("request {} session {} seq {}: placed with {} of {} tokens cached, {} to come", sequence.job.id.value,
            sequence.job.session.empty() ? "-" : sequence.job.session.value, *index, slot.tokens.size(), sequence.chain.size(),
            sequence.arriving ? sequence.arriving->tokens_wanted : 0);
  if (!sequence.arriving) begin_verification(sequence, 0);
  return true;
}

// Brings the source's tokens into the slot, or begins to.
void Lane::fill_slot(Sequence& sequence, std::size_t index, const Source& source) {
  const auto count = static_cast<std::size_t>(source.tokens_count);
  switch (source.kind) {
    case Source::Kind::none:
      return;
    case Source::Kind::slot: {
      if (source.slot == index) return;
      copy_slot(source.slot, index, count, sequence.job.session.empty());
      return;
    }
    case Source::Kind::image:
      sequence.arriving = Arrival{.report = std::nullopt,
                                  .stored = sequence.image,
                                  .id = sequence.image_id,
                                  .tokens_wanted = source.tokens_count,
                                  .ms = sequence.image_ms};
      return;
    case Source::Kind::store:
      (void)options_.store->take(source.stored.id);
      sequence.arriving =
          Arrival{.report = std::nullopt, .stored = source.image, .id = source.stored.id, .tokens_wanted = source.tokens_count};
  }
}

// The first `count` tokens of a slot come into an empty one, or none of them where that fails: then they are computed again.
void Lane::copy_slot(std::size_t from, std::size_t to, std::size_t count, bool is_one_shot) {
  Slot& source = slots_[from];
  ++source.uses;
  source.last_used = clock_.now();
  const auto from_sequence = static_cast<std::int32_t>(from);
  const auto to_sequence = static_cast<std::int32_t>(to);
  if (shape().is_unified) {
    context_->share(from_sequence, to_sequence, static_cast<std::int32_t>(count));
    cells_.share(from, to, count);
    slots_[to].tokens.assign(source.tokens.begin(), source.tokens.begin() + static_cast<std::ptrdiff_t>(count));
    return;
  }
  const std::uint64_t bytes = room_of_state(*context_, from_sequence);
  auto room = is_one_shot ? pool_.reserve(bytes) : make_room_at_once(bytes);
  if (!room) {
    log_debug("lane {}: memory has no room to copy the {} tokens of slot {}, which are computed again", options_.index,
              source.tokens.size(), from);
    return;
  }
  const auto copied = copy_sequence(*context_, from_sequence, to_sequence, source.tokens, pool_, std::move(*room));
  if (!copied) {
    log_warning("lane {}: the {} tokens of slot {} could not be copied and are computed again: {}", options_.index,
                source.tokens.size(), from, copied.error().message);
    return;
  }
  add_cached(to, source.tokens);
  (void)cut_slot(to, count);
}

void Lane::write_receipt(Sequence& sequence, const Source& source, bool had_tokens) {
  Usage& usage = sequence.usage;
  const bool is_here = source.kind == Source::Kind::slot;
  const bool is_session = !sequence.job.session.empty();
  usage.prompt_tokens = sequence.prompt_tokens;
  usage.reused_tokens = sequence.arriving ? sequence.arriving->tokens_wanted : size_of(slots_[sequence.slot].tokens);
  usage.recomputed_tokens = usage.prompt_tokens - usage.reused_tokens;
  if (usage.reused_tokens == 0) {
    usage.reuse_reason = sequence.is_refused ? "refused" : !is_session ? "one_shot" : had_tokens ? "diverged" : "not_cached";
    return;
  }
  usage.tier = is_here ? Tier::hot : source.kind == Source::Kind::image ? Tier::cold : Tier::warm;
  // What another had computed may have come into the session's slot.
  const bool is_own = is_here ? is_session && had_tokens && source.slot == sequence.slot : source.stored.is_own;
  const bool is_moved = is_here && slots_[sequence.slot].was_moved();
  // Its slot has what came after it, which cannot be cut off.
  const bool is_checkpoint = !is_here && is_own && had_tokens && !shape().can_truncate;
  usage.reuse_reason = is_moved ? "shifted" : is_checkpoint ? "checkpoint" : is_own ? tier_name(usage.tier) : "prefix";
  if (!is_here) return;  // counted when it has come
  stats_.reused_tokens_total.add(static_cast<std::uint64_t>(usage.reused_tokens));
  stats_.hot_hits_total.add();
}

// --- Arrivals
// -------------------------------------------------------------------------------------------------------------------

// Makes room for the state of a whole prompt and begins to load it.
void Lane::take_prompt_back(Sequence& sequence, PrefillReport report) {
  sequence.is_away = false;
  drop_tokens(sequence.slot);
  while (shape().is_unified && cells_used() + cells_arriving() + size_of(report.image->tokens) > shape().cells) {
    if (free_unused_cells()) continue;
    if (Sequence* victim = choose_victim(); victim != nullptr && victim != &sequence) {
      swap_out(*victim);
      continue;
    }
    // Other prompts that arrive have taken the cells: this one resumes like one that was swapped out.
    choose_first_token(sequence, report.logits);
    sequence.image_id = 0;
    if (sequence.state == Sequence::State::running) {
      set_aside(sequence, kv::share_image(std::move(*report.image), pool_));
    }
    return;
  }
  const std::int32_t tokens = size_of(report.image->tokens);
  sequence.arriving = Arrival{.report = std::move(report), .stored = nullptr, .tokens_wanted = tokens};
}

// Loads what has come for slots, all of it where nobody waits for a token, and a piece or a few each tick where somebody does.
// Who decodes then has a tick before what was loaded joins it: their wait is the load and a tick as they had it, and not the
// load and a larger one. False: there was nothing.
bool Lane::load_arrivals(TimePoint now) {
  constexpr double kArrivalMs = 5;
  const bool someone_decodes = std::ranges::any_of(views_, &sched::SequenceView::decodes);
  const TimePoint until = someone_decodes ? now + from_ms(kArrivalMs) : kNever;
  bool did_work = false;
  for (const SequencePtr& sequence : sequences_) {
    if (!sequence->arriving || sequence->state != Sequence::State::running || (did_work && clock_.now() >= until)) continue;
    if (!sequence->arriving->is_complete()) {
      const Turn turn(*this, cores_.takes_turns());
      contain_in(*sequence, [&] { load_arriving(*sequence, until); });
      did_work = true;
      if (someone_decodes) continue;
    }
    if (sequence->arriving && sequence->arriving->is_complete()) {
      end_arrival(*sequence);
      did_work = true;
    }
  }
  return did_work;
}

// Loads one piece at least.
void Lane::load_arriving(Sequence& sequence, TimePoint until) {
  Arrival& arrival = *sequence.arriving;
  const std::size_t index = sequence.slot;
  const auto slot = static_cast<std::int32_t>(index);
  const std::size_t wanted = arrival.pieces_wanted();
  const TimePoint began = clock_.now();
  do {
    const kv::StatePiece& piece = arrival.image().pieces[arrival.pieces_loaded];
    auto loaded = arrival.report ? restore_piece(*context_, slot, arrival.report->image->pieces[arrival.pieces_loaded])
                                 : restore_shared_piece(*context_, slot, *arrival.stored, arrival.pieces_loaded, pool_);
    if (!loaded) {
      keep_cached(index, 0);
      return refuse_arrival(sequence, loaded.error());
    }
    add_cached(index, std::span(arrival.image().tokens)
                          .subspan(static_cast<std::size_t>(piece.begin), static_cast<std::size_t>(piece.end - piece.begin)));
    ++arrival.pieces_loaded;
  } while (arrival.pieces_loaded < wanted && clock_.now() < until);
  residents_changed_ = true;
  const double ms = to_ms(clock_.now() - began);
  arrival.ms += ms;
  log_debug("request {}: took {} of {} tokens over in {:.2f} ms", sequence.job.id.value, slots_[index].tokens.size(),
            arrival.tokens_wanted, ms);
  if (arrival.report) stats_.handover.record_ms(ms);
}

// What comes could not be loaded: it is computed here.
void Lane::refuse_arrival(Sequence& sequence, const Error& error) {
  log_warning("request {}: a state of {} tokens was refused, they are computed again: {}", sequence.job.id.value,
              sequence.arriving->tokens_wanted, error.message);
  if (sequence.arriving->report) {
    sequence.stays = true;
  } else {
    note_refused(sequence);
  }
  sequence.arriving.reset();
}

// Nothing that was stored is used for it any more.
void Lane::note_refused(Sequence& sequence) {
  sequence.is_refused = true;
  if (!sequence.in_batch) note_recomputed(sequence.usage);
}

// All of it is in the slot. A prompt brings the logits of its first token with it.
void Lane::end_arrival(Sequence& sequence) {
  Arrival arrival = std::move(*sequence.arriving);
  sequence.arriving.reset();
  (void)cut_slot(sequence.slot, static_cast<std::size_t>(arrival.tokens_wanted));
  if (arrival.report) {
    kv::recycle(std::move(*arrival.report->image), pool_);
    choose_first_token(sequence, arrival.report->logits);
    return;
  }
  if (!sequence.in_batch) {
    sequence.usage.restore_ms = arrival.ms;
    stats_.reused_tokens_total.add(static_cast<std::uint64_t>(arrival.tokens_wanted));
  }
  const bool was_cold = sequence.usage.tier == Tier::cold;
  (was_cold ? stats_.cold_hits_total : stats_.warm_hits_total).add();
  (was_cold ? stats_.cold_restore : stats_.warm_restore).record_ms(arrival.ms);
  const double megabytes = static_cast<double>(arrival.stored->bytes()) / kMegabyte;
  // A small state says little: where the thread had to wait for a core, it seems to be very slow.
  const double weight = std::min(megabytes / 16, 1.0 / 8);
  load_ms_per_mb_ += weight * ((arrival.ms - sequence.image_ms) / std::max(megabytes, 1e-3) - load_ms_per_mb_);
  if (arrival.id != 0) options_.store->settle(arrival.id, asker_of(sequence));
  begin_verification(sequence, arrival.id);
}

}  // namespace uma::engine
