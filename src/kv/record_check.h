// What a session's record must be for the engine to work with it, whoever wrote it: a file that a client sent, the catalog's
// rows, the engine itself. Used by all three, so that what one of them takes the others take too. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kv/catalog.h"

namespace uma::kv {

// Of the tokens, messages and turns of a session and of all turns that it ever had: sums and differences of them fit 32 bits.
inline constexpr std::int64_t kSessionCountMax = 1'000'000'000;
// Longer than every time to live that a client can ask for; in the range of a Duration.
inline constexpr std::int64_t kTtlSecondsMax = 315'360'000;
// Of the numbers that stand for them.
inline constexpr std::uint32_t kModeMax = static_cast<std::uint32_t>(SessionMode::chat);
inline constexpr std::uint32_t kOnFullMax = static_cast<std::uint32_t>(OnFull::shift);

// What is impossible about the record, as the end of a sentence ("its turns do not fit …"); empty: nothing. The tokens may be
// of any vocabulary, and images of any projector. O(bytes of its texts).
[[nodiscard]] std::string_view impossible_part(const SessionRecord& record);

// Of turns whose last one ends at `tokens_end` and `messages_end`: how many of the first lie within `tokens_count` tokens and
// these messages, in order, each with some tokens and, in a chat, with input and a reply.
[[nodiscard]] std::size_t count_sound_turns(const SessionHead& head, std::span<const Turn> turns, std::int64_t tokens_count,
                                            std::span<const ChatMessage> messages, std::int64_t tokens_end,
                                            std::int64_t messages_end);

}  // namespace uma::kv
