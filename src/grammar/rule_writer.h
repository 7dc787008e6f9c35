// The rules of a grammar as GBNF, with limits. Throws Refusal (json_schema_values.h).
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace uma::grammar {

class RuleWriter {
 public:
  [[nodiscard]] const std::string& gbnf() const { return gbnf_; }

  // Requires: a new name.
  void define(const std::string& rule, std::string_view body);
  [[nodiscard]] std::string new_rule();
  // A rule that several parts of the grammar share.
  [[nodiscard]] std::string shared(const std::string& name, std::string_view body);
  // Whether the shared rule is there already.
  [[nodiscard]] bool has_shared(const std::string& name) const { return shared_.contains(name); }
  [[nodiscard]] std::size_t rules_left() const;

  // A place in the grammar: what was added since, with the names of shared rules, can be taken back.
  struct Place {
    std::size_t bytes = 0;
    std::size_t rules = 0;
    std::set<std::string> shared;
  };
  [[nodiscard]] Place place() const { return {.bytes = gbnf_.size(), .rules = rules_, .shared = shared_}; }
  void take_back(Place place);

 private:
  std::string gbnf_;
  std::size_t rules_ = 0;
  std::set<std::string> shared_;
};

}  // namespace uma::grammar
