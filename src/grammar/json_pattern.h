// Converts regular expressions to grammars of JSON strings, or of plain texts: the subset of ECMAScript's syntax that `pattern`
// of JSON Schema can have in a grammar. Refused by name: look-arounds, back references, word boundaries, anchors in the middle,
// classes by property.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::grammar {

struct JsonPattern {
  std::string gbnf;  // The text between the quotes of a JSON string, in parentheses.
  std::int64_t characters_min = 0;
  std::optional<std::int64_t> characters_max;  // Empty: unlimited.
};

// As in JSON Schema, a pattern may match anywhere in the text, unless it has ^ and $. `any_character` is the name of the rule
// for one character of a JSON string. Errors: E_PROTO_003.
[[nodiscard]] Expected<JsonPattern> compile_pattern(std::string_view pattern, std::string_view any_character);

// The grammar, with its rule "root", of the plain texts that the whole pattern matches. Errors: E_PROTO_003.
[[nodiscard]] Expected<std::string> pattern_gbnf(std::string_view pattern);

// `text` as a GBNF literal.
[[nodiscard]] std::string gbnf_literal(std::string_view text);

}  // namespace uma::grammar
