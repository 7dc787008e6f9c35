// Reads and writes the file of a stored state (docs/STATE_FILE.md), and its bytes from elsewhere. Every byte that is read is
// verified. Calls block on the file system. Errors: E_IO_001 for a failure of the file system, E_RUNTIME_001 for content that
// differs from what was written. Both name the file, or what it is read from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/system/unique_fd.h"
#include "core/error.h"
#include "kv/byte_pool.h"
#include "kv/disk/state_file.h"
#include "kv/snapshot.h"

namespace uma::kv {

[[nodiscard]] std::unexpected<Error> io_failure(const std::string& path, int error_number);
[[nodiscard]] std::unexpected<Error> state_refused(const std::string& path, std::string_view reason);

// The file of a state whose head is valid, and belongs to its name.
struct OpenState {
  UniqueFd file;
  StateHead head;
  std::uint64_t head_bytes = 0;
  std::int64_t last_used_s = 0;
};
// An empty `name` is not compared.
[[nodiscard]] Expected<OpenState> open_state_file(const std::string& path, std::string_view name, bool wants_payload);

// Asked between parts of some megabytes: whether to give up. Null: never.
using IsLate = std::function<bool()>;

// Reads the payload of an open file, with memory of the pool.
[[nodiscard]] Expected<Snapshot> read_state_file(OpenState& state, const std::string& path, BytePool& pool,
                                                 const IsLate& is_late = nullptr);

// Fills `into` with the next bytes of a payload, and gives them to take() in order, in parts or as a whole.
using FillPayload =
    std::function<Expected<Unit>(std::span<std::byte> into, const std::function<void(std::span<const std::byte>)>& take)>;
// Reads a payload from anywhere, with memory of the pool. `from` names it in errors.
[[nodiscard]] Expected<Snapshot> read_state_payload(StateHead head, const std::string& from, BytePool& pool,
                                                    const FillPayload& fill);

struct WrittenState {
  std::uint64_t bytes = 0;  // Size of the file.
  int problem = 0;          // An errno; 0: none.
};
// Writes head and payload. The caller syncs the file.
[[nodiscard]] WrittenState write_state_file(int file, std::span<const std::byte> head, const SnapshotView& snapshot,
                                            const IsLate& is_late = nullptr);

}  // namespace uma::kv
