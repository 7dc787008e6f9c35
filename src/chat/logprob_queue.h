// Holds the log probabilities of one reply until it is clear which tokens are content: only tokens with a part in the content
// are reported, not those of reasoning, tool calls, marks or hidden stop strings. Owned by the reply's lane.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/event.h"

namespace uma::chat {

class LogprobQueue {
 public:
  // Adds the next token, with the bytes [begin, end) of the reply's whole text. An empty range: the token is part of a
  // character that begins there.
  void push(TokenLogprobs logprobs, std::size_t begin, std::size_t end) {
    waiting_.push_back({std::move(logprobs), begin, end > begin ? end : begin + 1});
  }

  // Appends the tokens with a part in the content [begin, end) to `out`, in order, and drops earlier tokens.
  void take(std::size_t begin, std::size_t end, std::vector<TokenLogprobs>& out) {
    auto next = waiting_.begin();
    for (; next != waiting_.end() && next->begin < end; ++next) {
      if (next->end > begin) out.push_back(std::move(next->logprobs));
    }
    waiting_.erase(waiting_.begin(), next);
  }

 private:
  struct Waiting {
    TokenLogprobs logprobs;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  std::vector<Waiting> waiting_;  // Few tokens, except during reasoning and tool calls.
};

}  // namespace uma::chat
