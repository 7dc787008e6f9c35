#include "sched/ngram_drafter.h"

#include <algorithm>

namespace uma::sched {

std::uint64_t NgramDrafter::key_of(std::span<const Token> tokens) {
  std::uint64_t key = 0;
  for (const Token token : tokens) key = (key ^ static_cast<std::uint32_t>(token)) * 0x9E37'79B9'7F4A'7C15ULL;
  return key;
}

std::size_t NgramDrafter::draft(std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft) {
  draft.clear();
  if (chain.size() <= kTokens) return 0;
  // The last tokens themselves are the query, so they are not in the index yet.
  for (; indexed_ < chain.size(); ++indexed_) {
    follows_[key_of(chain.subspan(indexed_ - kTokens, kTokens))] = static_cast<std::int32_t>(indexed_);
  }
  const std::span<const Token> last = chain.last(kTokens);
  const auto found = follows_.find(key_of(last));
  if (found == follows_.end()) return 0;
  const auto from = static_cast<std::size_t>(found->second);
  if (!std::ranges::equal(chain.subspan(from - kTokens, kTokens), last)) return 0;  // Two keys collide by chance.
  for (std::size_t i = from; draft.size() < static_cast<std::size_t>(count); ++i) {
    draft.push_back(i < chain.size() ? chain[i] : draft[i - chain.size()]);  // Continues a repetition that reaches the end.
  }
  std::size_t matched = kTokens;
  while (matched < std::min(kMatchLong, from) && chain[from - matched - 1] == chain[chain.size() - matched - 1]) ++matched;
  return matched;
}

}  // namespace uma::sched
