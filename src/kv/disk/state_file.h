// The bytes of a stored state: a head with owner and identity, then the pieces of the payload. Each part is padded with zeros
// to whole blocks, so that it can be read past the page cache (docs/STATE_FILE.md draws them). Pure: bytes in, values out. The
// decoders accept any bytes: they never read beyond them, and allocate no more than their size.
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
#include "kv/snapshot.h"
#include "kv/state_owner.h"

namespace uma::kv {

// Version 1 was written before libllama's deferred copies were known; its states may have the cells of another text
// (docs/decisions/0037).
inline constexpr std::uint32_t kStateFileVersion = 2;
// The version of a state with parts, which an umad that does not know them must not use.
inline constexpr std::uint32_t kPartsFileVersion = 3;
inline constexpr std::size_t kStateBlockBytes = 4'096;
inline constexpr std::array<std::byte, kStateBlockBytes> kBlockOfZeros{};
// Spare memory after a piece, because loading a state may add words to it.
inline constexpr std::size_t kPieceSpareBytes = 4'096;
inline constexpr std::size_t kStatePrefixBytes = 16;           // Enough for state_head_bytes().
inline constexpr std::size_t kStateHeadBytesMax = 64ul << 20;  // Enough for 16 million tokens.

// `bytes` rounded up to whole blocks.
[[nodiscard]] constexpr std::uint64_t in_blocks(std::uint64_t bytes) {
  return (bytes + kStateBlockBytes - 1) / kStateBlockBytes * kStateBlockBytes;
}

struct StatePieceEntry {
  std::int32_t end = 0;     // A piece begins where the previous one ends.
  std::uint64_t bytes = 0;  // Bytes of its payload.
};

// Ensures, when decoded: the pieces cover the tokens, and head and padded pieces together have `file_bytes` without overflow. A
// piece before the last one that is without bytes is a part.
struct StateHead {
  StateOwner owner;
  std::string identity;
  std::vector<Token> tokens;
  std::vector<StatePieceEntry> pieces;
  Checksum checksum;  // Checksum of the whole snapshot.
  std::uint64_t file_bytes = 0;

  [[nodiscard]] bool has_parts() const;
};

// 32 hexadecimal digits: a hash over everything that distinguishes states.
[[nodiscard]] std::string state_name(const StateOwner& owner, std::string_view identity, std::span<const Token> tokens);

// The bytes before the payload, in whole blocks. Requires: the pieces cover the tokens.
[[nodiscard]] Bytes encode_state_head(const StateOwner& owner, const SnapshotView& snapshot, const Checksum& checksum);

// Length of encode_state_head().
[[nodiscard]] std::size_t state_head_bytes(const StateOwner& owner, const SnapshotView& snapshot);

// A piece that is a file of its own, so that states which begin alike share it. The last piece of a state never is one.
struct StatePart {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::string name;  // That of the state which ends with the piece, and where the piece begins.
};
// The owner of the parts of the owner's states: it names all who may share them.
[[nodiscard]] StateOwner part_owner(const StateOwner& owner);
// The parts of a state whose pieces end at `ends`. O(tokens).
[[nodiscard]] std::vector<StatePart> parts_of(const StateOwner& owner, std::string_view identity, std::span<const Token> tokens,
                                              std::span<const std::int32_t> ends);

// Length of the head that begins with these kStatePrefixBytes. Errors, all E_RUNTIME_001: not a state file, another version of
// the format, an impossible length.
[[nodiscard]] Expected<std::size_t> state_head_bytes(std::span<const std::byte> prefix);

// Whether these kStatePrefixBytes begin a state of an older version of the format, which is not used any more.
[[nodiscard]] bool is_older_state(std::span<const std::byte> prefix);

// Decodes the whole head, without further bytes. Accepts exactly the output of encode_state_head. Errors, all E_RUNTIME_001:
// those of state_head_bytes(), and damage.
[[nodiscard]] Expected<StateHead> decode_state_head(std::span<const std::byte> bytes);

}  // namespace uma::kv
