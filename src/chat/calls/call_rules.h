// Rules of GBNF for the parts of tool calls (call_grammar.h): texts up to a mark, members in any order, and arguments in the
// notation of loose_reader.h; nested_rules.h has those of elements within elements.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include <boost/json/fwd.hpp>

#include "grammar/json_schema.h"

namespace uma::chat {

// The text as a literal of GBNF.
[[nodiscard]] std::string literal(std::string_view text);
// Any text without `close`, which must not be empty. If the first character of `close` comes again in it, rules whose names
// begin with `name` are added to `gbnf`.
[[nodiscard]] std::string text_without(std::string_view close, std::string_view name, std::string& gbnf);

// Appends one of the alternatives of a rule.
void add_alternative(std::string& alternatives, std::string_view more);

// A member of an object: its rule, with its name.
struct CallMember {
  std::string rule;
  bool is_required = false;
};
// The name of a rule for members in any order, with `separator` between them: each required one once, the others as often as
// they come. Of more than four required members the order is kept, since each set of them needs a rule. The rules are added to
// `gbnf`; their names begin with `name`.
[[nodiscard]] std::string any_order(const std::string& name, std::span<const CallMember> members, std::string_view separator,
                                    std::string& gbnf);

// The values that a schema lists; empty: it lists none.
[[nodiscard]] boost::json::array values_of(const boost::json::object& schema);
// The types that a schema names, each once; "" stands for what is no name.
[[nodiscard]] std::set<std::string> types_of(const boost::json::object& schema);
// The rule for a number of this type within the schema's bounds; `word` if they have no grammar.
[[nodiscard]] std::string number_rule(std::string_view type, const boost::json::object& schema, grammar::JsonRules& rules);
// The names in `required` of an object's schema.
[[nodiscard]] std::set<std::string_view> required_of(const boost::json::object& schema);
// The alternatives of an enum or a const as they are written without quotes; empty: the schema lists no values.
[[nodiscard]] std::string listed_values(const boost::json::value& schema, const boost::json::value& root);

// Makes rules for arguments by a schema. They keep its types, properties and listed values; of numbers also the bounds. They
// use the rules `ws`, `loose`, `value`, `pair`, `quoted` and `word` of call_grammar.cpp. Each part of a schema has one rule,
// however often it is referred to; beyond a number of rules, or where the grammar is too large already, parts are any value.
class LooseRules {
 public:
  // `quote`: see Family::quote. `numbers` and `gbnf` get the rules. All must outlive this object.
  LooseRules(std::string_view quote, grammar::JsonRules& numbers, std::string& gbnf)
      : quote_(quote), numbers_(numbers), gbnf_(gbnf) {}

  // A rule for the arguments with their brackets. `name` begins the names of all its rules. `loose` (any arguments) for a
  // schema without properties.
  [[nodiscard]] std::string arguments(const std::string& name, const boost::json::value& schema);

 private:
  // A rule, or a short text for simple values.
  [[nodiscard]] std::string value_of(const boost::json::value& schema);
  [[nodiscard]] std::string body_of(const boost::json::object& schema);
  [[nodiscard]] std::string body_of_type(std::string_view type, const boost::json::object& schema);
  // `is_top`: of the arguments themselves.
  [[nodiscard]] std::string members_of(const boost::json::object& schema, bool is_top);
  [[nodiscard]] std::string spellings_of(const boost::json::value& value) const;
  [[nodiscard]] std::string key_of(std::string_view name, bool is_top) const;

  const std::string_view quote_;
  grammar::JsonRules& numbers_;
  std::string& gbnf_;
  // State for the current arguments.
  std::string name_;
  const boost::json::value* root_ = nullptr;
  int rule_count_ = 0;
  int value_count_ = 0;
  std::map<const boost::json::value*, std::string> known_;  // The rules of the parts of the schema.
  std::deque<const boost::json::value*> without_body_;      // Parts whose rules have only a name yet.
};

}  // namespace uma::chat
