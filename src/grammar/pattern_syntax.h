// Reads the regular expressions of JSON Schema, ECMAScript's with the flag u, to a tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "grammar/character_set.h"

namespace uma::grammar {

struct Pattern {
  enum class Kind : std::uint8_t {
    characters,
    sequence,
    alternatives,
    repetition,
    begin,      // ^
    end,        // $
    edge,       // \b
    no_edge,    // \B
    ahead,      // (?=…)
    not_ahead,  // (?!…)
    behind,     // (?<=…)
    not_behind  // (?<!…)
  };
  Kind kind = Kind::sequence;
  CharacterSet characters{};            // For characters.
  std::vector<Pattern> children{};      // The parts, the alternatives, or the one child of the other kinds.
  std::int64_t min = 1;                 // For repetitions.
  std::optional<std::int64_t> max = 1;  // Nullopt: unlimited.
};

inline constexpr std::int64_t kRepetitionsMax = 4096;

// A back reference to a group of which only one text is possible is read as this text. Errors: E_PROTO_003, for invalid
// expressions, those of other dialects, other back references, and properties that property_set() does not know.
[[nodiscard]] Expected<Pattern> read_pattern(std::string_view pattern);

// The expression for exactly this text.
[[nodiscard]] Pattern literal_pattern(std::string_view text);

// Some of the pattern's texts: its repetitions end at `max`, where their minimum allows it. Nothing changes within negations.
[[nodiscard]] Pattern narrowed(Pattern pattern, std::int64_t max);

// The possible lengths in characters of the texts that a part matches, where assertions match the empty text.
struct PatternLength {
  std::int64_t min = 0;
  std::optional<std::int64_t> max = 0;  // Nullopt: unlimited.
};
[[nodiscard]] PatternLength length_of(const Pattern& pattern);

}  // namespace uma::grammar
