#pragma once

#include <cstddef>
#include <limits>
#include <string_view>

namespace uma {

// The Levenshtein distance: how many bytes have to be inserted, deleted or replaced. Any number above `max` once it exceeds
// `max`.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b,
                                        std::size_t max = std::numeric_limits<std::size_t>::max());

}  // namespace uma
