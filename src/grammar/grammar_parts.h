// A grammar that uses other grammars, which are compiled already and whose rules may have the same names.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "core/error.h"
#include "grammar/grammar.h"

namespace uma::grammar {

// A rule that stands for another grammar, which is copied.
struct GrammarPart {
  std::string_view rule;
  const Grammar& grammar;
};

// Parses a grammar as Grammar::parse() does; `gbnf` may use the rules of `parts`, and may not define them.
[[nodiscard]] Expected<std::shared_ptr<const Grammar>> parse_with_parts(std::string_view gbnf,
                                                                        std::span<const GrammarPart> parts);

}  // namespace uma::grammar
