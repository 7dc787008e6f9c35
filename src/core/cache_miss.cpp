#include "core/cache_miss.h"

#include <format>

namespace uma {

std::string clock_warning(const CacheMiss& miss) {
  if (miss.repeats < kClockRepeats) return "";
  const std::string place = miss.message < 0 ? std::format("in the {}", cache_miss_name(miss.kind))
                                             : std::format("in message {} ({})", miss.message, miss.role);
  return std::format(
      "{} prompts differ {} at token {}, as with a clock or a counter, and {} tokens behind it are computed again: put it "
      "behind what stays the same",
      miss.repeats + 1, place, miss.token, miss.lost_tokens);
}

}  // namespace uma
