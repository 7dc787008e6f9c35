// Makes prompts from known words (tools/make_model/words.h), which a model of make_model reads as one token each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/random.h"

namespace uma::bench {

// Not thread-safe. The same seed gives the same prompts in the same order.
class PromptMaker {
 public:
  explicit PromptMaker(std::uint64_t seed) : seed_(seed), random_(seed) {}

  // Makes `words_count` words. The first word is new each time (10,000 times), so that no two prompts share a prefix.
  [[nodiscard]] std::string make_unique(std::size_t words_count);

  // Makes the same text for the same block id, for traces that state which prompts share prefixes.
  [[nodiscard]] std::string make_block(std::uint64_t block_id, std::size_t words_count) const;

 private:
  std::uint64_t seed_;
  Random random_;
  std::uint64_t made_count_ = 0;
};

}  // namespace uma::bench
