// The KV of a session in its file, behind the conversation: a stored state as it lies on disk (docs/STATE_FILE.md), but
// nobody's, for whose it was says nothing elsewhere. Pure; the reader takes any bytes.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "core/error.h"
#include "core/portable_file.h"
#include "kv/byte_pool.h"
#include "kv/state_image.h"

namespace uma::kv {

// What comes before the payload. O(bytes of the image), for its checksum.
[[nodiscard]] Bytes portable_head(const StateImage& image);

// The state in the file, which lies in `head` and `image`: both outlive it.
[[nodiscard]] std::vector<std::span<const std::byte>> state_parts(std::span<const std::byte> head, const StateImage& image);

using MakeRoom = std::function<std::optional<ByteBudget::Share>(std::uint64_t bytes)>;

// Reads a state that is all that is left of a file, into memory of the pool: no byte of it comes out whose checksum is not
// right, or that is not of a context with this identity, of the beginning of `chain`, and of as many pieces as that takes.
// What the numbers in it are is not looked at. Errors: E_PROTO_003 these bytes are no such state; E_RUNTIME_001 it is one, and
// of no use here; E_LIMIT_003 `make_room` gave none, which is asked when the head is right.
[[nodiscard]] Expected<StateImage> read_state(PortableReader& file, const std::string& identity, bool knows_pieces,
                                              std::span<const Token> chain, BytePool& pool, const MakeRoom& make_room);

}  // namespace uma::kv
