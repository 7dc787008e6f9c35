// The KV in a session's file, after the conversation: a stored state in the format of docs/STATE_FILE.md, but without an owner,
// who means nothing in another place. Pure; the reader accepts any bytes.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "core/error.h"
#include "core/file/portable_file.h"
#include "kv/byte_pool.h"
#include "kv/snapshot.h"

namespace uma::kv {

// Returns the bytes before the payload. O(bytes of the snapshot), for its checksum.
[[nodiscard]] Bytes portable_head(const Snapshot& snapshot);

// The parts of the state in the file. They refer to `head` and `snapshot`, which must outlive them.
[[nodiscard]] std::vector<std::span<const std::byte>> state_parts(std::span<const std::byte> head, const Snapshot& snapshot);

using MakeRoom = std::function<std::optional<ByteBudget::Share>(std::uint64_t bytes)>;

// Reads a state that is the rest of a file, into memory of the pool. It returns only bytes with the right checksum, from a
// context with this identity, for a prefix of `chain`, and with the right number of pieces. The numbers in it are not checked.
// Errors: E_PROTO_003 for bytes that are not such a state; E_RUNTIME_001 for a state that does not fit here; E_LIMIT_003 if
// `make_room`, called after the head was checked, returned no memory.
[[nodiscard]] Expected<Snapshot> read_state(PortableReader& file, const std::string& identity, bool knows_pieces,
                                            std::span<const Token> chain, BytePool& pool, const MakeRoom& make_room);

}  // namespace uma::kv
