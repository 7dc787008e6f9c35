// Storage for states that several daemons use: a daemon finds there what another one has stored for the same session.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "kv/disk/cold_store.h"
#include "kv/snapshot.h"
#include "kv/state_owner.h"

namespace uma::kv {

// A session has one state for each identity, and no more than so many.
inline constexpr std::size_t kSharedIdentitiesMax = 4;

struct SharedBounds {
  std::uint64_t bytes_max = std::uint64_t{64} << 30;       // Limit of all states together.
  std::uint64_t state_bytes_max = std::uint64_t{4} << 30;  // Limit of one state.
  std::int64_t ttl_s = 24 * 3600;                          // A state that was not used for so long is removed.
};

// One thread at a time; every call blocks. What is stored may vanish at any time, because other daemons remove and replace it.
// Errors: E_IO_001 if the store cannot be used now, or the call took too long; E_RUNTIME_001 for content that differs from what
// was written, which is removed. Both say where.
class SharedStore {
 public:
  virtual ~SharedStore() = default;
  // Calls give up as soon as `is_late` returns true. They ask it between parts of a few megabytes, and before each of several
  // steps. The file system may block within a part for as long as it likes.
  void give_up_when(std::function<bool()> is_late) { is_late_ = std::move(is_late); }
  // Stores a state in place of the session's former one of the same identity. Requires: the owner has a session. A failure
  // leaves the former one, or none. Errors: also E_LIMIT_005 for a state that is larger than allowed.
  [[nodiscard]] virtual Expected<ColdHead> write(const StateOwner& owner, const Snapshot& snapshot) = 0;
  // The states of a session that have one of these identities. States of others are not read.
  [[nodiscard]] virtual Expected<std::vector<ColdHead>> find(const TenantId& tenant, const SessionId& session,
                                                             std::span<const std::string> identities) = 0;
  // Reads a state that find() or write() has named, verifies every byte, and takes `bytes` of memory from the pool. Refuses a
  // state of another owner or another size. The user of a snapshot compares its tokens and identity. Nullopt: it is gone.
  [[nodiscard]] virtual Expected<std::optional<Snapshot>> read(const std::string& name, const StateOwner& owner,
                                                               std::uint64_t bytes, BytePool& pool) = 0;
  // Removes all states of a session. One without states is no error.
  [[nodiscard]] virtual Expected<Unit> remove(const TenantId& tenant, const SessionId& session) = 0;
  // Removes what is older than its time to live, and the longest unused beyond the bound. Any daemon may do so at any time.
  // Returns the number of states that were removed.
  [[nodiscard]] virtual Expected<std::size_t> clean() = 0;
  // A description of the store for logs, without secrets.
  [[nodiscard]] virtual std::string text() const = 0;

 protected:
  [[nodiscard]] bool is_late() const { return is_late_ && is_late_(); }

 private:
  std::function<bool()> is_late_;
};

// The names of a session and of an identity in a shared store: 32 hexadecimal digits. That of an identity also depends on the
// format of the state's file, so that daemons of other versions do not see each other's states.
[[nodiscard]] std::string shared_session_name(const TenantId& tenant, const SessionId& session);
[[nodiscard]] std::string shared_identity_name(std::string_view identity);

}  // namespace uma::kv
