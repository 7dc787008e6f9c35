// Keeps the loss by draft tokens small: a lane may lose a hundredth of its decode time to calls with draft tokens that gave
// fewer tokens than the same time without, as far as that is predicted right. Past gains do not pay for later losses beyond a
// few calls.
#pragma once

#include <algorithm>
#include <cstdint>

namespace uma::sched {

class DraftBalance {
 public:
  // Whether the next call may have draft tokens.
  [[nodiscard]] bool may_draft() const { return credit_ms_ >= 0; }

  // A decode call without draft tokens took `ms`.
  void add_plain(double ms) { add(kShare * ms, ms); }
  // A decode call of `sequences` >= 1 sequences took `ms`, with the drafting, of which `accepted` draft tokens were right;
  // without draft tokens it would have taken `plain_ms`.
  void add_drafted(double ms, double plain_ms, std::int32_t sequences, std::int32_t accepted) {
    add(plain_ms * (1 + static_cast<double>(accepted) / sequences) - ms + kShare * plain_ms, plain_ms);
  }

 private:
  static constexpr double kShare = 0.01;
  static constexpr double kCallsMax = 2;  // The credit's limits, in calls.
  static constexpr double kCallsOwedMax = 3;

  void add(double ms, double call_ms) {
    credit_ms_ = std::clamp(credit_ms_ + ms, -kCallsOwedMax * call_ms, kCallsMax * call_ms);
  }

  double credit_ms_ = 0;
};

}  // namespace uma::sched
