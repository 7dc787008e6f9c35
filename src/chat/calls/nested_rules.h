// Rules of GBNF for the values of elements that consist of elements, as nested_elements.h reads them: the members of an object,
// and the items of a list, which are named "item".
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include <boost/json/fwd.hpp>

#include "chat/family.h"
#include "grammar/json_schema.h"

namespace uma::chat {

// Makes rules for values by a tool's schema. They keep its types, properties and listed values; of numbers also the bounds.
// They use the rules `ws`, `any` and `element-body` of the caller. Each part of a schema has one rule, however often it is
// referred to; beyond a number of rules, or where the grammar is too large already, parts are any value.
class NestedRules {
 public:
  // `root`: the tool's schema, to which `$ref` is relative. `blanks`: the rule for whitespace between marks; may be empty.
  // `name` begins the names of all rules. `numbers` and `gbnf` get the rules. The references must outlive this object.
  NestedRules(const ElementMarks& marks, const boost::json::value& root, std::string blanks, std::string name,
              grammar::JsonRules& numbers, std::string& gbnf);

  // The rules that all tools share.
  [[nodiscard]] static std::string shared(const ElementMarks& marks, std::string_view blanks);

  // A rule for the value of a part of the schema; add_bodies() adds its body.
  [[nodiscard]] std::string value_of(const boost::json::value& schema);
  void add_bodies();

 private:
  [[nodiscard]] std::string body_of(const boost::json::object& schema);
  [[nodiscard]] std::string body_of_type(std::string_view type, const boost::json::object& schema);
  [[nodiscard]] std::string members_of(const boost::json::object& schema);
  [[nodiscard]] std::string element(std::string_view name, const std::string& value) const;
  // A value that a schema lists.
  [[nodiscard]] std::string listed(const boost::json::value& value) const;

  const ElementMarks& marks_;
  const boost::json::value& root_;
  const std::string blanks_;
  const std::string name_;
  grammar::JsonRules& numbers_;
  std::string& gbnf_;
  int rules_ = 0;
  int values_ = 0;
  std::map<const boost::json::value*, std::string> known_;  // The rules of the parts of the schema.
  std::deque<const boost::json::value*> open_;              // Parts whose rules have a name, but no body yet.
};

}  // namespace uma::chat
