// The rules for a list of members in a fixed order, of which some may be absent, with bounds of their number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "grammar/rule_writer.h"

namespace uma::grammar {

struct ListMember {
  std::string text;  // A rule.
  bool is_required = false;
};

struct MemberList {
  std::vector<ListMember> members{};
  std::string others{};  // A rule for members that may follow these, any number of them; empty: there are none.
  std::string comma{};   // Between members.
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();

  // Whether its rules are few enough: there is one for each member and each number of members before it.
  [[nodiscard]] bool is_small() const;
};

// The expression for the members, without what stands around them. It may be the one that matches no text.
// Requires: is_small().
[[nodiscard]] std::string list_rules(const MemberList& list, RuleWriter& rules);

}  // namespace uma::grammar
