// Prompts of the bench: sentences of known words (tools/make_model/words.h), so that a model of make_model reads one token a
// word.
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

  // `words_count` words. The first one is new each time (10,000 times over), so that no two prompts share a beginning that a
  // server could have computed already.
  [[nodiscard]] std::string make_unique(std::size_t words_count);

  // The same text for the same block id: for traces that say which prompts share their beginnings.
  [[nodiscard]] std::string make_block(std::uint64_t block_id, std::size_t words_count) const;

 private:
  std::uint64_t seed_;
  Random random_;
  std::uint64_t made_count_ = 0;
};

}  // namespace uma::bench
