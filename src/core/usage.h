// The receipt of a reply: its cost, and the reused tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/agent.h"
#include "core/cache_miss.h"

namespace uma {

enum class Tier : std::uint8_t { none, hot, warm, cold, shared };

constexpr std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::hot:
      return "hot";
    case Tier::warm:
      return "warm";
    case Tier::cold:
      return "cold";
    case Tier::shared:
      return "shared";
    case Tier::none:
      break;
  }
  return "none";
}

// The values of Usage::reuse_reason (docs/protocol/socket.md).
inline constexpr std::array<std::string_view, 13> kReuseReasons = {
    "",           "hot",    "warm",     "cold",       "shared",   "shifted", "rewritten",
    "checkpoint", "prefix", "one_shot", "not_cached", "diverged", "refused"};

// The value that is equal to `text`; empty: there is none.
constexpr std::string_view reuse_reason_of(std::string_view text) {
  const auto* const found = std::ranges::find(kReuseReasons, text);
  return found == kReuseReasons.end() ? "" : *found;
}

struct Usage {
  std::int32_t prompt_tokens = 0;  // = reused_tokens + recomputed_tokens: all tokens before the first new one.
  std::int32_t reused_tokens = 0;
  std::int32_t recomputed_tokens = 0;
  std::int32_t completion_tokens = 0;  // With the token that ended the reply, if the model has chosen one.
  std::int32_t reasoning_tokens = 0;   // Reasoning tokens among the completion tokens, if reasoning is separated.
  std::int32_t dropped_turns = 0;      // Oldest turns dropped because the context was full.
  std::int32_t dropped_tokens = 0;
  std::int32_t unseen_images = 0;      // Images in results of tools that the model does not see; not kept with the turn.
  Tier tier = Tier::none;              // Tier of the largest reused part.
  std::string_view reuse_reason = "";  // One of kReuseReasons; static storage.
  double restore_ms = 0;
  double queue_ms = 0;      // From receipt until the first token entered a batch.
  double ttft_ms = 0;       // From receipt until the first new token; 0 without one.
  double tokens_per_s = 0;  // New tokens after the first, over the time since the first; 0 for fewer than two.
  std::uint64_t seed = 0;
  // Keywords of JSON Schemas that the reply's grammar does not enforce: the field with the schema, "#" and the place in it, as
  // "tools[0].function.parameters#/properties/tags/uniqueItems". Not stored with the turn.
  std::vector<std::string> schema_left_out{};
  Agent agent{};           // The agent that has asked. Not stored with the turn.
  CacheMiss cache_miss{};  // Not stored with the turn.
  bool operator==(const Usage&) const = default;
};

}  // namespace uma
