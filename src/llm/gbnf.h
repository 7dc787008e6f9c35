// Reads GBNF, the grammar notation of llama.cpp (its grammars/README.md), as a tree. Served: literals, character classes, `.`,
// groups, alternatives, repetitions, comments. Refused: references to tokens (`<think>`, `<[1000]>`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace uma::llm::gbnf {

inline constexpr std::size_t kBytesMax = 1u << 18;
inline constexpr std::size_t kRulesMax = 4096;
inline constexpr std::int32_t kRepetitionsMax = 4096;
inline constexpr std::int32_t kDepthMax = 64;  // of groups

// Code points, both ends among them.
struct Range {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
};

struct Node {
  enum class Kind : std::uint8_t { sequence, alternatives, characters, rule, repetition } kind = Kind::sequence;
  std::vector<Node> children;  // sequence, alternatives; one of a repetition
  std::vector<Range> ranges;   // characters: sorted, apart from each other
  std::size_t rule = 0;
  std::int32_t min = 0;
  std::int32_t max = 0;  // negative: no bound
};

struct Rule {
  std::string name;
  Node body;
};

// Every rule that is used is there. Errors: E_PROTO_003 with the line.
[[nodiscard]] Expected<std::vector<Rule>> read(std::string_view text);

}  // namespace uma::llm::gbnf
