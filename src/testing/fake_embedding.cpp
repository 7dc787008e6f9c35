#include "testing/fake_embedding.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "llm/media/image_tokens.h"
#include "llm/model.h"
#include "testing/fake_model.h"

namespace uma::testing {

std::vector<float> fake_output(std::span<const Token> text, std::int32_t dimensions) {
  std::uint64_t hash = 0x13198a2e03707344ull;
  for (const Token token : text) hash = Random(hash ^ static_cast<std::uint64_t>(token + 1)).next_u64();
  Random random(hash);
  std::vector<float> output;
  for (std::int32_t i = 0; i < dimensions; ++i) output.push_back(static_cast<float>(random.next_unit()) - 0.5f);
  return output;
}

Expected<bool> FakeEmbedding::compute(std::span<const Text> texts, llm::CallMonitor* monitor, std::vector<float>& out) {
  UMA_CHECK(!texts.empty() && texts.size() <= static_cast<std::size_t>(shape().batch_texts_max));
  std::size_t rows = 0;
  for (const Text& text : texts) {
    UMA_CHECK(!text.empty() && text.size() <= static_cast<std::size_t>(shape().text_tokens_max));
    rows += text.size();
  }
  UMA_CHECK(rows <= static_cast<std::size_t>(shape().batch_rows_max));
  if (on_compute) on_compute(texts);
  if (is_lost()) return fail(ErrorCode::runtime_decode, "the device is lost");
  if (monitor != nullptr && monitor->wants_end()) return false;
  if (options_.clock != nullptr) {
    options_.clock->advance(options_.call_cost + options_.row_cost * static_cast<std::int64_t>(rows));
  }
  for (const Text& text : texts) {
    if (fails && fails(text)) return fail(ErrorCode::runtime_decode, "a fault of the simulation");
  }
  out.clear();
  for (const Text& text : texts) {
    const std::vector<float> output = fake_output(text, shape().dimensions);
    out.insert(out.end(), output.begin(), output.end());
  }
  return true;
}

Expected<bool> FakeEmbedding::compute_with_images(std::span<const Token> text, std::span<const llm::ImageRows> images,
                                                  llm::CallMonitor* monitor, std::vector<float>& out) {
  UMA_CHECK(shape().reads_images && !images.empty());
  std::size_t seen = 0;
  for (const llm::ImageRows& image : images) {
    UMA_CHECK(image.is_causal || image.tokens.size() <= static_cast<std::size_t>(shape().image_rows_max));
    for (std::size_t row = 0; row < image.tokens.size(); ++row, ++seen) {
      UMA_CHECK(image.tokens[row] == text[static_cast<std::size_t>(image.position) + row]);
      UMA_CHECK(image.values[2 * row] == fake_row_value(image.tokens[row]));
    }
  }
  UMA_CHECK(seen == static_cast<std::size_t>(std::ranges::count_if(text, llm::is_image_token)));
  return compute(std::span(&text, 1), monitor, out);
}

}  // namespace uma::testing
