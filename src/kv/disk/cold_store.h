// Storage for states outside of memory: written once, read as a whole, removed by name. All pieces of a state but the last one
// are parts, which states that begin alike share; the caller counts who uses them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "kv/disk/state_file.h"
#include "kv/snapshot.h"
#include "kv/state_owner.h"

namespace uma::kv {

struct ColdPart {
  std::string name;
  std::uint64_t bytes = 0;  // In the store.
};

// A stored state without its payload.
struct ColdHead {
  std::string name;  // A hash of owner, identity and tokens, so that equal states have equal names.
  StateOwner owner;
  std::string identity;  // Identity of the matching context. The caller checks whether such a context exists.
  std::vector<Token> tokens;
  std::uint64_t bytes = 0;  // Bytes in the store, without the parts.
  std::vector<ColdPart> parts{};
  std::int64_t last_used_s = 0;  // Unix time.
};

// One thread at a time; every call blocks on the disk. Names come from write() and list(). Errors: E_IO_001 for a failure of
// the disk, E_RUNTIME_001 for content that differs from what was written. Both name the file.
class ColdStore {
 public:
  virtual ~ColdStore() = default;
  // The parts that write() would make of a snapshot; of those without bytes only the names.
  [[nodiscard]] virtual std::vector<ColdPart> parts_of(const StateOwner& owner, const Snapshot& snapshot) const = 0;
  // Stores the piece of a snapshot that is this part of it.
  [[nodiscard]] virtual Expected<ColdPart> write_part(const StateOwner& owner, const Snapshot& snapshot,
                                                      const StatePart& part) = 0;
  // Stores a snapshot, and replaces the same state if it was stored before. Parts that are stored already are not written, so
  // their pieces may be without bytes; E_RUNTIME_001 if one of these is not stored. The state is durable on return; a failure
  // leaves at most parts of it.
  [[nodiscard]] virtual Expected<ColdHead> write(const StateOwner& owner, const Snapshot& snapshot) = 0;
  // Reads a snapshot, verifies every byte, and takes its memory, parts included, from the pool. Refuses a state of another
  // owner. The name is a hash, so the user of a snapshot compares its tokens, and check_fits() its identity.
  [[nodiscard]] virtual Expected<Snapshot> read(const std::string& name, const StateOwner& owner, BytePool& pool) = 0;
  // Removes the state, or the part; a missing one is no error.
  [[nodiscard]] virtual Expected<Unit> remove(const std::string& name) = 0;
  // Marks the state as used now.
  virtual void touch(const std::string& name) = 0;
  // The names of those parts that are not stored any more, or not in full.
  [[nodiscard]] virtual std::vector<std::string> lost(std::span<const ColdPart> parts) const = 0;
  // The bytes written since the start, also by writes that failed.
  [[nodiscard]] virtual std::uint64_t written_bytes() const = 0;
  // Lists all states with valid heads, in no order, and logs the others. Payloads are verified by read(). Removes parts that no
  // state needs.
  [[nodiscard]] virtual Expected<std::vector<ColdHead>> list() = 0;
};

}  // namespace uma::kv
