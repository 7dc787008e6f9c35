#include "make_model/scripted_weights.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <format>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/check.h"
#include "make_model/rotary_angles.h"

namespace uma {

namespace {

constexpr std::int64_t kIdBits = 13;
constexpr std::int64_t kCountBits = 6;
static_assert(1 << kIdBits == kScriptedTokensMax && (1 << kCountBits) - 2 == kQuotedTokensMax);
static_assert(kCountBits + 2 == kScriptedLayers);

// Places in the residual stream.
enum Place : std::int64_t {
  kPlaceLarge = 0,  // The large number.
  kPlaceId = 1,     // The code that a quotation copies.
  kPlaceNext = kPlaceId + kIdBits,
  kPlaceCopied = kPlaceNext + kIdBits,
  kIsBegin = kPlaceCopied + kIdBits,
  kIsToolMark,
  kIsResultMark,
  kIsQuoteMark,
  kIsTurnMark,
  kIsScripted,  // The embedding has the code of the next token, or layer 0 adds it.
  kSeesResult,  // Results of layer 0.
  kSeesTool,
  kIsCounted,   // The token knows its distance from an origin.
  kIsOfAnswer,  // That origin is in the answer.
  kPlaceCount,  // The bits of the distance.
  kPlacesEnd = kPlaceCount + kCountBits,
};
static_assert(kPlacesEnd <= kScriptedWidth);

constexpr float kLarge = 256;
constexpr float kOne = 1 / kLarge;  // The weight that makes 1 of the large number.

// Pairs of the head. The rows of the last ones are for comparing contents.
constexpr std::int64_t kTurned = 28;
constexpr std::int64_t kContentRow = 2 * kTurned;
static_assert(kContentRow + kCountBits + 2 == kScriptedWidth);

// Scores before the softmax.
constexpr double kScoreResult = 120;
constexpr double kScoreTool = 80;
constexpr double kScoreNeither = 40;
constexpr double kScoreDistance = 120;  // At every other distance up to 131,072 it is 63 at most.
constexpr double kScoreNoDistance = 92;
constexpr double kScoreCountBit = 40;  // Added if a bit is equal, subtracted if not.
constexpr double kScoreSource = 60;
constexpr double kScoreNoSource = 250;  // All bits equal: 300. One bit not: 220.

constexpr float kLogitOfIdBit = 24;
constexpr float kGate = 40;
constexpr float kGateOpen = kGate / 2;

float sign_of(std::int64_t id, std::int64_t bit) {
  return (id >> bit & 1) != 0 ? 1.0F : -1.0F;
}

// Attention divides scores by the root of the head's size. The factor for a query and a key whose product is to be `score`.
double root_of_score(double score) {
  return std::sqrt(score * std::sqrt(static_cast<double>(kScriptedWidth)));
}

float as_weight(double value) {
  return static_cast<float>(value);
}

Matrix scripted_norm(std::string name) {
  return vector_of(std::move(name), kScriptedWidth, kLarge / std::sqrt(static_cast<float>(kScriptedWidth)));
}

struct ScriptedLayer {
  explicit ScriptedLayer(std::int64_t layer)
      : block(std::format("blk.{}.", layer)),
        query(zeros(block + "attn_q.weight", kScriptedWidth, kScriptedWidth)),
        key(zeros(block + "attn_k.weight", kScriptedWidth, kScriptedWidth)),
        value(zeros(block + "attn_v.weight", kScriptedWidth, kScriptedWidth)),
        output(zeros(block + "attn_output.weight", kScriptedWidth, kScriptedWidth)),
        gate(zeros(block + "ffn_gate.weight", kScriptedFeedForward, kScriptedWidth)),
        up(zeros(block + "ffn_up.weight", kScriptedFeedForward, kScriptedWidth)),
        down(zeros(block + "ffn_down.weight", kScriptedWidth, kScriptedFeedForward)) {}

  void move_to(std::vector<Matrix>& list) {
    list.push_back(scripted_norm(block + "attn_norm.weight"));
    for (Matrix* matrix : {&query, &key, &value, &output}) list.push_back(std::move(*matrix));
    list.push_back(scripted_norm(block + "ffn_norm.weight"));
    for (Matrix* matrix : {&gate, &up, &down}) list.push_back(std::move(*matrix));
  }

  // Adds `from` of the attended token to `to`.
  void take(std::int64_t from, std::int64_t to) {
    at(value, rows_used, from) = 1;
    at(output, to, rows_used) = 1;
    ++rows_used;
  }

  // A neuron that is open if the sum of these flags, some of them negated, is above `threshold`, which is half a flag away from
  // possible sums. Returns its number.
  std::int64_t add_neuron(std::initializer_list<std::pair<std::int64_t, float>> flags, float threshold) {
    for (const auto& [place, factor] : flags) at(gate, neurons_used, place) = kGate * factor;
    at(gate, neurons_used, kPlaceLarge) = -kGate * threshold * kOne;
    return neurons_used++;
  }

  // An open neuron adds `factor` times the token's code to the code of the next token.
  void add_next(std::int64_t neuron, std::int64_t token, float factor) {
    at(up, neuron, kPlaceLarge) = kOne;
    for (std::int64_t bit = 0; bit < kIdBits; ++bit) {
      at(down, kPlaceNext + bit, neuron) = factor * sign_of(token, bit) / kGateOpen;
    }
  }

  std::string block;
  Matrix query, key, value, output, gate, up, down;
  std::int64_t rows_used = 0;  // Rows of `value`.
  std::int64_t neurons_used = 0;
};

ScriptedLayer kind_layer(const ScriptedTokens& script) {
  ScriptedLayer layer(0);
  const double root = root_of_score(kScoreResult);
  at(layer.query, kContentRow, kPlaceLarge) = as_weight(root * kOne);
  at(layer.key, kContentRow, kIsResultMark) = as_weight(root);
  at(layer.key, kContentRow, kIsToolMark) = as_weight(root * kScoreTool / kScoreResult);
  at(layer.key, kContentRow, kIsBegin) = as_weight(root * kScoreNeither / kScoreResult);
  layer.take(kIsResultMark, kSeesResult);
  layer.take(kIsToolMark, kSeesTool);

  const std::int64_t origin = layer.add_neuron({{kIsQuoteMark, 1}, {kSeesResult, 1}}, 1.5F);
  at(layer.up, origin, kPlaceLarge) = kOne;
  at(layer.down, kIsCounted, origin) = 1 / kGateOpen;
  layer.add_next(layer.add_neuron({{kIsTurnMark, 1}, {kSeesResult, 1}}, 1.5F), script.answer, 1);
  layer.add_next(layer.add_neuron({{kIsTurnMark, 1}, {kSeesTool, 1}}, 1.5F), script.call, 1);
  layer.add_next(layer.add_neuron({{kIsTurnMark, 1}, {kSeesResult, -1}, {kSeesTool, -1}}, 0.5F), script.plain_answer, 1);
  return layer;
}

// Counts up to 2^(bit+1) - 1.
ScriptedLayer count_layer(std::int64_t bit) {
  ScriptedLayer layer(1 + bit);
  const std::vector<double> angles = angles_of_pairs(kTurned);
  const double root = root_of_score(kScoreDistance / static_cast<double>(kTurned));
  const auto distance = static_cast<double>(1 << bit);
  for (std::size_t i = 0; i < angles.size(); ++i) {
    const auto row = 2 * static_cast<std::int64_t>(i);
    const std::array<double, 2> turned{root * std::cos(distance * angles[i]), -root * std::sin(distance * angles[i])};
    for (const std::int64_t half : {0, 1}) {
      const double weight = turned[static_cast<std::size_t>(half)];
      at(layer.query, row + half, kPlaceLarge) = as_weight(weight * kOne);
      at(layer.query, row + half, kIsCounted) = as_weight(-weight);
    }
    at(layer.key, row, kPlaceLarge) = as_weight(root * kOne);
    at(layer.key, row, kIsBegin) = as_weight(-root);
  }
  const double root_begin = root_of_score(kScoreNoDistance);
  at(layer.query, kContentRow, kPlaceLarge) = as_weight(root_begin * kOne);
  at(layer.key, kContentRow, kIsBegin) = as_weight(root_begin);

  at(layer.output, kPlaceCount + bit, layer.rows_used) = 1;
  layer.take(kIsCounted, kIsCounted);
  layer.take(kIsOfAnswer, kIsOfAnswer);
  for (std::int64_t lower = 0; lower < bit; ++lower) layer.take(kPlaceCount + lower, kPlaceCount + lower);
  return layer;
}

ScriptedLayer copy_layer(const ScriptedTokens& script) {
  ScriptedLayer layer(1 + kCountBits);
  const double root_bit = root_of_score(kScoreCountBit);
  for (std::int64_t bit = 0; bit < kCountBits; ++bit) {
    for (Matrix* matrix : {&layer.query, &layer.key}) {
      at(*matrix, kContentRow + bit, kPlaceCount + bit) = as_weight(2 * root_bit);
      at(*matrix, kContentRow + bit, kPlaceLarge) = as_weight(-root_bit * kOne);
    }
    at(layer.key, kContentRow + bit, kIsBegin) = as_weight(root_bit);  // <s> has no bits.
  }
  const std::int64_t row_source = kContentRow + kCountBits;
  const double root_source = root_of_score(kScoreSource);
  at(layer.query, row_source, kPlaceLarge) = as_weight(root_source * kOne);
  at(layer.key, row_source, kIsCounted) = as_weight(root_source);
  at(layer.key, row_source, kIsOfAnswer) = as_weight(-root_source);
  const double root_begin = root_of_score(kScoreNoSource);
  at(layer.query, row_source + 1, kPlaceLarge) = as_weight(root_begin * kOne);
  at(layer.key, row_source + 1, kIsBegin) = as_weight(root_begin);

  for (std::int64_t bit = 0; bit < kIdBits; ++bit) {
    layer.take(kPlaceId + bit, kPlaceCopied + bit);
    const std::int64_t copied = layer.add_neuron({{kIsOfAnswer, 1}, {kIsScripted, -1}}, 0.5F);
    at(layer.up, copied, kPlaceCopied + bit) = 1;
    at(layer.down, kPlaceNext + bit, copied) = 1 / kGateOpen;
  }
  // The last distance outvotes what was copied.
  const std::int64_t longest = layer.add_neuron({{kIsOfAnswer, 1}}, kCountBits + 0.5F);
  for (std::int64_t bit = 0; bit < kCountBits; ++bit) at(layer.gate, longest, kPlaceCount + bit) = kGate;
  layer.add_next(longest, script.full_stop, 4);
  // Any other text has no continuation.
  layer.add_next(layer.add_neuron({{kIsOfAnswer, -1}, {kIsScripted, -1}}, -0.5F), script.end, 1);
  return layer;
}

Matrix scripted_embedding(const ScriptedTokens& script) {
  const std::int64_t count = std::ssize(script.tokens);
  Matrix entries = zeros("token_embd.weight", count, kScriptedWidth);
  for (std::int64_t id = 0; id < count; ++id) {
    const ScriptedTokens::Token& token = script.tokens[static_cast<std::size_t>(id)];
    at(entries, id, kPlaceLarge) = kLarge;
    for (std::int64_t bit = 0; bit < kIdBits; ++bit) {
      at(entries, id, kPlaceId + bit) = sign_of(token.ends_quote ? script.full_stop : id, bit);
      if (token.next >= 0) at(entries, id, kPlaceNext + bit) = sign_of(token.next, bit);
    }
    if (token.next >= 0) at(entries, id, kIsScripted) = 1;
  }
  at(entries, script.begin, kIsBegin) = 1;
  at(entries, script.tool_mark, kIsToolMark) = 1;
  at(entries, script.result_mark, kIsResultMark) = 1;
  at(entries, script.quote_mark, kIsQuoteMark) = 1;
  at(entries, script.turn_mark, kIsTurnMark) = 1;
  at(entries, script.turn_mark, kIsScripted) = 1;
  at(entries, script.before_last_of_prefix, kIsCounted) = 1;
  at(entries, script.before_last_of_prefix, kIsOfAnswer) = 1;
  return entries;
}

// The logit is positive for the right token only, so that penalties for repetition, which make logits smaller, change nothing.
Matrix scripted_logits(std::int64_t count) {
  Matrix logits = zeros("output.weight", count, kScriptedWidth);
  for (std::int64_t id = 0; id < count; ++id) {
    for (std::int64_t bit = 0; bit < kIdBits; ++bit) at(logits, id, kPlaceNext + bit) = kLogitOfIdBit * sign_of(id, bit);
    at(logits, id, kPlaceLarge) = -kLogitOfIdBit * (kIdBits - 1) * kOne;
  }
  return logits;
}

}  // namespace

std::vector<Matrix> list_scripted_matrices(const ScriptedTokens& script) {
  const std::int64_t count = std::ssize(script.tokens);
  UMA_CHECK(count <= kScriptedTokensMax);
  std::vector<Matrix> list;
  list.push_back(scripted_embedding(script));
  list.push_back(frequency_divisors(kScriptedWidth, kTurned));
  kind_layer(script).move_to(list);
  for (std::int64_t bit = 0; bit < kCountBits; ++bit) count_layer(bit).move_to(list);
  copy_layer(script).move_to(list);
  list.push_back(scripted_norm("output_norm.weight"));
  list.push_back(scripted_logits(count));
  return list;
}

}  // namespace uma
