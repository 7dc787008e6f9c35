#include "make_model/hand_layer.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <format>

#include "make_model/rotary_angles.h"

namespace uma {

namespace {

// Scores before the softmax.
constexpr double kScoreDistance = 120;  // At every other distance up to 131,072 it is 63 at most.
constexpr double kScoreNoDistance = 92;

}  // namespace

float sign_of(std::int64_t id, std::int64_t bit) {
  return (id >> bit & 1) != 0 ? 1.0F : -1.0F;
}

double root_of_score(double score) {
  return std::sqrt(score * std::sqrt(static_cast<double>(kHandWidth)));
}

float as_weight(double value) {
  return static_cast<float>(value);
}

Matrix hand_norm(std::string name) {
  return vector_of(std::move(name), kHandWidth, kLarge / std::sqrt(static_cast<float>(kHandWidth)));
}

Matrix hand_logits(std::int64_t tokens_count, std::int64_t next) {
  Matrix logits = zeros("output.weight", tokens_count, kHandWidth);
  for (std::int64_t id = 0; id < tokens_count; ++id) {
    for (std::int64_t bit = 0; bit < kIdBits; ++bit) at(logits, id, next + bit) = kLogitOfIdBit * sign_of(id, bit);
    at(logits, id, kPlaceLarge) = -kLogitOfIdBit * (kIdBits - 1) * kOne;
  }
  return logits;
}

HandLayer::HandLayer(std::int64_t layer, std::int64_t feed_forward)
    : block(std::format("blk.{}.", layer)),
      query(zeros(block + "attn_q.weight", kHandWidth, kHandWidth)),
      key(zeros(block + "attn_k.weight", kHandWidth, kHandWidth)),
      value(zeros(block + "attn_v.weight", kHandWidth, kHandWidth)),
      output(zeros(block + "attn_output.weight", kHandWidth, kHandWidth)),
      gate(zeros(block + "ffn_gate.weight", feed_forward, kHandWidth)),
      up(zeros(block + "ffn_up.weight", feed_forward, kHandWidth)),
      down(zeros(block + "ffn_down.weight", kHandWidth, feed_forward)) {}

void HandLayer::move_to(std::vector<Matrix>& list) {
  list.push_back(hand_norm(block + "attn_norm.weight"));
  for (Matrix* matrix : {&query, &key, &value, &output}) list.push_back(std::move(*matrix));
  list.push_back(hand_norm(block + "ffn_norm.weight"));
  for (Matrix* matrix : {&gate, &up, &down}) list.push_back(std::move(*matrix));
}

void HandLayer::take(std::int64_t from, std::int64_t to) {
  at(value, rows_used, from) = 1;
  at(output, to, rows_used) = 1;
  ++rows_used;
}

std::int64_t HandLayer::add_neuron(std::initializer_list<std::pair<std::int64_t, float>> flags, float threshold) {
  for (const auto& [place, factor] : flags) at(gate, neurons_used, place) = kGate * factor;
  at(gate, neurons_used, kPlaceLarge) = -kGate * threshold * kOne;
  return neurons_used++;
}

void HandLayer::add_next(std::int64_t next, std::int64_t neuron, std::int64_t token, float factor) {
  at(up, neuron, kPlaceLarge) = kOne;
  for (std::int64_t bit = 0; bit < kIdBits; ++bit) {
    at(down, next + bit, neuron) = factor * sign_of(token, bit) / kGateOpen;
  }
}

HandLayer count_layer(std::int64_t layer, std::int64_t bit, const CountPlaces& places, std::int64_t feed_forward) {
  HandLayer made(layer, feed_forward);
  const std::vector<double> angles = angles_of_pairs(kTurned);
  const double root = root_of_score(kScoreDistance / static_cast<double>(kTurned));
  const auto distance = static_cast<double>(std::int64_t{1} << bit);
  for (std::size_t i = 0; i < angles.size(); ++i) {
    const auto row = 2 * static_cast<std::int64_t>(i);
    const std::array<double, 2> turned{root * std::cos(distance * angles[i]), -root * std::sin(distance * angles[i])};
    for (const std::int64_t half : {0, 1}) {
      const double weight = turned[static_cast<std::size_t>(half)];
      at(made.query, row + half, kPlaceLarge) = as_weight(weight * kOne);
      at(made.query, row + half, places.is_counted) = as_weight(-weight);
    }
    at(made.key, row, kPlaceLarge) = as_weight(root * kOne);
    at(made.key, row, places.is_begin) = as_weight(-root);
  }
  const double root_begin = root_of_score(kScoreNoDistance);
  at(made.query, kContentRow, kPlaceLarge) = as_weight(root_begin * kOne);
  at(made.key, kContentRow, places.is_begin) = as_weight(root_begin);

  at(made.output, places.count + bit, made.rows_used) = 1;
  made.take(places.is_counted, places.is_counted);
  for (const std::int64_t place : places.carried) made.take(place, place);
  for (std::int64_t lower = 0; lower < bit; ++lower) made.take(places.count + lower, places.count + lower);
  return made;
}

}  // namespace uma
