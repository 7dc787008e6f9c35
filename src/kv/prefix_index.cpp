#include "kv/prefix_index.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace uma::kv {

std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  const auto [in_a, in_b] = std::ranges::mismatch(a, b);
  return static_cast<std::size_t>(in_a - a.begin());
}

bool PrefixIndex::Order::operator()(const Entry& a, const Entry& b) const {
  const auto order = std::lexicographical_compare_three_way(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
  return order != 0 ? order < 0 : a.id < b.id;
}

void PrefixIndex::add(Id id, std::string_view scope, std::span<const Token> tokens) {
  UMA_CHECK(id != 0 && !tokens.empty());
  auto found = scopes_.find(scope);
  if (found == scopes_.end()) found = scopes_.emplace(scope, Entries()).first;
  UMA_CHECK(found->second.insert({tokens, id}).second);
}

void PrefixIndex::remove(Id id, std::string_view scope, std::span<const Token> tokens) {
  const auto found = scopes_.find(scope);
  UMA_CHECK(found != scopes_.end() && found->second.erase({tokens, id}) == 1);
  if (found->second.empty()) scopes_.erase(found);
}

const PrefixIndex::Entries* PrefixIndex::find_scope(std::string_view scope) const {
  const auto found = scopes_.find(scope);
  return found == scopes_.end() ? nullptr : &found->second;
}

std::optional<PrefixIndex::Match> PrefixIndex::longest_common(std::string_view scope, std::span<const Token> chain) const {
  const Entries* entries = find_scope(scope);
  if (entries == nullptr) return std::nullopt;
  const auto after = entries->lower_bound({chain, 0});
  Match best;
  if (after != entries->end()) best = {after->id, common_prefix(after->tokens, chain)};
  if (after != entries->begin()) {
    const Entry& before = *std::prev(after);
    const std::size_t common = common_prefix(before.tokens, chain);
    // An equally good entry before the chain is not longer than the chain.
    if (common >= best.tokens_count) best = {before.id, common};
  }
  return best.tokens_count > 0 ? std::optional(best) : std::nullopt;
}

std::optional<PrefixIndex::Match> PrefixIndex::longest_whole(std::string_view scope, std::span<const Token> chain) const {
  const Entries* entries = find_scope(scope);
  if (entries == nullptr) return std::nullopt;
  // The last entry up to the chain is a prefix of it, or bounds the length of a prefix.
  constexpr Id kAfterAllIds = ~Id{0};
  for (auto after = entries->upper_bound({chain, kAfterAllIds}); after != entries->begin();
       after = entries->upper_bound({chain, kAfterAllIds})) {
    const Entry& before = *std::prev(after);
    const std::size_t common = common_prefix(before.tokens, chain);
    if (common == before.tokens.size()) return Match{before.id, common};
    if (common == 0) return std::nullopt;
    chain = chain.first(common);
  }
  return std::nullopt;
}

}  // namespace uma::kv
