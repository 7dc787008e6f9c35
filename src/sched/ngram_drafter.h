// Drafts the next tokens of a sequence from what followed the same tokens before ("prompt lookup": Saxena, 2023). It is free,
// and often right in repetitive text such as code edits, JSON and quotations. Owned by one lane. Memory: at least 16 bytes per
// token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/ids.h"

namespace uma::sched {

class NgramDrafter {
 public:
  static constexpr std::size_t kMatchLong = 8;  // Drafts behind so many tokens are right more often.

  // Writes up to `count` draft tokens that may continue `chain` into `draft`; none if the last tokens of the chain are new.
  // Returns how many of the last tokens have occurred before in the same order, at most kMatchLong. `chain` extends the chain
  // of the previous call. O(new tokens + count).
  std::size_t draft(std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft);

 private:
  static constexpr std::size_t kTokens = 3;  // Number of tokens that must have occurred before in the same order.
  static std::uint64_t key_of(std::span<const Token> tokens);

  // From a key of kTokens tokens to the end of its latest occurrence.
  std::unordered_map<std::uint64_t, std::int32_t> follows_;
  std::size_t indexed_ = kTokens;  // Chain prefixes up to this length are in follows_.
};

}  // namespace uma::sched
