#include "make_model/scripted_weights.h"

#include <cstddef>
#include <utility>

#include "base/check.h"
#include "make_model/hand_layer.h"
#include "make_model/rotary_angles.h"

namespace uma {

namespace {

constexpr std::int64_t kCountBits = 6;
static_assert(kHandTokensMax == kScriptedTokensMax && (1 << kCountBits) - 2 == kQuotedTokensMax);
static_assert(kCountBits + 2 == kScriptedLayers && kHandWidth == kScriptedWidth);

// Places in the residual stream.
enum Place : std::int64_t {
  kPlaceId = kPlaceLarge + 1,  // The code that a quotation copies.
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

static_assert(kContentRow + kCountBits + 2 == kScriptedWidth);

// Scores before the softmax.
constexpr double kScoreResult = 120;
constexpr double kScoreTool = 80;
constexpr double kScoreNeither = 40;
constexpr double kScoreCountBit = 40;  // Added if a bit is equal, subtracted if not.
constexpr double kScoreSource = 60;
constexpr double kScoreNoSource = 250;  // All bits equal: 300. One bit not: 220.

HandLayer layer_of(std::int64_t layer) {
  return {layer, kScriptedFeedForward};
}

HandLayer kind_layer(const ScriptedTokens& script) {
  HandLayer layer = layer_of(0);
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
  layer.add_next(kPlaceNext, layer.add_neuron({{kIsTurnMark, 1}, {kSeesResult, 1}}, 1.5F), script.answer, 1);
  layer.add_next(kPlaceNext, layer.add_neuron({{kIsTurnMark, 1}, {kSeesTool, 1}}, 1.5F), script.call, 1);
  layer.add_next(kPlaceNext, layer.add_neuron({{kIsTurnMark, 1}, {kSeesResult, -1}, {kSeesTool, -1}}, 0.5F),
                 script.plain_answer, 1);
  return layer;
}

HandLayer copy_layer(const ScriptedTokens& script) {
  HandLayer layer = layer_of(1 + kCountBits);
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
  layer.add_next(kPlaceNext, longest, script.full_stop, 4);
  // Any other text has no continuation.
  layer.add_next(kPlaceNext, layer.add_neuron({{kIsOfAnswer, -1}, {kIsScripted, -1}}, -0.5F), script.end, 1);
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

}  // namespace

std::vector<Matrix> list_scripted_matrices(const ScriptedTokens& script) {
  const std::int64_t count = std::ssize(script.tokens);
  UMA_CHECK(count <= kScriptedTokensMax);
  std::vector<Matrix> list;
  list.push_back(scripted_embedding(script));
  list.push_back(frequency_divisors(kScriptedWidth, kTurned));
  kind_layer(script).move_to(list);
  const CountPlaces places{.is_begin = kIsBegin, .is_counted = kIsCounted, .count = kPlaceCount, .carried = {kIsOfAnswer}};
  for (std::int64_t bit = 0; bit < kCountBits; ++bit) count_layer(1 + bit, bit, places, kScriptedFeedForward).move_to(list);
  copy_layer(script).move_to(list);
  list.push_back(hand_norm("output_norm.weight"));
  list.push_back(hand_logits(count, kPlaceNext));
  return list;
}

}  // namespace uma
