// Images of sessions as files, named by the SHA-256 of what is in them, for as long as a session may have to be computed again.
// Any thread; all but the facts block on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/tenant_budget.h"

namespace uma::engine {

class KeptImages {
 public:
  // While one lives its file stays, whatever becomes of the sessions that have it.
  using Use = std::shared_ptr<const void>;

  // The files that are in the folder, which need not be there yet, are kept for no tenant.
  KeptImages(std::string folder, std::uint64_t bytes_max);

  // Keeps the file of this id for the tenant, if it is not kept; on the disk for certain only after sync(). Errors: E_IO_001;
  // E_LIMIT_003 where it would be too much, for this tenant or all.
  [[nodiscard]] Expected<Use> keep(const TenantId& tenant, const std::string& id, std::span<const std::byte> file);
  [[nodiscard]] Expected<Unit> sync();
  // Errors: E_IO_001 for one that is gone or damaged.
  [[nodiscard]] Expected<Bytes> read(const std::string& id) const;
  // Its file's length; nothing where it is not kept.
  [[nodiscard]] std::optional<std::uint64_t> size_of(const std::string& id) const;
  // Removes those of them that nobody uses, and that no session has again by now: `is_used` is asked with a lock held.
  void remove(std::span<const std::string> ids, const std::function<bool(const std::string& id)>& is_used = nullptr);
  // Removes all but these.
  void remove_others(const std::unordered_set<std::string>& wanted);
  [[nodiscard]] std::uint64_t bytes() const { return budget_->bytes_used(); }

 private:
  struct Entry {
    std::uint64_t size = 0;
    std::shared_ptr<TenantBudget::Share> share;  // of who kept it first
    std::weak_ptr<const void> use;
  };

  [[nodiscard]] std::string path_of(const std::string& id) const { return folder_ + "/" + id; }
  [[nodiscard]] static Use use_of(Entry& entry);
  void remove_locked(const std::string& id) REQUIRES_LOCK(mutex_);

  const std::string folder_;
  const std::shared_ptr<TenantBudget> budget_;  // shared with the entries
  mutable Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace uma::engine
