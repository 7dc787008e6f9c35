#include "engine/lane/plan/admission.h"

#include <algorithm>
#include <format>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kv/shared/shared_limits.h"
#include "sched/policy.h"

namespace uma::engine {
namespace {

constexpr double kKeepsMs = 2000;           // How long a sequence keeps its slot that was urgent when it was placed.
constexpr double kReplyTokens = 64;         // Tokens that a reply adds to a request's size: its true length is not known.
constexpr std::int32_t kLongPrompt = 1024;  // Longer prompts count as this; otherwise they would wait too long.
constexpr std::size_t kOvertakenMax = 8;    // Sequences that may wait for cells while one behind them is placed.

// Whether the sequence is interactive, or a background one that has waited for long enough.
bool is_urgent(const Sequence& sequence, TimePoint now) {
  return !sequence.job.is_background || to_ms(now - sequence.times.waits_since) >= sched::kBackgroundWaitMaxMs;
}

// Whether the sequence has lacked cells for long enough.
bool is_overdue(const Sequence& sequence, TimePoint now) {
  const TimePoint since = sequence.times.lacks_cells_since;
  return since != kNever && now >= since + from_ms(kTurnMs);
}

// The time that a sequence has waited for each token of work that it brings.
double waited_ms_per_token(const Sequence& sequence, TimePoint now) {
  return to_ms(now - sequence.times.waits_since) / (std::min(sequence.tokens_to_compute, kLongPrompt) + kReplyTokens);
}

// Background sequences give way, and those that were placed before go on.
bool needs_share(const Sequence& sequence) {
  return !sequence.job.is_background && !sequence.was_placed();
}

std::int32_t tokens_left(const Sequence& sequence, std::int32_t reused) {
  return sequence.prompt_tokens - std::min(sequence.prompt_tokens, reused);
}

}  // namespace

void Admission::note_arrival(Sequence& sequence) {
  expires_at_ = std::min({expires_at_, sequence.job.timeout, sequence.job.deadline});
  // A search among states of adapters would keep a place for their set.
  const bool is_plain = sequence.job.adapters.is_empty();
  sequence.tokens_to_compute = is_plain ? tokens_left(sequence, finder_.find(sequence).tokens_count) : sequence.prompt_tokens;
}

void Admission::expire(TimePoint now) {
  if (now < expires_at_) return;
  std::optional<std::vector<std::pair<Order, Sequence*>>> queue;  // Made when the first one has to be told its position.
  for (const SequencePtr& pointer : parts_.sequences) {
    Sequence& sequence = *pointer;
    if (sequence.is_finished()) continue;
    ends_.contain(sequence, [&] {
      if (sequence.is_fetching() && now >= sequence.resume.read_until) {
        end_fetch(sequence, {.id = sequence.job.id,
                             .state = 0,
                             .snapshot = fail(ErrorCode::limit_wait, "reading it takes longer than computing")});
      }
      if (now >= sequence.job.timeout) {
        ends_.finish(sequence, FinishReason::timeout);
      } else if (!sequence.in_batch && !sequence.is_on<Verifying>() && now >= sequence.job.deadline) {
        if (!queue) queue = sorted_queue(now);
        RankOfFlow last;
        const auto before =
            std::ranges::lower_bound(*queue, order_of(sequence, now, last), {}, &std::pair<Order, Sequence*>::first);
        fail_waiting(sequence, before - queue->begin());
      }
    });
  }
  parts_.sequences.remove_finished();
  expires_at_ = next_expiry();
}

TimePoint Admission::next_expiry() const {
  TimePoint next = kNever;
  for (const SequencePtr& sequence : parts_.sequences) {
    next = std::min(next, sequence->job.timeout);
    if (!sequence->in_batch && !sequence->is_on<Verifying>()) next = std::min(next, sequence->job.deadline);
    if (sequence->is_fetching()) next = std::min(next, sequence->resume.read_until);
  }
  return next;
}

std::vector<std::pair<Admission::Order, Sequence*>> Admission::sorted_queue(TimePoint now) const {
  std::vector<std::pair<Order, Sequence*>> waiting;
  RankOfFlow last;
  for (Sequence* sequence : parts_.sequences.waiting()) waiting.emplace_back(order_of(*sequence, now, last), sequence);
  std::ranges::stable_sort(waiting, {}, &std::pair<Order, Sequence*>::first);
  return waiting;
}

std::vector<const Sequence*> Admission::first_waiting(std::size_t count, TimePoint now) const {
  std::vector<std::pair<Order, const Sequence*>> waiting;
  RankOfFlow last;
  for (const Sequence* sequence : parts_.sequences.waiting()) waiting.emplace_back(order_of(*sequence, now, last), sequence);
  const auto end = waiting.begin() + static_cast<std::ptrdiff_t>(std::min(count, waiting.size()));
  std::ranges::partial_sort(waiting, end, {}, &std::pair<Order, const Sequence*>::first);
  std::vector<const Sequence*> first;
  for (auto each = waiting.begin(); each != end; ++each) first.push_back(each->second);
  return first;
}

// `position`: the number of sequences that were to be placed before it.
void Admission::fail_waiting(Sequence& sequence, std::int64_t position) {
  ends_.finish(sequence, FinishReason::error,
               Error{ErrorCode::limit_wait, std::format("the request's deadline passed after {:.0f} ms at position {} of the "
                                                        "queue; it would have waited about {:.0f} ms more: "
                                                        "try again later or set a longer deadline_ms",
                                                        to_ms(parts_.clock.now() - sequence.job.received), position + 1,
                                                        estimated_wait_ms(position))});
}

double Admission::estimated_wait_ms(std::int64_t position) const {
  return ends_.service_ms() * static_cast<double>(position + 1) / static_cast<double>(parts_.slots.size());
}

void Admission::admit(TimePoint now) {
  eviction_.begin_admission();
  if (parts_.sequences.is_reordered()) parts_.tenants.slot_shares.note(uses_of_slots({}), now);
  Passed passed;
  while (Sequence* next = next_waiting(now, passed)) {
    Outcome outcome = Outcome::ended;
    ends_.contain(*next, [&] { outcome = try_to_place(*next, passed, now); });
    if (outcome == Outcome::holds_back) break;
    if (outcome == Outcome::placed) eviction_.end_wait();
    if (outcome == Outcome::no_share) passed.tenants.push_back(next->job.flow.tenant);
    if (outcome == Outcome::overtaken) {
      if (passed.overtaken.size() == kOvertakenMax) break;
      passed.overtaken.push_back(next->job.id);
      passed.tenants.clear();  // A slot that was kept for it may be theirs.
    }
    if (outcome != Outcome::no_slot) continue;
    const bool takes_slot = !eviction_.is_waiting() && !next->job.is_background;
    if (!takes_slot || !preemption_.swap_out_background(next->job.id, now)) break;
  }
  if (!eviction_.is_waiting()) eviction_.end_wait();
  if (!parts_.sequences.take_reordered()) return;
  parts_.tenants.slot_shares.note(uses_of_slots({}), now);
  report_positions(now);
}

Admission::Outcome Admission::try_to_place(Sequence& next, const Passed& passed, TimePoint now) {
  shifter_.shorten(next);
  if (next.is_finished()) return Outcome::ended;
  const PrefixHit hit = finder_.find(next);
  const std::int32_t tokens = tokens_left(next, hit.tokens_count);
  // Tokens that the sequence would have reused are gone: it may no longer be the next one.
  if (tokens > std::exchange(next.tokens_to_compute, tokens)) return Outcome::waits;
  const std::size_t left = slots_left(next, passed, now);
  const bool has_no_share = left == 0 && needs_share(next);
  if (hit.is_on_disk()) {
    if (has_no_share) {
      read_ahead(next);
      return Outcome::no_share;
    }
    if (!placement_.evict_ahead(next)) return Outcome::holds_back;
    begin_fetch(next, hit);
    return Outcome::waits;
  }
  next.waits_for = finder_.find_running(next, hit);
  if (next.waits_for != RequestId{}) {
    const std::size_t shared = kv::common_prefix(next.chain, parts_.sequences.find(next.waits_for)->chain);
    next.tokens_to_compute = tokens_left(next, static_cast<std::int32_t>(shared));
    return Outcome::waits;
  }
  if (has_no_share) return Outcome::no_share;
  if (leaves_last_slot(next, hit, tokens, left, now)) return Outcome::overtaken;
  const bool was_urgent = is_urgent(next, now);
  if (const std::int64_t missing = placement_.cells_missing(next, hit); missing > 0) {
    next.times.lacks_cells_since = std::min(next.times.lacks_cells_since, now);
    const std::size_t reused = hit.kind == PrefixHit::Kind::slot ? hit.slot : Slot::kNowhere;
    if (!preemption_.swap_out_for_cells(next, was_urgent, missing, reused, now)) {
      const bool may_be_overtaken = !is_overdue(next, now) || preemption_.must_wait_for_others(next, was_urgent, missing, now);
      return may_be_overtaken ? Outcome::overtaken : Outcome::holds_back;
    }
  }
  if (!placement_.place(next, hit, now)) return Outcome::no_slot;
  const bool takes_kept_slot = left == 0;  // It gives way to those for whom the slot was kept.
  if (was_urgent && !takes_kept_slot) next.times.keeps_until = now + from_ms(kKeepsMs);
  next.times.lacks_cells_since = kNever;
  return Outcome::placed;
}

// A prompt that would only wait in the prefill lane, for a shorter one, leaves the last slot to those that need not. A limit of
// time or a slot of its own is not kept waiting.
bool Admission::leaves_last_slot(const Sequence& next, const PrefixHit& hit, std::int32_t tokens, std::size_t left,
                                 TimePoint now) const {
  const std::size_t free = parts_.slots.size() - static_cast<std::size_t>(parts_.slots.running());
  if (std::min(free, left) != 1 || parts_.slots.size() == 1 || tokens <= sched::kFastChunk) return false;
  const bool has_limit = next.job.deadline != kNever || next.job.target_ttft_ms > 0 || is_overdue(next, now);
  const bool has_own = parts_.slots.find_of(next.job.session).has_value() || hit.kind == PrefixHit::Kind::slot;
  if (next.was_placed() || has_limit || has_own) return false;
  bool waits = false;
  const auto is_background = [](const Sequence* each) { return each->job.is_background; };  // It gives way.
  if (std::ranges::any_of(parts_.sequences.waiting(), is_background)) return false;
  for (Sequence* each : parts_.sequences.running()) {
    if (is_background(each)) return false;
    const Offloaded* offloaded = each->offloaded();
    if (offloaded == nullptr && !each->is_on<Leaving>()) continue;
    const std::int32_t computed = offloaded == nullptr ? 0 : offloaded->tokens;
    waits = waits || size_of(each->chain) - std::max(computed, parts_.cached(*each)) <= tokens;
  }
  return waits;
}

Sequence* Admission::next_waiting(TimePoint now, const Passed& passed) const {
  Sequence* first = nullptr;
  Order least;
  RankOfFlow last;
  for (Sequence* sequence : parts_.sequences.waiting()) {
    if (!is_ready(*sequence, passed.overtaken)) continue;
    if (needs_share(*sequence) && std::ranges::contains(passed.tenants, sequence->job.flow.tenant)) continue;
    const Order order = order_of(*sequence, now, last);
    if (first != nullptr && least <= order) continue;
    first = sequence;
    least = order;
  }
  return first;
}

// Whether the sequence waits only for its turn.
bool Admission::is_ready(Sequence& sequence, std::span<const RequestId> overtaken) const {
  return sequence.is_waiting() && !sequence.is_fetching() && !waits_for_another(sequence) &&
         !std::ranges::contains(overtaken, sequence.job.id);
}

// The use of slots by interactive sequences. Those that were swapped out go on as soon as they can, and count as running.
sched::SlotShares::Uses Admission::uses_of_slots(std::span<const RequestId> overtaken) const {
  sched::SlotShares::Uses uses;
  const std::string* tenant = nullptr;
  sched::SlotShares::Use* of_tenant = nullptr;
  for (const SequencePtr& sequence : parts_.sequences) {
    if (sequence->job.is_background || sequence->is_finished()) continue;
    if (tenant == nullptr || *tenant != sequence->job.flow.tenant) {
      tenant = &sequence->job.flow.tenant;
      of_tenant = &uses[*tenant];
    }
    sched::SlotShares::Use& use = *of_tenant;
    const bool lacks_cells = sequence->times.lacks_cells_since != kNever;
    if (lacks_cells && std::ranges::contains(overtaken, sequence->job.id)) {
      ++use.stuck;
    } else if (sequence->is_running() || sequence->was_placed()) {
      ++use.running;
    } else if (is_ready(*sequence, {})) {
      ++use.ready;
    }
  }
  return uses;
}

// The number of slots that the sequence's tenant may take. Shares matter only while there is a slot to take.
std::size_t Admission::slots_left(const Sequence& next, const Passed& passed, TimePoint now) const {
  const bool is_full = static_cast<std::size_t>(parts_.slots.running()) == parts_.slots.size();
  const bool has_background = is_full && std::ranges::any_of(parts_.sequences.running(), [](const Sequence* sequence) {
                                return sequence->job.is_background;
                              });
  if (parts_.tenants.slot_shares.tenants() <= 1 || (is_full && !has_background)) return parts_.slots.size();
  return parts_.tenants.slot_shares.slots_left(next.job.flow.tenant, uses_of_slots(passed.overtaken), parts_.slots.size(), now);
}

// Reads the state of a session that has to wait for a slot, once, into memory that others may still need.
void Admission::read_ahead(Sequence& sequence) {
  if (std::exchange(sequence.is_read_ahead, true) || sequence.job.session.empty()) return;
  parts_.options.store->prefetch(sequence.job.session);
}

Admission::Order Admission::order_of(const Sequence& sequence, TimePoint now, RankOfFlow& last) const {
  if (last.flow == nullptr || *last.flow != sequence.job.flow) {
    last = {.flow = &sequence.job.flow, .rank = parts_.tenants.shares.rank(sequence.job.flow)};
  }
  const TimePoint overdue_since = is_overdue(sequence, now) ? sequence.times.lacks_cells_since : kNever;
  return {!is_urgent(sequence, now), overdue_since, !sequence.was_placed(), last.rank,
          parts_.options.policy.policy == sched::Policy::sequential ? 0 : -waited_ms_per_token(sequence, now)};
}

// Whether the sequence waits for another one's prompt. It waits until that prompt is computed, or the other sequence has left
// its slot.
bool Admission::waits_for_another(Sequence& sequence) const {
  if (sequence.waits_for == RequestId{}) return false;
  const Sequence* other = parts_.sequences.find(sequence.waits_for);
  const bool still = other != nullptr && other->is_running() && other->generated() == 0;
  if (!still) sequence.waits_for = {};
  return still;
}

void Admission::begin_fetch(Sequence& sequence, const PrefixHit& hit) {
  sequence.resume.reading_since = parts_.clock.now();
  sequence.resume.is_own = hit.stored.is_own;
  sequence.resume.tier = hit.stored.tier;
  sequence.resume.read_until = kNever;
  if (hit.stored.tier == Tier::shared) {
    const double patience_ms = std::max(to_ms(kv::kStateReadMax), parts_.costs.compute_ms(hit.tokens_count, 0));
    sequence.resume.read_until = sequence.resume.reading_since + from_ms(patience_ms);
    expires_at_ = std::min(expires_at_, sequence.resume.read_until);
  }
  parts_.options.store->fetch(
      hit.stored.id,
      [inbox = inbox_, id = sequence.job.id, state = hit.stored.id](Expected<kv::SnapshotPtr> snapshot) {
        inbox->push(FetchReport{.id = id, .state = state, .snapshot = std::move(snapshot)});
      },
      sequence.resume.read_until);
}

void Admission::accept_fetched(FetchReport report) {
  Sequence* found = parts_.sequences.find(report.id);
  if (found != nullptr && found->is_fetching()) end_fetch(*found, std::move(report));
}

void Admission::end_fetch(Sequence& sequence, FetchReport report) {
  sequence.resume.read_ms = to_ms(parts_.clock.now() - std::exchange(sequence.resume.reading_since, {}));
  if (report.snapshot) {
    sequence.resume.snapshot = std::move(*report.snapshot);
    sequence.resume.id = report.state;
  } else {
    sequence.resume.is_refused = true;
    log_warning("request {}: its stored state cannot be used and its tokens are computed again: {}", sequence.job.id.value,
                report.snapshot.error().message);
  }
}

void Admission::report_positions(TimePoint now) {
  const bool is_heard =
      std::ranges::any_of(parts_.sequences.waiting(), [](const Sequence* sequence) { return sequence->job.wants_progress; });
  if (!is_heard) return;
  const auto waiting = sorted_queue(now);
  for (std::size_t position = 0; position < waiting.size(); ++position) {
    report_position(*waiting[position].second, static_cast<std::int64_t>(position));
  }
}

void Admission::report_position(Sequence& sequence, std::int64_t position) {
  if (!sequence.job.wants_progress || sequence.position_reported == position) return;
  sequence.position_reported = position;
  const ProgressEvent progress{.stage = ProgressStage::queued, .position = position, .eta_ms = estimated_wait_ms(position)};
  run_noting([&] { (void)sequence.job.sink->deliver(progress); });
}

}  // namespace uma::engine
