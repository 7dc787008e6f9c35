#include "engine/lane/move/context_shifter.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/log.h"

namespace uma::engine {

std::optional<TurnDrop> ContextShifter::droppable_turns(const Sequence& sequence) const {
  const std::int32_t cells = parts_.shape().sequence_cells_max;
  const std::int32_t free = std::clamp(sequence.job.tokens_max - sequence.generated(), 1, std::max(1, cells / 4));
  return choose_drop(sequence.job.droppable, size_of(sequence.chain), cells - free);
}

void ContextShifter::shorten_running() {
  const auto running = parts_.sequences.running();
  for (Sequence* sequence : std::vector(running.begin(), running.end())) {
    // A sequence must not change while it is being saved: it is shortened before it resumes.
    if (!sequence->is_on<SwapOut>()) shorten(*sequence);
  }
  parts_.sequences.remove_finished();
}

void ContextShifter::shorten(Sequence& sequence) {
  if (!is_full(sequence)) return;
  const auto drop = droppable_turns(sequence);
  UMA_CHECK(drop && !sequence.is_blocked());
  const auto slot = sequence.is_running() ? std::optional(sequence.slot) : parts_.slots.find_of(sequence.job.session);
  if (slot) drop_from_slot(*slot, sequence, *drop);
  drop_from_chain(sequence, *drop);
  // The client must get this event, like a token.
  ends_.contain(sequence, [&] {
    const ContextShiftEvent shift{.dropped_turns = drop->turns, .dropped_tokens = drop->end - drop->begin};
    if (!sequence.job.sink->deliver(shift)) ends_.finish(sequence, FinishReason::slow_consumer);
  });
}

// Moves up the cells behind the dropped turns, if the context can; otherwise a running sequence computes them again.
void ContextShifter::drop_from_slot(std::size_t index, const Sequence& sequence, const TurnDrop& drop) {
  const auto begin = static_cast<std::size_t>(drop.begin);
  const auto end = static_cast<std::size_t>(drop.end);
  const std::vector<Token>& cached = parts_.slots[index].tokens;
  const bool is_shifted = kv::common_prefix(cached, sequence.chain) > end && parts_.slots.shift(index, begin, end);
  if (sequence.is_running() && !is_shifted) (void)parts_.slots.cut(index, std::min(begin, cached.size()));
}

void ContextShifter::drop_from_chain(Sequence& sequence, const TurnDrop& drop) {
  const std::int32_t tokens = drop.end - drop.begin;
  sequence.chain.erase(sequence.chain.begin() + drop.begin, sequence.chain.begin() + drop.end);
  sequence.prompt_tokens -= tokens;
  remove_turns(sequence.job.droppable, drop);
  image::drop_runs(sequence.job.images, drop.begin, drop.end);
  sequence.draft.ngrams = {};  // The drafter refers to tokens by position.
  sequence.usage.dropped_turns += drop.turns;
  sequence.usage.dropped_tokens += tokens;
  parts_.stats().context_shifts_total.add();
  log_info("request {} session {}: the context is full, the {} oldest turns ({} tokens) are dropped", sequence.job.id.value,
           sequence.job.session.value, drop.turns, tokens);
}

}  // namespace uma::engine
