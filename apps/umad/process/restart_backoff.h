// The delay before a crashed daemon is restarted. It is short at first and doubles each time, so that a daemon that crashes at
// its start does not occupy the machine. A daemon that ran for a while resets it. Pure.
#pragma once

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace uma::umad {

class RestartBackoff {
 public:
  static constexpr Duration kFirst = std::chrono::milliseconds(100);
  static constexpr Duration kLongest = std::chrono::seconds(30);
  static constexpr Duration kHealthy = std::chrono::minutes(1);

  // The delay after a daemon that ran for `lived`. Ensures: kFirst <= result <= kLongest.
  [[nodiscard]] Duration next(Duration lived) {
    if (lived >= kHealthy) wait_ = kFirst;
    return std::exchange(wait_, std::min(2 * wait_, kLongest));
  }

 private:
  Duration wait_ = kFirst;
};

}  // namespace uma::umad
