// Chooses the turns that a session drops when its tokens fill the cells of a sequence (docs/decisions/0018). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/catalog/catalog.h"

namespace uma::engine {

// The part of a chain that may be dropped: the tokens from `keep` on, up to the beginning of a later turn.
struct Droppable {
  std::int32_t keep = 0;
  // The beginnings of the second and all later turns, the current turn last; empty: nothing may be dropped.
  std::vector<std::int32_t> turns_begin;
};

// The oldest turns of a chain and the tokens [begin, end) that are dropped with them.
struct TurnDrop {
  std::int32_t turns = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

// The smallest number of turns to drop so that a chain of `length` tokens has at most `length_max`. If no number is enough, all
// turns but the current one. Empty: there is no turn to drop.
[[nodiscard]] std::optional<TurnDrop> choose_drop(const Droppable& chain, std::int32_t length, std::int32_t length_max);
// The length of a chain of `length` tokens after all possible turns are dropped.
[[nodiscard]] std::int32_t shortest_length(const Droppable& chain, std::int32_t length);
// Removes the dropped turns from `chain`.
void remove_turns(Droppable& chain, const TurnDrop& drop);

// The droppable part of the record's chain. The pending input is the current turn; without pending input the last turn
// continues.
[[nodiscard]] Droppable droppable_of(const kv::SessionRecord& record);
// The record without its `turns` oldest turns. It keeps the first n_keep tokens and the system prompt.
[[nodiscard]] kv::SessionRecord without_oldest_turns(const kv::SessionRecord& record, std::int32_t turns);

}  // namespace uma::engine
