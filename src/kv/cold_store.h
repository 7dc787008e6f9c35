// Storage for states outside of memory: written once, read as a whole, removed by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "kv/snapshot.h"
#include "kv/state_owner.h"

namespace uma::kv {

// A stored state without its payload.
struct ColdHead {
  std::string name;  // A hash of owner, identity and tokens, so that equal states have equal names.
  StateOwner owner;
  std::string identity;  // Identity of the matching context. The caller checks whether such a context exists.
  std::vector<Token> tokens;
  std::uint64_t bytes = 0;       // Bytes in the store.
  std::int64_t last_used_s = 0;  // Unix time.
};

// One thread at a time; every call blocks on the disk. Names come from write() and list(). Errors: E_IO_001 for a failure of
// the disk, E_RUNTIME_001 for content that differs from what was written. Both name the file.
class ColdStore {
 public:
  virtual ~ColdStore() = default;
  // Stores a snapshot, and replaces the same state if it was stored before. The state is durable on return; a failure stores
  // nothing.
  [[nodiscard]] virtual Expected<ColdHead> write(const StateOwner& owner, const Snapshot& snapshot) = 0;
  // Reads a snapshot, verifies every byte, and takes ColdHead::bytes of memory from the pool. Refuses a state of another owner.
  // The name is a hash, so the user of a snapshot compares its tokens, and check_fits() its identity.
  [[nodiscard]] virtual Expected<Snapshot> read(const std::string& name, const StateOwner& owner, BytePool& pool) = 0;
  // Removes the state; a missing state is no error.
  [[nodiscard]] virtual Expected<Unit> remove(const std::string& name) = 0;
  // Marks the state as used now.
  virtual void touch(const std::string& name) = 0;
  // Lists all states with valid heads, in no order, and logs the others. Payloads are verified by read().
  [[nodiscard]] virtual Expected<std::vector<ColdHead>> list() = 0;
};

}  // namespace uma::kv
