// Images of sessions as files, named by their SHA-256, as long as a session may have to be computed again. Any thread; all
// functions except simple queries block on the disk.
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

namespace uma::image {

class KeptImages {
 public:
  // While a Use exists, its file is not removed, even if no session refers to it any more.
  using Use = std::shared_ptr<const void>;

  // Files already in the folder are counted for no tenant. The folder may be missing.
  KeptImages(std::string folder, std::uint64_t bytes_max);

  // Keeps the file of this id for the tenant, unless it is already kept. Only sync() guarantees that it is on the disk. Errors:
  // E_IO_001; E_LIMIT_003 if the budget of the tenant or of all tenants is exhausted.
  [[nodiscard]] Expected<Use> keep(const TenantId& tenant, const std::string& id, std::span<const std::byte> file);
  [[nodiscard]] Expected<Unit> sync();
  // Errors: E_IO_001 for a missing or damaged file.
  [[nodiscard]] Expected<Bytes> read(const std::string& id) const;
  // The size of the file; nothing if it is not kept.
  [[nodiscard]] std::optional<std::uint64_t> size_of(const std::string& id) const;
  // Removes the files without a Use for which `is_used` is false. `is_used` is called with a lock held.
  void remove(std::span<const std::string> ids, const std::function<bool(const std::string& id)>& is_used = nullptr);
  // Removes all other files.
  void remove_others(const std::unordered_set<std::string>& wanted);
  [[nodiscard]] std::uint64_t bytes() const { return budget_->bytes_used(); }

 private:
  struct Entry {
    std::uint64_t size = 0;
    std::shared_ptr<TenantBudget::Share> share;  // The share of the tenant that kept it first.
    std::weak_ptr<const void> use;
  };

  [[nodiscard]] std::string path_of(const std::string& id) const { return folder_ + "/" + id; }
  [[nodiscard]] static Use use_of(Entry& entry);
  void remove_locked(const std::string& id) REQUIRES_LOCK(mutex_);

  const std::string folder_;
  const std::shared_ptr<TenantBudget> budget_;  // Shared with the entries.
  mutable Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace uma::image
