// The texts that satisfy several conditions at once (regular expressions, their opposites, a length, a divisor), as one
// deterministic automaton over code points. Used where a grammar needs the intersection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "grammar/character_set.h"
#include "grammar/pattern_syntax.h"

namespace uma::grammar {

// The number that the text writes is a multiple of `units` / 10^`decimals`; texts are numbers without an exponent.
struct Divisor {
  std::int64_t units = 1;
  int decimals = 0;
};

// A set of texts. An expression may match anywhere in the text, as in JSON Schema, unless it has ^ and $.
struct TextLanguage {
  std::vector<Pattern> all{};         // The text matches each.
  std::vector<Pattern> none{};        // The text matches none of these.
  std::int64_t min = 0;               // Characters.
  std::optional<std::int64_t> max{};  // Nullopt: unlimited.
  std::optional<Divisor> divisor{};
};

struct TextAutomaton {
  struct Step {
    CharacterSet characters;
    std::uint32_t to = 0;
  };
  struct State {
    std::vector<Step> steps;  // With disjoint sets and different targets.
    bool is_final = false;
  };
  std::vector<State> states{};  // The first is the beginning. Each can reach an end; without states there is no text.
};

// Bounds of the work of several automata. Reaching one means that a condition has to be left out.
struct AutomatonBudget {
  std::size_t states_max = 1000;       // Limit per automaton.
  std::uint64_t work_left = 2u << 20;  // Work left for all of them.
};

// Nullopt: a bound was reached.
[[nodiscard]] std::optional<TextAutomaton> make_automaton(const TextLanguage& language, AutomatonBudget& budget);
// Whether `text`, which is valid UTF-8, is in the language; nullopt: a bound was reached.
[[nodiscard]] std::optional<bool> matches(const TextLanguage& language, std::string_view text, AutomatonBudget& budget);

}  // namespace uma::grammar
