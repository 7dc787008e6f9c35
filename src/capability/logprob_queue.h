// How likely the tokens of one reply were, until it is clear which of them are shown: a token belongs to the content that it is
// part of; one whose text is a thought's, a call's, a mark's or a hidden stop string's is not told. Owned by the reply's lane.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/event.h"

namespace uma::capability {

class LogprobQueue {
 public:
  // The next token. The bytes [begin, end) of the reply's text, as it was before anything was cut from it, came with it; none:
  // its text is part of a character that begins there.
  void push(TokenLogprobs logprobs, std::size_t begin, std::size_t end) {
    waiting_.push_back({std::move(logprobs), begin, end > begin ? end : begin + 1});
  }

  // The bytes [begin, end) are content, and those before it that nobody took are none: appends the tokens that have a part of
  // them to `out`. In order.
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
  std::vector<Waiting> waiting_;  // a few, but for thoughts and calls
};

}  // namespace uma::capability
