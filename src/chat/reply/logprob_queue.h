// Holds the log probabilities of one reply until it is clear which tokens are content: only tokens with a part in the content
// are reported, not those of reasoning, tool calls, marks or hidden stop strings. Owned by the reply's lane.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/event.h"

namespace uma::chat {

// Approximate bytes of a token's log probabilities in memory and in the JSON of an answer, where each byte of a text is a
// number.
[[nodiscard]] inline std::size_t logprobs_bytes(const TokenLogprobs& logprobs) {
  constexpr std::size_t kJsonBytes = 80;
  constexpr std::size_t kJsonBytesPerByte = 6;
  const auto bytes_of = [](const TokenLogprob& one) {
    return sizeof(TokenLogprob) + kJsonBytes + kJsonBytesPerByte * one.bytes.size();
  };
  std::size_t bytes = bytes_of(logprobs.chosen);
  for (const TokenLogprob& one : logprobs.top) bytes += bytes_of(one);
  return bytes;
}

class LogprobQueue {
 public:
  // Adds the next token, with the bytes [begin, end) of the reply's whole text. An empty range: the token is part of a
  // character that begins there.
  void push(TokenLogprobs logprobs, std::size_t begin, std::size_t end) {
    bytes_ += logprobs_bytes(logprobs);
    waiting_.push_back({std::move(logprobs), begin, end > begin ? end : begin + 1});
  }

  // Appends the tokens with a part in the content [begin, end) to `out`, in order, and drops earlier tokens.
  void take(std::size_t begin, std::size_t end, std::vector<TokenLogprobs>& out) {
    auto next = waiting_.begin();
    for (; next != waiting_.end() && next->begin < end; ++next) {
      bytes_ -= logprobs_bytes(next->logprobs);
      if (next->end > begin) out.push_back(std::move(next->logprobs));
    }
    waiting_.erase(waiting_.begin(), next);
  }

  // Bytes of the waiting tokens (logprobs_bytes).
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Waiting {
    TokenLogprobs logprobs;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  std::vector<Waiting> waiting_;  // Few tokens, except during reasoning and tool calls.
  std::size_t bytes_ = 0;
};

}  // namespace uma::chat
