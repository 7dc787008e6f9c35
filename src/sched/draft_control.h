// How many guessed tokens are worth computing beside the next one: learned per sequence from how many were right.
#pragma once

#include <cstdint>

namespace uma::sched {

inline constexpr std::int32_t kDraftTokensMax = 12;

class DraftControl {
 public:
  // `token_ms`: what one more token of this sequence is worth, the time of a decode call divided by the sequences in it.
  // `row_ms`: what one more row costs; 0: not known yet. Returns 0 to kDraftTokensMax.
  [[nodiscard]] std::int32_t tokens_worthwhile(double token_ms, double row_ms) const;
  // Of `drafted` guesses the first `accepted` were right. 0 <= accepted <= drafted.
  void observe(std::int32_t drafted, std::int32_t accepted);
  // A guess was there, but not worth trying: after a while it is tried again.
  void observe_untried() { right_ += (kRightAtFirst - right_) / 128; }

 private:
  static constexpr double kRightAtFirst = 0.6;
  double right_ = kRightAtFirst;  // chance that the next guess is right, if those before it were
};

}  // namespace uma::sched
