// The conversation in a session's file, which KV may follow (portable_state.h): messages, tokens and the identity of their
// vocabulary (docs/SESSION_FILE.md draws the bytes). Pure: bytes in, values out. The decoder accepts any bytes: it never reads
// beyond them, and allocates at most a few times their size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "core/error.h"
#include "kv/catalog/catalog.h"
#include "kv/checksum.h"

namespace uma::kv {

inline constexpr std::uint32_t kSessionFileVersion = 2;  // Version 1 has no metadata.
inline constexpr std::size_t kSessionPrefixBytes = 16;   // Enough for conversation_bytes().

struct SessionFile {
  SessionRecord record;  // Without id, tenant, time to live, rights and parent, which belong to one daemon only.
  Checksum vocabulary;   // Identifies the vocabulary of the tokens.
  std::string text;      // In text mode: chain and pending input as text, for a model with another vocabulary.
};

// Requires: the result is smaller than 4 GiB.
[[nodiscard]] Bytes encode_session_file(const SessionFile& file);

// Length of the conversation that begins with these bytes, as stated in the prefix. decode_session_file() verifies it, and
// refuses other files.
[[nodiscard]] std::size_t conversation_bytes(std::span<const std::byte, kSessionPrefixBytes> prefix);

// Accepts exactly the output of encode_session_file, of this version or an earlier one, for records that the engine could have
// made (record_check.h). The caller checks whether the tokens are in the vocabulary. Errors, all E_PROTO_003: not a session
// file, another version of the format, damaged, impossible content.
[[nodiscard]] Expected<SessionFile> decode_session_file(std::span<const std::byte> bytes);

}  // namespace uma::kv
