#include "grammar/rule_writer.h"

#include <algorithm>
#include <format>
#include <utility>

#include "grammar/json_schema.h"
#include "grammar/json_schema_values.h"

namespace uma::grammar {

void RuleWriter::define(const std::string& rule, std::string_view body) {
  gbnf_ += rule;
  gbnf_ += " ::= ";
  gbnf_ += body;
  gbnf_ += '\n';
  // Rules repeat merged parts of the schema.
  if (gbnf_.size() > kSchemaBytesMax) throw Refusal{"#", "the schema is too large as a grammar"};
}

std::string RuleWriter::new_rule() {
  if (++rules_ > kSchemaRulesMax) throw Refusal{"#", std::format("the schema needs more than {} rules", kSchemaRulesMax)};
  return std::format("json-{}", rules_);
}

std::string RuleWriter::shared(const std::string& name, std::string_view body) {
  const std::string rule = "json-" + name;
  if (shared_.insert(name).second) define(rule, body);
  return rule;
}

std::size_t RuleWriter::rules_left() const {
  return kSchemaRulesMax - std::min(rules_, kSchemaRulesMax);
}

void RuleWriter::take_back(Place place) {
  gbnf_.resize(place.bytes);
  rules_ = place.rules;
  shared_ = std::move(place.shared);
}

}  // namespace uma::grammar
