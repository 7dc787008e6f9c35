// How many guessed tokens are worth computing beside the next one: learned per sequence from how many were right.
#pragma once

#include <cstdint>

namespace uma::sched {

inline constexpr std::int32_t kDraftTokensMax = 12;

// What is thought of guesses of one kind before any was tried, and how fast it comes back to that while none is.
struct DraftPrior {
  double right = 0.6;
  double retry = 1.0 / 128;  // of the way, per guess that was not tried
};

// Guesses that cost nothing to make, from a sequence's own text, and those of a draft model, which is chosen because it is
// often right, but whose tries cost calls of its own.
inline constexpr DraftPrior kOwnTextPrior{};
inline constexpr DraftPrior kDraftModelPrior{.right = 0.8, .retry = 1.0 / 512};

class DraftControl {
 public:
  explicit DraftControl(DraftPrior prior = kOwnTextPrior) : prior_(prior), right_(prior.right) {}

  // `token_ms`: what one more token of this sequence is worth, the time of a decode call divided by the sequences in it.
  // `row_ms`: what one more row costs, and making the guess where that is not free; 0: not known yet. Returns 0 to
  // kDraftTokensMax.
  [[nodiscard]] std::int32_t tokens_worthwhile(double token_ms, double row_ms) const;
  // Of `drafted` guesses the first `accepted` were right. 0 <= accepted <= drafted.
  void observe(std::int32_t drafted, std::int32_t accepted);
  // A guess was there, but not worth trying: after a while it is tried again.
  void observe_untried() { right_ += (prior_.right - right_) * prior_.retry; }

 private:
  DraftPrior prior_;
  double right_;  // chance that the next guess is right, if those before it were
};

}  // namespace uma::sched
