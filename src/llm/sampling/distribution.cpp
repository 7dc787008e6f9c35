#include "llm/sampling/distribution.h"

#include <algorithm>

#include "base/check.h"

namespace uma::llm {
namespace {

// The first entry whose running sum of weight(entry) exceeds `left`; after rounding errors, the last entry with a weight.
template <class Weight>
Token pick(const Distribution& distribution, double left, Weight weight) {
  Token last = distribution.front().token;
  for (const TokenChance& entry : distribution) {
    const double share = weight(entry);
    if (share <= 0) continue;
    last = entry.token;
    left -= share;
    if (left < 0) break;
  }
  return last;
}

}  // namespace

double chance_of(const Distribution& distribution, Token token) {
  const auto found = std::ranges::lower_bound(distribution, token, {}, &TokenChance::token);
  return found != distribution.end() && found->token == token ? found->chance : 0;
}

Token draw(const Distribution& distribution, Random& random) {
  UMA_CHECK(!distribution.empty());
  return pick(distribution, random.next_unit(), [](const TokenChance& entry) { return entry.chance; });
}

Token verify_drafted(const Distribution& wanted, const Distribution& draft, Token drafted, Random& random) {
  const double drafted_chance = chance_of(draft, drafted);
  UMA_CHECK(!wanted.empty() && drafted_chance > 0);
  if (random.next_unit() * drafted_chance < chance_of(wanted, drafted)) return drafted;
  // Entries are visited in order of their tokens.
  auto in_draft = draft.begin();
  const auto excess = [&](const TokenChance& entry) {
    while (in_draft != draft.end() && in_draft->token < entry.token) ++in_draft;
    const bool is_drafted_too = in_draft != draft.end() && in_draft->token == entry.token;
    return std::max(0.0, entry.chance - (is_drafted_too ? in_draft->chance : 0));
  };
  double mass = 0;
  for (const TokenChance& entry : wanted) mass += excess(entry);
  // The distributions differ only by rounding, and rounding caused the rejection.
  if (mass <= 0) return chance_of(wanted, drafted) > 0 ? drafted : draw(wanted, random);
  in_draft = draft.begin();
  return pick(wanted, random.next_unit() * mass, excess);
}

}  // namespace uma::llm
