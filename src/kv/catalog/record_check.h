// Checks that a session's record is valid for the engine, whether it comes from a client's file, the catalog, or the engine
// itself. All three use the same check, so that each accepts the records of the others. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kv/catalog/catalog.h"

namespace uma::kv {

// Limit of the tokens, messages and turns of a session, including dropped turns, so that sums and differences fit 32 bits.
inline constexpr std::int64_t kSessionCountMax = 1'000'000'000;
// Above every time to live that a client can request; fits a Duration.
inline constexpr std::int64_t kTtlSecondsMax = 315'360'000;
// Largest numeric value of the enumeration.
inline constexpr std::uint32_t kModeMax = static_cast<std::uint32_t>(SessionMode::chat);
inline constexpr std::uint32_t kOnFullMax = static_cast<std::uint32_t>(OnFull::shift);

// Describes what is impossible about the record, as the end of a sentence ("its turns do not fit …"); empty: nothing. Tokens
// may be of any vocabulary, images of any projector. O(bytes of its texts).
[[nodiscard]] std::string_view impossible_part(const SessionRecord& record);

// Counts the valid turns at the beginning of `turns`, whose last one ends at `tokens_end` and `messages_end`. A valid turn lies
// within `tokens_count` tokens and these messages, in order, has at least one token and, in a chat, an input and a reply.
[[nodiscard]] std::size_t count_sound_turns(const SessionHead& head, std::span<const Turn> turns, std::int64_t tokens_count,
                                            std::span<const ChatMessage> messages, std::int64_t tokens_end,
                                            std::int64_t messages_end);

}  // namespace uma::kv
