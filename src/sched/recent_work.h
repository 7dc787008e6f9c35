// The work that was done for each tenant lately, for people who watch: a token counts less the older it is (exponentially, with
// a time constant of ten seconds). Pure; owned by one lane. Bounded: beyond kTenantsMax the tenants with the least work leave.
#pragma once

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/clock.h"

namespace uma::sched {

class RecentWork {
 public:
  static constexpr std::size_t kTenantsMax = 64;
  static constexpr Duration kTimeConstant = std::chrono::seconds(10);

  void add(const std::string& tenant, std::int64_t tokens) { tenants_[tenant] += static_cast<double>(tokens); }
  // Ages what was added before, and forgets tenants with less than a token.
  void age(TimePoint now);
  // The work of each tenant, in tokens that are aged as of the last call of age().
  [[nodiscard]] const std::map<std::string, double>& tenants() const { return tenants_; }
  // The part of `work` that is left after some time.
  [[nodiscard]] static double aged(double work, Duration after) {
    return work * std::exp(-to_ms(after) / to_ms(kTimeConstant));
  }

 private:
  std::map<std::string, double> tenants_;
  TimePoint as_of_{};
};

}  // namespace uma::sched
