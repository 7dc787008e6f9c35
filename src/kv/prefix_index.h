// Finds the stored token sequences that share the longest prefix with a chain. Entries are sorted by their tokens, so the best
// ones are next to the position of the chain. Tokens are compared, not hashes. Not thread-safe.
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
    std::size_t tokens_count = 0;  // Length of the common prefix; >= 1.
  };

  // An entry is found only within its scope. `tokens` are not copied and must outlive the entry.
  void add(Id id, std::string_view scope, std::span<const Token> tokens);
  // The arguments must be those of add().
  void remove(Id id, std::string_view scope, std::span<const Token> tokens);

  // The entry with the longest common prefix. O(log entries) comparisons.
  [[nodiscard]] std::optional<Match> longest_common(std::string_view scope, std::span<const Token> chain) const;
  // The longest entry that is, as a whole, a prefix of `chain`.
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

// Length of the common prefix.
[[nodiscard]] std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b);

}  // namespace uma::kv
