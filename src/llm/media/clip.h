// The samples of a clip of sound.
#pragma once

#include <cstdint>
#include <vector>

namespace uma::llm {

struct Clip {
  std::int32_t sample_rate = 0;  // Samples in a second.
  std::vector<float> samples;    // Samples of one channel, finite, about -1 to 1.
  bool operator==(const Clip&) const = default;
};

}  // namespace uma::llm
