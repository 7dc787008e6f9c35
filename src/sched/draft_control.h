// Decides how many draft tokens are worth verifying, learned per sequence from the accepted ones.
#pragma once

#include <cstdint>

namespace uma::sched {

inline constexpr std::int32_t kDraftTokensMax = 12;

// The assumed acceptance of a kind of draft before any was tried, and how fast the estimate returns to it.
struct DraftPrior {
  double right = 0.6;
  double retry = 1.0 / 128;  // Share of the distance, per draft token that was not tried.
};

// Prior of drafts from a sequence's own text, which are free, and of a draft model, which is often right but costs calls of its
// own.
inline constexpr DraftPrior kOwnTextPrior{};
inline constexpr DraftPrior kDraftModelPrior{.right = 0.8, .retry = 1.0 / 512};

class DraftControl {
 public:
  explicit DraftControl(DraftPrior prior = kOwnTextPrior) : prior_(prior), right_(prior.right) {}

  // Returns how many draft tokens to verify, 0 to kDraftTokensMax. `token_ms` is the value of one more token of this sequence:
  // the time of a decode call divided by its sequences. `row_ms` is the cost of one more row, including drafting if that is not
  // free; 0: not known yet.
  [[nodiscard]] std::int32_t tokens_worthwhile(double token_ms, double row_ms) const;
  // The first `accepted` of `drafted` draft tokens were right. 0 <= accepted <= drafted.
  void observe(std::int32_t drafted, std::int32_t accepted);
  // A draft token existed, but was not worth verifying; after a while it is tried again.
  void observe_untried() { right_ += (prior_.right - right_) * prior_.retry; }

 private:
  DraftPrior prior_;
  double right_;  // Probability that the next draft token is right if those before it were.
};

}  // namespace uma::sched
