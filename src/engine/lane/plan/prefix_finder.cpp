#include "engine/lane/plan/prefix_finder.h"

#include <algorithm>

#include "engine/lane/move/state_transfer.h"
#include "image/image_runs.h"

namespace uma::engine {
namespace {

constexpr std::int32_t kReplyBegin = 8;  // In tokens: the end of a prompt that the next one may lack, like "<think>".
constexpr double kCopyPauseMs = 10;      // So long streams wait for a copy.
constexpr std::int32_t kSharedMin = 4;   // In tokens: what every prompt begins with is no reuse.

// The part of the chain that may be reused.
std::span<const Token> wanted_of(const Sequence& sequence) {
  return std::span<const Token>(sequence.chain).first(sequence.reusable_tokens());
}

}  // namespace

// The best hit so far.
class PrefixFinder::Search {
 public:
  Search(const PrefixFinder& finder, const Sequence& sequence)
      : finder_(finder), sequence_(sequence), wanted_(wanted_of(sequence)) {}

  [[nodiscard]] const Sequence& sequence() const { return sequence_; }
  [[nodiscard]] std::span<const Token> wanted() const { return wanted_; }
  [[nodiscard]] const PrefixHit& best() const { return best_; }

  // `ready_ms`: the time to bring in the hit.
  void consider(const PrefixHit& hit, double ready_ms) {
    const std::int32_t added = hit.tokens_count - best_.tokens_count;
    const bool needs_no_copy = hit.takes_over && best_.kind == PrefixHit::Kind::slot && !best_.takes_over;
    if (added == 0 && needs_no_copy) best_ = hit;
    if (added <= 0) return;
    // In reproducible mode computed tokens are always reused, because computing them again may give other bits.
    const bool is_faster = ready_ms <= finder_.parts_.costs.compute_ms(added, best_.tokens_count);
    if (is_faster || finder_.parts_.options.is_reproducible) best_ = hit;
  }
  // The begin of the image that this prefix of the chain divides, if it has a grid: a context cannot be cut there. Otherwise
  // the prefix.
  [[nodiscard]] std::int32_t before_image(std::size_t prefix) const {
    const auto end = static_cast<std::int32_t>(prefix);
    return finder_.parts_.shape().has_grids ? image::before_run(sequence_.job.images, end) : end;
  }
  // The number of stored tokens that can be used.
  [[nodiscard]] std::int32_t usable(std::span<const Token> stored) const {
    const llm::ContextShape& shape = finder_.parts_.shape();
    const std::int32_t common = before_image(kv::common_prefix(stored, wanted_));
    const bool can_cut = shape.can_truncate || static_cast<std::size_t>(common) == stored.size();
    return can_cut ? common : 0;
  }
  // The number of the slot's tokens that can be used.
  [[nodiscard]] std::int32_t usable_of_slot(std::size_t index, std::span<const Token> tokens) const {
    const std::int32_t common = before_image(kv::common_prefix(tokens, wanted_));
    return finder_.parts_.context.can_truncate(static_cast<std::int32_t>(index), common) ? common : 0;
  }

 private:
  const PrefixFinder& finder_;
  const Sequence& sequence_;
  const std::span<const Token> wanted_;
  PrefixHit best_;
};

// The sequence's own state is considered first, because with it the sequence continues with the same bits: other hits must be
// longer. What is in the context need not be loaded.
PrefixHit PrefixFinder::find(const Sequence& sequence) const {
  Search search(*this, sequence);
  consider_own_slot(search);
  const PrefixHit stored = find_stored(search);
  if (stored.stored.is_own) consider_stored(search, stored);
  consider_other_slots(search);
  if (!stored.stored.is_own) consider_stored(search, stored);
  return search.best();
}

void PrefixFinder::consider_own_slot(Search& search) const {
  const auto own = parts_.slots.find_of(search.sequence().job.session);
  if (!own || parts_.slots[*own].adapters != search.sequence().job.adapters) return;
  const std::int32_t usable = search.usable_of_slot(*own, parts_.slots[*own].tokens);
  search.consider({.kind = PrefixHit::Kind::slot, .tokens_count = usable, .slot = *own}, 0);
}

// The longest stored prefix, or the one that was read for the sequence.
PrefixHit PrefixFinder::find_stored(const Search& search) const {
  const Sequence& sequence = search.sequence();
  if (const kv::SnapshotPtr& own = sequence.resume.snapshot) {
    PrefixHit hit{.kind = PrefixHit::Kind::snapshot, .tokens_count = search.usable(own->tokens)};
    hit.stored.tokens_stored = size_of(own->tokens);
    hit.stored.is_own = sequence.resume.is_own;
    return hit;
  }
  const kv::StateStore* store = parts_.options.store;
  if (store == nullptr || sequence.resume.is_refused) return {};
  auto match = store->find(parts_.prefix_query_of(sequence), search.wanted());
  if (match) match->tokens_count = search.before_image(static_cast<std::size_t>(match->tokens_count));
  if (!match || match->tokens_count < kReusedMin) return {};
  return {.kind = PrefixHit::Kind::store, .tokens_count = match->tokens_count, .stored = *match};
}

void PrefixFinder::consider_stored(Search& search, PrefixHit hit) const {
  if (hit.kind == PrefixHit::Kind::none) return;
  if (hit.kind == PrefixHit::Kind::snapshot) {
    return search.consider(hit, parts_.costs.transfer.load_ms(search.sequence().resume.snapshot->bytes()));
  }
  // Held until it is loaded, so that it is not evicted for this request.
  if (hit.stored.tier == Tier::warm) hit.held = parts_.options.store->hold(hit.stored.id);
  search.consider(hit, hit.stored.fetch_ms + parts_.costs.transfer.load_ms(hit.stored.bytes));
}

void PrefixFinder::consider_other_slots(Search& search) const {
  const Sequence& sequence = search.sequence();
  const std::int32_t own_count = search.best().tokens_count;
  const bool has_slot = parts_.slots.find_of(sequence.job.session).has_value();
  for (std::size_t i = 0; i < parts_.slots.size(); ++i) {
    const Slot& slot = parts_.slots[i];
    if (slot.is_empty() || slot.is_of(sequence.job.session) || !may_share(sequence, slot) ||
        reuse_check_.is_being_verified(i)) {
      continue;
    }
    const std::int32_t count = search.usable_of_slot(i, slot.unmoved());
    if (count <= own_count || (!slot.is_of(sequence.job.forked_from) && count < kSharedMin)) continue;
    const bool takes_over = !has_slot && may_take(i, count);
    const bool is_copied = !parts_.shape().is_unified && !takes_over;
    if (is_copied && !slot.is_of(sequence.job.forked_from) && count < kReusedMin) continue;
    // A copy is made by saving a state, which has only the window at the end of the slot.
    if (is_copied && !parts_.shape().can_truncate && count < size_of(slot.tokens)) continue;
    search.consider({.kind = PrefixHit::Kind::slot, .tokens_count = count, .slot = i, .takes_over = takes_over},
                    is_copied ? copy_ms(slot.tokens.size()) : 0);
  }
}

// Whether the sequence may use the tokens of another sequence's slot. In reproducible mode only the session that it was forked
// from has computed them in the same way.
bool PrefixFinder::may_share(const Sequence& sequence, const Slot& slot) const {
  if (slot.is_ephemeral || slot.adapters != sequence.job.adapters) return false;
  if (parts_.options.is_reproducible || slot.owner.is_private) return slot.is_of(sequence.job.forked_from);
  return slot.owner.is_public || slot.owner.tenant.value == sequence.job.flow.tenant;
}

// Whether a request that continues the slot's first `count` tokens takes the slot: no session owns it, the request uses most of
// it, and what is lost was generated. What a client has sent it may send again; it is lost only where the context can copy
// nothing cheaply.
bool PrefixFinder::may_take(std::size_t index, std::int32_t count) const {
  const Slot& slot = parts_.slots[index];
  if (slot.is_running || !slot.owner.session.empty() || count < size_of(slot.tokens) / 4 * 3) return false;
  const std::int32_t lost = std::min(static_cast<std::int32_t>(slot.sent), size_of(slot.tokens)) - count;
  return lost <= kReplyBegin || !can_copy(index, lost);
}

// Whether a copy of the slot's beginning costs less than computing the `lost` tokens behind it. Streams wait for it.
bool PrefixFinder::can_copy(std::size_t index, std::int32_t lost) const {
  if (parts_.shape().is_unified) return true;
  const std::uint64_t bytes = state_reservation_bytes(parts_.context, static_cast<std::int32_t>(index));
  if (!parts_.shape().can_truncate || parts_.states.pool().bytes_reserved() + bytes > parts_.states.pool().bytes_max())
    return false;
  const double ms = copy_ms(parts_.slots[index].tokens.size());
  return ms <= parts_.costs.compute_ms(lost, 0) && (ms <= kCopyPauseMs || !parts_.sequences.someone_streams());
}

double PrefixFinder::copy_ms(std::size_t tokens) const {
  return parts_.costs.transfer.move_ms(tokens * parts_.shape().kv_bytes_per_token);
}

// Waits only if the common prefix is at least half of the other prompt. An interactive request does not wait for a background
// one.
RequestId PrefixFinder::find_running(const Sequence& sequence, const PrefixHit& hit) const {
  if (!parts_.shape().can_truncate || parts_.options.is_reproducible) return {};
  const std::span<const Token> wanted = wanted_of(sequence);
  for (const Sequence* running : parts_.sequences.running()) {
    const Sequence& other = *running;
    if (other.generated() > 0) continue;
    if (other.job.is_background && !sequence.job.is_background) continue;
    const Slot& slot = parts_.slot_of(other);
    if (!may_share(sequence, slot)) continue;
    const std::size_t common = std::min(kv::common_prefix(other.chain, wanted), slot.moved_from);
    const auto added = static_cast<std::int32_t>(common) - hit.tokens_count;
    if (added < sched::kFastChunk || common <= slot.tokens.size() || 2 * common < other.chain.size()) continue;
    const bool is_copied = !parts_.shape().is_unified;
    if (is_copied && copy_ms(other.chain.size()) > parts_.costs.compute_ms(added, hit.tokens_count)) continue;
    return other.job.id;
  }
  return {};
}

}  // namespace uma::engine
