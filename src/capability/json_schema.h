// JSON Schema (draft 2020-12) as a grammar: the subset whose values are a context-free language of JSON texts. Sound: every
// text of the grammar is JSON that the schema accepts. Not complete: of the ways to write a value it has one or two (properties
// in the order of the schema, few blanks, integers of up to 15 digits). A keyword that constrains and cannot be a grammar is
// refused with its name and place; annotations and unknown keywords are ignored, as the standard has it.
// docs/protocol/openai.md lists what is served.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "core/error.h"
#include "llm/grammar.h"

namespace uma::capability {

inline constexpr std::size_t kSchemaBytesMax = 262'144;
inline constexpr std::size_t kSchemaRulesMax = 4000;

// Collects the rules of schemas that are to stand in one grammar, beside the caller's own: their names begin with "json-".
// Not thread-safe.
class JsonRules {
 public:
  JsonRules();
  ~JsonRules();
  JsonRules(const JsonRules&) = delete;
  JsonRules& operator=(const JsonRules&) = delete;

  // Returns the name of the rule that stands for a value of `schema`, a JSON text; `$ref` is relative to it. Errors:
  // E_PROTO_003, with the place in the schema ("#/properties/a: ...").
  [[nodiscard]] Expected<std::string> add(std::string_view schema);
  // All rules so far, a line each.
  [[nodiscard]] const std::string& gbnf() const;

 private:
  class Compiler;
  std::unique_ptr<Compiler> compiler_;
};

// The whole grammar of one schema's values, as text and compiled. Errors as above; E_PROTO_003 too where no value
// satisfies the schema.
[[nodiscard]] Expected<std::string> json_schema_gbnf(std::string_view schema);
[[nodiscard]] Expected<std::shared_ptr<const llm::Grammar>> json_schema_grammar(std::string_view schema);

}  // namespace uma::capability
