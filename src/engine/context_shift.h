// Which turns a session gives up when its tokens fill the cells of a sequence (docs/decisions/0018). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/catalog.h"

namespace uma::engine {

// What may be dropped of a chain: the tokens from `keep` on, up to where a later turn begins.
struct Droppable {
  std::int32_t keep = 0;
  std::vector<std::int32_t> turns_begin;  // of the second turn and those after it, the one under way last; empty: nothing
};

// The oldest turns of a chain and what goes with them: the tokens [begin, end).
struct TurnDrop {
  std::int32_t turns = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

// The fewest turns without which a chain of `length` tokens has at most `length_max`; where no number is enough, all but the
// one under way. Empty: there is none to drop.
[[nodiscard]] std::optional<TurnDrop> choose_drop(const Droppable& chain, std::int32_t length, std::int32_t length_max);
// What is left of `length` tokens when all has been dropped that may be.
[[nodiscard]] std::int32_t shortest_length(const Droppable& chain, std::int32_t length);
// The chain without those turns.
void note_dropped(Droppable& chain, const TurnDrop& drop);

// Of the chain with its pending input, which is the turn under way; without any the last turn goes on.
[[nodiscard]] Droppable droppable_of(const kv::SessionRecord& record);
// The record without its `turns` oldest turns: their tokens but those that are kept, and their messages but the system prompt.
[[nodiscard]] kv::SessionRecord without_oldest_turns(const kv::SessionRecord& record, std::int32_t turns);

}  // namespace uma::engine
