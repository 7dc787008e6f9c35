// Writes the texts of regular expressions, and of several conditions at once, as GBNF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/character_set.h"
#include "grammar/rule_writer.h"
#include "grammar/text_automaton.h"

namespace uma::grammar {

// How the characters of a text are written.
enum class Spelling : std::uint8_t {
  json,   // Characters as in a JSON string.
  plain,  // Characters as they are.
};

// Adds rules for texts to those of one grammar, within bounds for all texts together. Not thread-safe.
class TextRules {
 public:
  explicit TextRules(RuleWriter& rules) : rules_(rules) {}

  // The GBNF of the language. Nullopt: a bound was reached. Throws Refusal, as RuleWriter does.
  [[nodiscard]] std::optional<std::string> add(const TextLanguage& language, Spelling spelling);
  // The rule for one character of a JSON string, in all its spellings.
  [[nodiscard]] std::string character_rule();
  // The budget of automata, for matches().
  [[nodiscard]] AutomatonBudget& budget() { return budget_; }

 private:
  // An expression as it is, without an automaton; nullopt: it has assertions inside, or the length cannot be written into it.
  // `may_shorten`: one part may be shorter than necessary, where the others are as long as they can be.
  [[nodiscard]] std::optional<std::string> simple(const TextLanguage& language, Spelling spelling, bool may_shorten);
  [[nodiscard]] std::optional<std::string> of_length(std::int64_t min, std::optional<std::int64_t> max);
  [[nodiscard]] std::optional<std::string> automaton_rules(const TextAutomaton& automaton, Spelling spelling);
  [[nodiscard]] std::string part(const Pattern& pattern, Spelling spelling);
  // A character of the set; long ones have a rule, which all share.
  [[nodiscard]] std::string one_of(const CharacterSet& set, Spelling spelling);
  [[nodiscard]] bool take_weight(std::size_t weight);

  RuleWriter& rules_;
  std::map<std::string, std::string> classes_;  // The names of shared classes.
  AutomatonBudget budget_;
  std::size_t weight_left_ = 40'000;  // States that expressions may still have, roughly.
  std::size_t automaton_rules_left_ = 2500;
  std::size_t automaton_bytes_left_ = 128u << 10;
};

// The grammar, with its rule "root", of the plain texts that the whole pattern matches. Errors: E_PROTO_003.
[[nodiscard]] Expected<std::string> pattern_gbnf(std::string_view pattern);

// `text` as a GBNF literal.
[[nodiscard]] std::string gbnf_literal(std::string_view text);

}  // namespace uma::grammar
