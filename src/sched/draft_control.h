// Learns how often a sequence's draft tokens are right, from those that were verified and, where drafts are free, from those
// that were not: each is compared with the token that came.
#pragma once

#include <cstdint>

namespace uma::sched {

inline constexpr std::int32_t kDraftTokensMax = 12;

// The assumed acceptance of a kind of draft before any was tried, and how fast the estimate returns to it.
struct DraftPrior {
  double right = 0.5;
  std::int32_t weight = 1;       // In observed draft tokens.
  std::int32_t weight_max = 20;  // The latest so many draft tokens count.
  double retry = 0;              // Share of the distance, per tick without a draft.
};

// Prior of drafts from a sequence's own text, which cost nothing and are compared with the tokens that come even if untried,
// and of a draft model, which is often right but costs calls of its own.
inline constexpr DraftPrior kOwnTextPrior{};
inline constexpr DraftPrior kDraftModelPrior{.right = 0.8, .weight = 8, .weight_max = 8, .retry = 1.0 / 512};

class DraftControl {
 public:
  explicit DraftControl(DraftPrior prior = kOwnTextPrior) : prior_(prior), right_(prior.right), weight_(prior.weight) {}

  // How many tokens the draft model should draft, 0 to kDraftTokensMax; drafts from a text go by chance(). `token_ms` is the
  // value of one more token of this sequence: the time of a decode call divided by its sequences. `row_ms` is the cost of
  // drafting and verifying one more row; 0: not known yet.
  [[nodiscard]] std::int32_t tokens_worthwhile(double token_ms, double row_ms) const;
  // The first `accepted` of `drafted` draft tokens were right. 0 <= accepted <= drafted.
  void observe(std::int32_t drafted, std::int32_t accepted);
  // The probability that the next draft token is right if those before it were.
  [[nodiscard]] double chance() const { return right_; }
  // Drafting was not worth its cost in this tick; after a while it is tried again.
  void observe_untried() { right_ += (prior_.right - right_) * prior_.retry; }

 private:
  DraftPrior prior_;
  double right_;
  std::int32_t weight_;  // Weight of right_, in observed draft tokens.
};

}  // namespace uma::sched
