// Converts JSON Schema (draft 2020-12) to a grammar: the subset whose values are a context-free language of JSON texts. Sound:
// the schema accepts every text of the grammar. Not complete: each value has one or two of its possible texts (properties in
// the order of the schema, little whitespace, integers of up to 15 digits). A constraint without a grammar is refused with its
// name and place; annotations and unknown keywords are ignored, as the standard requires. docs/protocol/openai.md lists the
// supported keywords.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <boost/json/fwd.hpp>

#include "core/error.h"
#include "grammar/grammar.h"

namespace uma::grammar {

inline constexpr std::size_t kSchemaBytesMax = 262'144;
inline constexpr std::size_t kSchemaRulesMax = 4000;

enum class JsonBlanks : std::uint8_t {
  any,     // A blank or a line behind brackets and commas, a blank behind colons, or none.
  python,  // One blank behind each comma and colon, as Python writes JSON, and chat templates do.
};

// Collects the rules of several schemas for one grammar. Their names begin with "json-", so that the caller can add rules. Not
// thread-safe.
class JsonRules {
 public:
  explicit JsonRules(JsonBlanks blanks = JsonBlanks::any);
  ~JsonRules();
  JsonRules(const JsonRules&) = delete;
  JsonRules& operator=(const JsonRules&) = delete;

  // Adds the rules for the JSON text `schema` and returns the name of the rule for its values; `$ref` is relative to `schema`.
  // Errors: E_PROTO_003, with the place in the schema ("#/properties/a: ..."); then no rule is added.
  [[nodiscard]] Expected<std::string> add(std::string_view schema);
  // The same for a part of a schema, `root`, to which `$ref` is relative.
  [[nodiscard]] Expected<std::string> add(const boost::json::value& schema, const boost::json::value& root);
  // All rules so far, one per line.
  [[nodiscard]] const std::string& gbnf() const;

 private:
  class Compiler;
  std::unique_ptr<Compiler> compiler_;
};

// The whole grammar of one schema, as text and compiled. Errors: as add(); also E_PROTO_003 for a schema that no value
// satisfies.
[[nodiscard]] Expected<std::string> json_schema_gbnf(std::string_view schema);
[[nodiscard]] Expected<std::shared_ptr<const Grammar>> json_schema_grammar(std::string_view schema);

}  // namespace uma::grammar
