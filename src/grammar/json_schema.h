// Converts JSON Schema (draft 2020-12, and older drafts where their forms differ) to a grammar. Sound: the schema accepts every
// text of the grammar, but for the keywords that are left out, each alone, by name and place, because no grammar of a bounded
// size expresses them. Not complete: each value has one or two of its possible texts (properties in the order of the schema,
// little whitespace, integers of up to 20 digits). Annotations and unknown keywords are ignored, as the standard requires.
// docs/protocol/openai.md lists the supported keywords.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/fwd.hpp>

#include "core/error.h"
#include "grammar/grammar.h"

namespace uma::grammar {

inline constexpr std::size_t kSchemaBytesMax = 262'144;
inline constexpr std::size_t kSchemaRulesMax = 4000;

// The keywords of schemas that a grammar does not enforce.
class LeftOut {
 public:
  static constexpr std::size_t kPlacesMax = 32;  // Places in the schemas of one grammar; "and others" stands for more.

  // `refuses`: such a keyword is an error.
  explicit LeftOut(bool refuses = false) : refuses_(refuses) {}

  // Notes the keyword at `place`, a JSON pointer such as "#/properties/a/pattern", once. Throws Refusal if it is an error.
  void add(const std::string& place, std::string_view why);
  [[nodiscard]] bool refuses() const { return refuses_; }
  [[nodiscard]] const std::vector<std::string>& places() const { return places_; }
  // Forgets all places but the first `count`.
  void resize(std::size_t count) { places_.resize(std::min(count, places_.size())); }
  // Puts the name of the field that has the schema before the places from `first` on.
  void set_field(std::string_view field, std::size_t first = 0);

 private:
  const bool refuses_;
  std::vector<std::string> places_;
};

enum class JsonBlanks : std::uint8_t {
  any,     // A blank or a line behind brackets and commas, a blank behind colons, or none.
  python,  // One blank behind each comma and colon, as Python writes JSON, and chat templates do.
};

// Collects the rules of several schemas for one grammar. Their names begin with "json-", so that the caller can add rules. Not
// thread-safe.
class JsonRules {
 public:
  // `left_out`, if it is not null, gets the keywords that no rule enforces, and outlives this.
  explicit JsonRules(JsonBlanks blanks = JsonBlanks::any, LeftOut* left_out = nullptr);
  ~JsonRules();
  JsonRules(const JsonRules&) = delete;
  JsonRules& operator=(const JsonRules&) = delete;

  // Adds the rules for the JSON text `schema` and returns the name of the rule for its values; `$ref` is relative to `schema`.
  // Errors: E_PROTO_003, with the place in the schema ("#/properties/a: ..."); then no rule is added.
  [[nodiscard]] Expected<std::string> add(std::string_view schema);
  // Adds the rules for `schema`, a part of `root`, to which `$ref` is relative. Otherwise as above.
  [[nodiscard]] Expected<std::string> add(const boost::json::value& schema, const boost::json::value& root);
  // All rules so far, one per line.
  [[nodiscard]] const std::string& gbnf() const;

 private:
  class Compiler;
  std::unique_ptr<Compiler> compiler_;
};

// The whole grammar of one schema, as text and compiled. Errors: as add(); also E_PROTO_003 for a schema that no value
// satisfies.
[[nodiscard]] Expected<std::string> json_schema_gbnf(std::string_view schema, LeftOut* left_out = nullptr);
[[nodiscard]] Expected<std::shared_ptr<const Grammar>> json_schema_grammar(std::string_view schema,
                                                                           LeftOut* left_out = nullptr);

}  // namespace uma::grammar
