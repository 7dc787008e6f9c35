// Guesses the next tokens of a sequence from what followed the same tokens before ("prompt lookup": Saxena, 2023): free, and
// right where text repeats itself, as in code edits, JSON and quotations. Owned by one lane. Memory: 16 bytes and more per
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
  // Writes up to `count` guesses of what continues `chain` into `draft`, none where its last tokens never came before. `chain`
  // is that of the last call, perhaps longer. O(tokens that are new in it + count).
  void draft(std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft);

 private:
  static constexpr std::size_t kTokens = 3;  // that must have come before, in this order
  static std::uint64_t key_of(std::span<const Token> tokens);

  std::unordered_map<std::uint64_t, std::int32_t> follows_;  // key of kTokens -> where their latest occurrence ends
  std::size_t indexed_ = kTokens;                            // ends of chain parts up to here are in follows_
};

}  // namespace uma::sched
