// Why tokens of a prompt were computed again: how it differs from an earlier prompt of its tenant.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/prompt_outline.h"

namespace uma {

enum class CacheMissKind : std::uint8_t {
  none,
  // The first difference from the earlier prompt:
  model,     // Another model, or other adapters.
  settings,  // Options of the chat template, such as the effort of reasoning.
  system,
  tools,
  text,
  reasoning,
  call,
  result,
  image,
  template_text,  // The template's own words, such as the date.
  tokens,         // The client has sent a reply back whose text has other tokens.
  // There is no such difference:
  not_held,   // KV of the same tokens is not held any more, or cannot be used.
  not_found,  // The reply that the request names is not known.
};

inline constexpr std::array<std::pair<CacheMissKind, std::string_view>, 13> kCacheMissKinds = {{
    {CacheMissKind::model, "model"},
    {CacheMissKind::settings, "settings"},
    {CacheMissKind::system, "system"},
    {CacheMissKind::tools, "tools"},
    {CacheMissKind::text, "text"},
    {CacheMissKind::reasoning, "reasoning"},
    {CacheMissKind::call, "call"},
    {CacheMissKind::result, "result"},
    {CacheMissKind::image, "image"},
    {CacheMissKind::template_text, "template"},
    {CacheMissKind::tokens, "tokens"},
    {CacheMissKind::not_held, "not_held"},
    {CacheMissKind::not_found, "not_found"},
}};

constexpr std::string_view cache_miss_name(CacheMissKind kind) {
  const auto* const found = std::ranges::find(kCacheMissKinds, kind, &std::pair<CacheMissKind, std::string_view>::first);
  return found == kCacheMissKinds.end() ? "none" : found->second;
}

constexpr CacheMissKind cache_miss_of(PromptPart part) {
  switch (part) {
    case PromptPart::system:
      return CacheMissKind::system;
    case PromptPart::tools:
      return CacheMissKind::tools;
    case PromptPart::text:
      return CacheMissKind::text;
    case PromptPart::reasoning:
      return CacheMissKind::reasoning;
    case PromptPart::call:
      return CacheMissKind::call;
    case PromptPart::result:
      return CacheMissKind::result;
    case PromptPart::image:
      return CacheMissKind::image;
    case PromptPart::template_text:
      break;
  }
  return CacheMissKind::template_text;
}

struct CacheMiss {
  CacheMissKind kind = CacheMissKind::none;
  std::string_view cause = "";    // Cause of not_held, if it is known: window, unloaded or refused; static storage.
  std::string compared_with{};    // The id of the earlier reply (Comparison::id); empty: it has none.
  std::int32_t token = 0;         // The first token that differs or is not held, from 0.
  std::int32_t message = -1;      // See PromptPlace.
  std::string_view role = "";     // See PromptPlace.
  std::int32_t known_tokens = 0;  // Tokens of the earlier prompt and its reply.
  std::int32_t lost_tokens = 0;   // Tokens from there on that had been computed before, and are computed again.
  std::int32_t repeats = 0;       // Prompts so far that have differed at this place near the beginning; 0: not counted.
  bool operator==(const CacheMiss&) const = default;
};

// Differences that make a place a clock or a counter.
inline constexpr std::int32_t kClockRepeats = 3;
// The warning to a client about such a place; empty: the miss is none.
[[nodiscard]] std::string clock_warning(const CacheMiss& miss);

// Names the reply for later requests, and the earlier reply whose prompt the request's is compared with.
struct Comparison {
  std::string id{};        // Id of this reply, without the API's prefix; empty: it cannot be named.
  std::string with{};      // The id of the earlier reply; empty: the most similar prompt counts.
  bool is_wanted = false;  // The client has asked for the comparison with `with`, or for none.
};

}  // namespace uma
