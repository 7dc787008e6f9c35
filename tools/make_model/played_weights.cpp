#include "make_model/played_weights.h"

#include <bit>
#include <cstddef>

#include "base/check.h"
#include "make_model/rotary_angles.h"

namespace uma {

namespace {

// Places in the residual stream.
enum PlayedPlace : std::int64_t {
  kPlayedNext = kPlaceLarge + 1,
  kPlayedEcho = kPlayedNext + kIdBits,
  kPlayedBegin = kPlayedEcho + kIdBits,
  kPlayedCounted,
  kPlayedKind,  // A flag for each.
  kPlayedCount = kPlayedKind + kPlayedKindsMax,
  kPlayedEnd = kPlayedCount + kPlayedLayers,
};
static_assert(kPlayedEnd <= kHandWidth);

CountPlaces played_places() {
  CountPlaces places{.is_begin = kPlayedBegin, .is_counted = kPlayedCounted, .count = kPlayedCount, .carried = {}};
  for (std::int64_t kind = 0; kind < kPlayedKindsMax; ++kind) places.carried.push_back(kPlayedKind + kind);
  for (std::int64_t bit = 0; bit < kIdBits; ++bit) places.carried.push_back(kPlayedEcho + bit);
  return places;
}

// A neuron that is open at this distance from a cue of this kind.
std::int64_t add_neuron_at(HandLayer& layer, std::int64_t kind, std::int64_t distance) {
  const auto bits_set = static_cast<float>(std::popcount(static_cast<std::uint64_t>(distance)));
  const std::int64_t neuron = layer.add_neuron({{kPlayedKind + kind, 1}}, bits_set + 0.5F);
  for (std::int64_t bit = 0; bit < kPlayedLayers; ++bit) {
    at(layer.gate, neuron, kPlayedCount + bit) = (distance >> bit & 1) != 0 ? kGate : -kGate;
  }
  return neuron;
}

void add_reply(HandLayer& layer, std::int64_t kind, const PlayedTokens::Reply& reply, std::int64_t end) {
  std::int64_t distance = reply.after;
  for (const std::optional<std::int64_t>& token : reply.tokens) {
    if (token) {
      layer.add_next(kPlayedNext, add_neuron_at(layer, kind, distance), *token, 1);
    } else {
      for (std::int64_t bit = 0; bit < kIdBits; ++bit) {
        const std::int64_t neuron = add_neuron_at(layer, kind, distance);
        at(layer.up, neuron, kPlayedEcho + bit) = 1;
        at(layer.down, kPlayedNext + bit, neuron) = 1 / kGateOpen;
      }
    }
    ++distance;
  }
  layer.add_next(kPlayedNext, add_neuron_at(layer, kind, distance), end, 1);
  UMA_CHECK(distance <= kPlayedDistanceMax);
}

Matrix played_embedding(const PlayedTokens& played) {
  Matrix entries = zeros("token_embd.weight", played.tokens_count, kHandWidth);
  for (std::int64_t id = 0; id < played.tokens_count; ++id) at(entries, id, kPlaceLarge) = kLarge;
  at(entries, played.begin, kPlayedBegin) = 1;
  for (const PlayedTokens::Cue& cue : played.cues) {
    at(entries, cue.token, kPlayedCounted) = 1;
    at(entries, cue.token, kPlayedKind + cue.kind) = 1;
    for (std::int64_t bit = 0; bit < kIdBits; ++bit) at(entries, cue.token, kPlayedEcho + bit) = sign_of(cue.echo, bit);
  }
  return entries;
}

}  // namespace

std::int64_t played_feed_forward(const PlayedTokens& played) {
  std::int64_t count = 1;
  for (const PlayedTokens::Reply& reply : played.replies) {
    for (const auto& token : reply.tokens) count += token ? 1 : kIdBits;
    ++count;  // Its end.
  }
  return count;
}

std::vector<Matrix> list_played_matrices(const PlayedTokens& played) {
  UMA_CHECK(played.tokens_count <= kHandTokensMax && std::ssize(played.replies) <= kPlayedKindsMax);
  const std::int64_t feed_forward = played_feed_forward(played);
  std::vector<Matrix> list;
  list.push_back(played_embedding(played));
  list.push_back(frequency_divisors(kHandWidth, kTurned));
  const CountPlaces places = played_places();
  for (std::int64_t bit = 0; bit < kPlayedLayers; ++bit) {
    HandLayer layer = count_layer(bit, bit, places, feed_forward);
    if (bit + 1 == kPlayedLayers) {
      std::int64_t kind = 0;
      for (const PlayedTokens::Reply& reply : played.replies) add_reply(layer, kind++, reply, played.end);
      // Text without a cue has no continuation.
      layer.add_next(kPlayedNext, layer.add_neuron({{kPlayedCounted, -1}}, -0.5F), played.end, 1);
    }
    layer.move_to(list);
  }
  list.push_back(hand_norm("output_norm.weight"));
  list.push_back(hand_logits(played.tokens_count, kPlayedNext));
  return list;
}

}  // namespace uma
