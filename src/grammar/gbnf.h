// Parses GBNF, the grammar notation of llama.cpp (its grammars/README.md), to a tree. Supported: literals, character classes,
// `.`, groups, alternatives, repetitions, comments. Refused: references to tokens (`<think>`, `<[1000]>`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "grammar/character_set.h"

namespace uma::grammar::gbnf {

inline constexpr std::size_t kBytesMax = 1u << 18;
inline constexpr std::size_t kRulesMax = 4096;
inline constexpr std::int32_t kRepetitionsMax = 4096;
inline constexpr std::int32_t kDepthMax = 64;  // Limit for nested groups.

using Range = CodeRange;

struct Node {
  enum class Kind : std::uint8_t { sequence, alternatives, characters, rule, repetition } kind = Kind::sequence;
  std::vector<Node> children;  // The items of a sequence, the alternatives, or the single item of a repetition.
  std::vector<Range> ranges;   // For characters: sorted and disjoint.
  std::size_t rule = 0;
  std::int32_t min = 0;
  std::int32_t max = 0;  // Negative: unlimited.
};

struct Rule {
  std::string name;
  Node body;
};

// Returns all used rules. Rules named in `parts` are defined elsewhere: they have no body, and `text` may not define them.
// Errors: E_PROTO_003 with the line.
[[nodiscard]] Expected<std::vector<Rule>> read(std::string_view text, std::span<const std::string_view> parts = {});

}  // namespace uma::grammar::gbnf
