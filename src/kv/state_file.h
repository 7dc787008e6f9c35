// The bytes of a stored state: a head that says whose and what it is, then the payload, one piece after another, each padded
// with zeros to a whole number of blocks, so that it can be read past the page cache (docs/STATE_FILE.md draws them). Pure:
// bytes in, values out. The decoders take any bytes: they never read beyond them, and allocate no more than those are long.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "core/error.h"
#include "core/ids.h"
#include "kv/state_image.h"
#include "kv/state_owner.h"

namespace uma::kv {

// 1: before libllama's deferred copies were known; its states may have the cells of another text (docs/decisions/0037).
inline constexpr std::uint32_t kStateFileVersion = 2;
inline constexpr std::size_t kStateBlockBytes = 4'096;
inline constexpr std::array<std::byte, kStateBlockBytes> kBlockOfZeros{};
inline constexpr std::size_t kPieceSpareBytes = 4'096;         // of memory behind a piece: loading a state may add words to it
inline constexpr std::size_t kStatePrefixBytes = 16;           // enough for state_head_bytes()
inline constexpr std::size_t kStateHeadBytesMax = 64ul << 20;  // 16 million tokens

// `bytes`, and what fills their last block.
[[nodiscard]] constexpr std::uint64_t in_blocks(std::uint64_t bytes) {
  return (bytes + kStateBlockBytes - 1) / kStateBlockBytes * kStateBlockBytes;
}

struct StatePieceEntry {
  std::int32_t end = 0;     // it begins where the one before it ends
  std::uint64_t bytes = 0;  // of its payload
};

// Ensures, when decoded: the pieces cover the tokens, and head and padded pieces together are `file_bytes` without overflow.
struct StateHead {
  StateOwner owner;
  std::string identity;
  std::vector<Token> tokens;
  std::vector<StatePieceEntry> pieces;
  Checksum checksum;  // of the whole image
  std::uint64_t file_bytes = 0;
};

// 32 hexadecimal digits, a hash over all that tells one state from another.
[[nodiscard]] std::string state_name(const StateOwner& owner, std::string_view identity, std::span<const Token> tokens);

// What comes before the payload, whole blocks. REQUIRES: the pieces cover the tokens.
[[nodiscard]] Bytes encode_state_head(const StateOwner& owner, const StateImage& image, const Checksum& checksum);

// How long the head is that begins with these kStatePrefixBytes. Errors, all E_RUNTIME_001: not a state file, another version
// of the format, an impossible length.
[[nodiscard]] Expected<std::size_t> state_head_bytes(std::span<const std::byte> prefix);

// Whether these kStatePrefixBytes begin a state of an older version of the format, which is not used any more.
[[nodiscard]] bool is_older_state(std::span<const std::byte> prefix);

// `bytes` is the whole head and nothing else. Accepts exactly what encode_state_head makes. Errors, all E_RUNTIME_001: as
// state_head_bytes(), and damaged.
[[nodiscard]] Expected<StateHead> decode_state_head(std::span<const std::byte> bytes);

}  // namespace uma::kv
