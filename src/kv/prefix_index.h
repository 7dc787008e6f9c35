// Finds what is stored of the beginning of a chain of tokens. The entries lie in the order of their tokens, so those that share
// most with a chain are beside the place where the chain itself would be. Tokens are compared, not hashes. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "core/ids.h"

namespace uma::kv {

class PrefixIndex {
 public:
  using Id = std::uint64_t;
  struct Match {
    Id id = 0;
    std::size_t tokens_count = 0;  // that the entry and the chain have in common, from the first on; >= 1
  };

  // What is in one scope is not found from another. `tokens` are not copied: they outlive the entry.
  void add(Id id, std::string_view scope, std::span<const Token> tokens);
  // With the arguments it was added with.
  void remove(Id id, std::string_view scope, std::span<const Token> tokens);

  // An entry that shares most with `chain`. O(log entries) comparisons.
  [[nodiscard]] std::optional<Match> longest_common(std::string_view scope, std::span<const Token> chain) const;
  // The longest entry that `chain` begins with as a whole.
  [[nodiscard]] std::optional<Match> longest_whole(std::string_view scope, std::span<const Token> chain) const;

 private:
  struct Entry {
    std::span<const Token> tokens;
    Id id = 0;
  };
  struct Order {
    bool operator()(const Entry& a, const Entry& b) const;
  };
  using Entries = std::set<Entry, Order>;

  [[nodiscard]] const Entries* find_scope(std::string_view scope) const;

  std::map<std::string, Entries, std::less<>> scopes_;
};

// Tokens that both begin with.
[[nodiscard]] std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b);

}  // namespace uma::kv
