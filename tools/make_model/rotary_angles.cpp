#include "make_model/rotary_angles.h"

#include <cstddef>

#include "base/random.h"

namespace uma {

namespace {

constexpr std::uint64_t kAnglesSeed = 1;

}  // namespace

std::vector<double> angles_of_pairs(std::int64_t turned_pairs) {
  Random random(kAnglesSeed);
  std::vector<double> angles(static_cast<std::size_t>(turned_pairs));
  for (double& angle : angles) angle = 0.3 + 2.8 * random.next_unit();
  return angles;
}

Matrix frequency_divisors(std::int64_t head, std::int64_t turned_pairs) {
  constexpr float kStands = 1e30F;
  Matrix divisors = zeros("rope_freqs.weight", 1, head / 2);
  divisors.values.assign(divisors.values.size(), kStands);
  const std::vector<double> angles = angles_of_pairs(turned_pairs);
  for (std::size_t i = 0; i < angles.size(); ++i) divisors.values[i] = static_cast<float>(1 / angles[i]);
  return divisors;
}

}  // namespace uma
