// The conversation of a session's file, which its KV may follow (portable_state.h): what was said, its tokens, and which
// vocabulary they are of (docs/SESSION_FILE.md draws the bytes). Pure: bytes in, values out. The decoder takes any bytes: it
// never reads beyond them, and allocates no more than a few times what they are long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "core/error.h"
#include "kv/catalog.h"
#include "kv/checksum.h"

namespace uma::kv {

inline constexpr std::uint32_t kSessionFileVersion = 1;
inline constexpr std::size_t kSessionPrefixBytes = 16;  // enough for conversation_bytes()

struct SessionFile {
  SessionRecord record;  // without id, tenant, time to live and rights: these belong to a place, not to what was said
  Checksum vocabulary;   // what the tokens mean
  std::string text;      // text mode: chain and pending input as text, for a model with other tokens
};

// REQUIRES: it takes less than 4 GiB.
[[nodiscard]] Bytes encode_session_file(const SessionFile& file);

// How long the conversation is with which these bytes begin, by its own word; as decode_session_file() makes sure of, which
// refuses what is none.
[[nodiscard]] std::size_t conversation_bytes(std::span<const std::byte, kSessionPrefixBytes> prefix);

// Accepts exactly what encode_session_file makes of a record that the engine could have made (record_check.h). Whether the
// tokens are of a vocabulary is the caller's question. Errors, all E_PROTO_003: not a session file, another version of the
// format, damaged, impossible content.
[[nodiscard]] Expected<SessionFile> decode_session_file(std::span<const std::byte> bytes);

}  // namespace uma::kv
