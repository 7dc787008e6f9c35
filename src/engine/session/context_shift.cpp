#include "engine/session/context_shift.h"

#include <algorithm>

#include "base/check.h"

namespace uma::engine {

std::optional<TurnDrop> choose_drop(const Droppable& chain, std::int32_t length, std::int32_t length_max) {
  std::optional<TurnDrop> drop;
  for (std::size_t i = 0; i < chain.turns_begin.size(); ++i) {
    const std::int32_t end = chain.turns_begin[i];
    if (end <= chain.keep) continue;
    drop = TurnDrop{.turns = static_cast<std::int32_t>(i) + 1, .begin = chain.keep, .end = end};
    if (length - (end - chain.keep) <= length_max) break;
  }
  return drop;
}

std::int32_t shortest_length(const Droppable& chain, std::int32_t length) {
  return chain.turns_begin.empty() ? length : length - std::max(0, chain.turns_begin.back() - chain.keep);
}

void remove_turns(Droppable& chain, const TurnDrop& drop) {
  chain.turns_begin.erase(chain.turns_begin.begin(), chain.turns_begin.begin() + drop.turns);
  for (std::int32_t& begin : chain.turns_begin) begin -= drop.end - drop.begin;
}

Droppable droppable_of(const kv::SessionRecord& record) {
  Droppable chain;
  if (record.on_full != OnFull::shift || record.turns.empty()) return chain;
  chain.keep = record.n_keep;
  for (std::size_t i = 1; i < record.turns.size(); ++i) chain.turns_begin.push_back(record.turns[i].tokens_begin);
  if (!record.pending.empty()) chain.turns_begin.push_back(static_cast<std::int32_t>(record.chain.size()));
  return chain;
}

kv::SessionRecord without_oldest_turns(const kv::SessionRecord& record, std::int32_t turns) {
  const auto count = static_cast<std::size_t>(turns);
  UMA_CHECK(turns > 0 && count <= record.turns.size());
  // The end of a turn's tokens and messages.
  const auto end_of = [&](std::size_t turn) -> kv::Turn {
    if (turn + 1 < record.turns.size()) return record.turns[turn + 1];
    return {.tokens_begin = static_cast<std::int32_t>(record.chain.size()),
            .messages_begin = static_cast<std::int32_t>(record.messages.size())};
  };
  const kv::Turn& first = record.turns.front();
  const kv::Turn end = end_of(count - 1);
  UMA_CHECK(end.tokens_begin > record.n_keep);
  std::int32_t messages_kept = first.messages_begin;
  const auto is_system = [&](std::int32_t at) { return record.messages[static_cast<std::size_t>(at)].role == "system"; };
  while (first.tokens_begin == 0 && messages_kept < end.messages_begin && is_system(messages_kept)) ++messages_kept;
  for (std::size_t turn = 0; turn < count && end_of(turn).tokens_begin <= record.n_keep; ++turn) {
    messages_kept = end_of(turn).messages_begin;  // All tokens of the turn stay.
  }

  kv::SessionRecord next = record;
  next.chain.erase(next.chain.begin() + record.n_keep, next.chain.begin() + end.tokens_begin);
  next.messages.erase(next.messages.begin() + messages_kept, next.messages.begin() + end.messages_begin);
  next.turns.erase(next.turns.begin(), next.turns.begin() + turns);
  for (kv::Turn& turn : next.turns) {
    turn.tokens_begin -= end.tokens_begin - record.n_keep;
    turn.reply_begin -= end.tokens_begin - record.n_keep;
    turn.messages_begin -= end.messages_begin - messages_kept;
  }
  next.turns_dropped += turns;
  std::erase_if(next.responses, [&](const ResponsePtr& response) { return response->turn < next.turns_dropped; });
  return next;
}

}  // namespace uma::engine
