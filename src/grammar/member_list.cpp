#include "grammar/member_list.h"

#include <algorithm>
#include <format>
#include <optional>
#include <utility>

#include "grammar/json_schema_numbers.h"

namespace uma::grammar {
namespace {

constexpr std::int64_t kListMax = 1024;  // Other members of a list with a limit; smaller limits hold.
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kSmallRules = 1500;

// Counts go up to this one. Without a maximum it stands for more, too.
std::int64_t count_max(const MemberList& list) {
  return list.max == kNoLimit ? std::max<std::int64_t>(list.min, 1) : list.max;
}

// Other members behind `count` members; nullopt: it cannot end well.
std::optional<std::string> other_members(const MemberList& list, std::int64_t count) {
  const std::int64_t least = std::max<std::int64_t>(list.min - count, 0);
  const std::int64_t most = list.max == kNoLimit ? kNoLimit : list.max - count;
  if (list.others.empty() || most == 0) return least == 0 ? std::optional(std::string(R"("")")) : std::nullopt;
  const auto more = [&](std::int64_t low, std::int64_t high) {
    if (list.max == kNoLimit) return std::format("({} {}){{{},}}", list.comma, list.others, low);
    return std::format("({} {}){{{},{}}}", list.comma, list.others, low, std::max(low, std::min(high, kListMax)));
  };
  if (least > kListMax) return std::nullopt;
  if (count > 0) return more(least, most);
  if (least > 0) return std::format("{} {}", list.others, more(least - 1, most - 1));
  return std::format("({} {})?", list.others, more(0, most - 1));
}

}  // namespace

bool MemberList::is_small() const {
  if (max == kNoLimit && min <= 1) return true;
  const auto counts = static_cast<std::size_t>(std::min<std::int64_t>(count_max(*this), std::ssize(members))) + 1;
  return members.size() * counts <= kSmallRules;
}

std::string list_rules(const MemberList& list, RuleWriter& rules) {
  // Built from the end: what may follow each number of members.
  const std::int64_t counts_max = std::min<std::int64_t>(count_max(list), std::ssize(list.members) + 1);
  std::vector<std::optional<std::string>> rest;
  for (std::int64_t count = 0; count <= counts_max; ++count) rest.push_back(other_members(list, count));
  for (std::size_t i = list.members.size(); i-- > 0;) {
    const ListMember& member = list.members[i];
    std::vector<std::optional<std::string>> here;
    const std::int64_t before_max = std::min<std::int64_t>(counts_max, static_cast<std::int64_t>(i));
    for (std::int64_t count = 0; count <= before_max; ++count) {
      const std::string text = count == 0 ? member.text : std::format("{} {}", list.comma, member.text);
      std::optional<std::string> with;
      if (list.max == kNoLimit || count < list.max) with = rest[static_cast<std::size_t>(std::min(count + 1, counts_max))];
      const std::optional<std::string> without = member.is_required ? std::nullopt : rest[static_cast<std::size_t>(count)];
      if (!with && !without) {
        here.emplace_back();
        continue;
      }
      const std::string name = rules.new_rule();
      if (with == without) {
        rules.define(name, std::format("({})? {}", text, *with));
      } else {
        const std::string with_text = with ? std::format("{} {}", text, *with) : "";
        rules.define(name, !without ? with_text : !with ? *without : std::format("{} | {}", with_text, *without));
      }
      here.push_back(name);
    }
    rest = std::move(here);
  }
  return rest.front().value_or(joined({}));
}

}  // namespace uma::grammar
