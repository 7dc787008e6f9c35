#include "make_model/shift_register.h"

#include <cmath>
#include <format>
#include <string_view>

#include "base/check.h"
#include "make_model/rotary_angles.h"

namespace uma {

namespace {

constexpr std::int64_t kWordsCount = 1 << kCodeBits;
constexpr std::int64_t kStillPairs = 4;  // Pairs of each head that the position does not turn.

// Scores before the softmax. At every other distance within 8,192 tokens, the turned pairs add up to 36 at most.
constexpr double kScoreTap = 100;
constexpr double kScoreBegin = 65;
constexpr float kLogitOfABit = 8;  // Two codes differ in at least one bit, so their logits differ by twice this.

std::int64_t place_of_state(std::int64_t layer) {
  return kPlaceCode + 2 * layer * kCodeBits;
}
std::int64_t place_of_tap(std::int64_t layer) {
  return place_of_state(layer) + kCodeBits;
}

float bit_of(std::int64_t code, std::int64_t bit) {
  return (code >> bit & 1) != 0 ? 1.0F : -1.0F;
}

// The normalization divides by the root of the mean square. These weights undo it if `used` numbers are 1 or -1, and all others
// are 0.
Matrix norm_of(std::string name, std::int64_t width, std::int64_t used) {
  return vector_of(std::move(name), width,
                   static_cast<float>(std::sqrt(static_cast<double>(used) / static_cast<double>(width))));
}

void add_attention(const std::string& block, std::int64_t layer, std::int64_t width, std::vector<Matrix>& list) {
  const std::vector<double> angles = angles_of_pairs(width / 2 - kStillPairs);
  const double pairs = static_cast<double>(angles.size());
  const double root = std::sqrt(static_cast<double>(width));  // Attention divides by it.
  const double tap = std::sqrt(kScoreTap * root / pairs);
  const double begin = std::sqrt(kScoreBegin * root / static_cast<double>(kStillPairs));
  Matrix query = zeros(block + "attn_q.weight", width, width);
  Matrix key = zeros(block + "attn_k.weight", width, width);
  // The numbers are stored in 16 bits, so the last bits of sines and cosines, in which libms differ, do not matter.
  for (std::size_t i = 0; i < angles.size(); ++i) {
    const std::int64_t row = 2 * static_cast<std::int64_t>(i);
    const double turned = static_cast<double>(kTapDistances[static_cast<std::size_t>(layer)]) * angles[i];
    at(query, row, kPlaceOne) = static_cast<float>(tap * std::cos(turned));
    at(query, row + 1, kPlaceOne) = static_cast<float>(-tap * std::sin(turned));
    at(key, row, kPlaceOne) = static_cast<float>(tap);
    at(key, row, kPlaceBegin) = static_cast<float>(-tap);
  }
  for (std::int64_t row = 2 * static_cast<std::int64_t>(angles.size()); row < width; row += 2) {
    at(query, row, kPlaceOne) = static_cast<float>(begin);
    at(key, row, kPlaceBegin) = static_cast<float>(begin);
  }
  Matrix value = zeros(block + "attn_v.weight", width, width);
  Matrix output = zeros(block + "attn_output.weight", width, width);
  for (std::int64_t bit = 0; bit < kCodeBits; ++bit) {
    at(value, bit, place_of_state(layer) + bit) = 1;
    at(output, place_of_tap(layer) + bit, bit) = 1;
  }
  const std::int64_t used = place_of_tap(layer) - 1;  // <s> has one more, so its numbers are a little smaller.
  list.push_back(norm_of(block + "attn_norm.weight", width, used));
  for (Matrix* matrix : {&query, &key, &value, &output}) list.push_back(std::move(*matrix));
}

void add_feed_forward(const std::string& block, std::int64_t layer, std::int64_t width, std::int64_t inner,
                      std::vector<Matrix>& list) {
  Matrix gate = zeros(block + "ffn_gate.weight", inner, width);
  Matrix up = zeros(block + "ffn_up.weight", inner, width);
  Matrix down = zeros(block + "ffn_down.weight", width, inner);
  for (std::int64_t bit = 0; bit < kCodeBits; ++bit) {
    const std::int64_t moved = place_of_state(layer) + (bit + 1) % kCodeBits;
    for (const std::int64_t half : {0, 1}) {
      const float sign = half == 0 ? 1.0F : -1.0F;
      at(gate, 2 * bit + half, moved) = sign;
      at(up, 2 * bit + half, place_of_tap(layer) + bit) = sign;
      at(down, place_of_state(layer + 1) + bit, 2 * bit + half) = -1;
    }
  }
  list.push_back(norm_of(block + "ffn_norm.weight", width, place_of_state(layer + 1) - 1));
  for (Matrix* matrix : {&gate, &up, &down}) list.push_back(std::move(*matrix));
}

}  // namespace

std::int64_t register_width_min(std::int64_t layers) {
  return place_of_state(layers) + kCodeBits;
}

std::int64_t register_feed_forward_min() {
  return 2 * kCodeBits;
}

std::vector<std::int64_t> register_words(const Vocabulary& vocabulary) {
  constexpr std::string_view kWordBegin = "\u2581";
  std::vector<std::int64_t> words;
  for (std::size_t id = vocabulary.plain_begin; id < vocabulary.size() && words.size() < kWordsCount; ++id) {
    const std::string& text = vocabulary.texts[id];
    if (text.starts_with(kWordBegin) && text.size() > kWordBegin.size()) words.push_back(static_cast<std::int64_t>(id));
  }
  return words;
}

std::vector<Matrix> list_register_matrices(const Vocabulary& vocabulary, std::int64_t layers, std::int64_t width,
                                           std::int64_t feed_forward) {
  const std::vector<std::int64_t> words = register_words(vocabulary);
  UMA_CHECK(words.size() == kWordsCount && layers <= std::ssize(kTapDistances));
  UMA_CHECK(width >= register_width_min(layers) && feed_forward >= register_feed_forward_min());
  const auto tokens = static_cast<std::int64_t>(vocabulary.size());
  // Tokens that are never generated have a code too, because they may be in a prompt: the last bits of their ids.
  std::vector<std::int64_t> codes;
  for (std::int64_t id = 0; id < tokens; ++id) codes.push_back(id % kWordsCount);
  for (std::int64_t code = 0; code < kWordsCount; ++code)
    codes[static_cast<std::size_t>(words[static_cast<std::size_t>(code)])] = code;

  std::vector<Matrix> list;
  Matrix entries = zeros("token_embd.weight", tokens, width);
  Matrix logits = zeros("output.weight", tokens, width);
  for (std::int64_t id = 0; id < tokens; ++id) {
    at(entries, id, kPlaceOne) = 1;
    for (std::int64_t bit = 0; bit < kCodeBits; ++bit) {
      at(entries, id, kPlaceCode + bit) = bit_of(codes[static_cast<std::size_t>(id)], bit);
    }
  }
  at(entries, kTokenBos, kPlaceBegin) = 1;
  for (std::int64_t code = 0; code < kWordsCount; ++code) {
    for (std::int64_t bit = 0; bit < kCodeBits; ++bit) {
      at(logits, words[static_cast<std::size_t>(code)], place_of_state(layers) + bit) = kLogitOfABit * bit_of(code, bit);
    }
  }
  list.push_back(std::move(entries));
  list.push_back(frequency_divisors(width, width / 2 - kStillPairs));
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::string block = std::format("blk.{}.", layer);
    add_attention(block, layer, width, list);
    add_feed_forward(block, layer, width, feed_forward, list);
  }
  list.push_back(norm_of("output_norm.weight", width, register_width_min(layers) - 1));
  list.push_back(std::move(logits));
  return list;
}

}  // namespace uma
