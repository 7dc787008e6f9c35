// How long to wait before a daemon that has crashed is started again: at first hardly, then twice as long each time, so that
// one that crashes at its start does not occupy the machine. One that lived for a while begins anew. Pure.
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

  // After one that lived for `lived`. Ensures: kFirst <= result <= kLongest.
  [[nodiscard]] Duration next(Duration lived) {
    if (lived >= kHealthy) wait_ = kFirst;
    return std::exchange(wait_, std::min(2 * wait_, kLongest));
  }

 private:
  Duration wait_ = kFirst;
};

}  // namespace uma::umad
