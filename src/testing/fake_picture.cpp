#include "testing/fake_picture.h"

#include <limits>

#include "base/check.h"
#include "base/random.h"

namespace uma::testing {

float fake_gray(std::span<const std::int32_t> words) {
  std::uint64_t hash = 0x452821e638d01377ull;
  for (const std::int32_t word : words) hash = Random(hash ^ static_cast<std::uint64_t>(word + 1)).next_u64();
  return static_cast<float>(2 * Random(hash).next_unit() - 1);
}

Expected<bool> FakePicture::read_caption(std::span<const std::int32_t> words, llm::CallMonitor* monitor, llm::Caption& out) {
  if (is_lost()) return fail(ErrorCode::runtime_decode, "the device is lost");
  if (monitor != nullptr && monitor->wants_end()) return false;
  out = {.text = {}, .pooled = {fake_gray(words)}};
  return true;
}

Expected<bool> FakePicture::denoise(std::span<const llm::DenoiseRow> rows, llm::CallMonitor* monitor,
                                    std::vector<float>& clean) {
  UMA_CHECK(!rows.empty() && rows.size() <= static_cast<std::size_t>(rows_max()));
  if (on_denoise) on_denoise(rows);
  if (is_lost()) return fail(ErrorCode::runtime_decode, "the device is lost");
  if (monitor != nullptr && monitor->wants_end()) return false;
  if (options_.clock != nullptr) options_.clock->advance(options_.row_cost * static_cast<std::int64_t>(rows.size()));
  if (fails && fails(rows)) return fail(ErrorCode::runtime_decode, "a fault of the simulation");
  clean.clear();
  for (const llm::DenoiseRow& row : rows) {
    const float gray = is_damaged ? std::numeric_limits<float>::quiet_NaN() : row.caption->pooled.front();
    clean.insert(clean.end(), row.noisy.size(), gray);
  }
  return true;
}

}  // namespace uma::testing
