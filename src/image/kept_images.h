// Images of sessions as files, named by their SHA-256 (image/image_id.h), as long as a session may have to be computed again.
// Any thread; all functions except simple queries block on the disk.
//
// Where daemons share sessions, their database has the images (kv/postgres_images.h), and the folder is a cache of it: a file
// without a Use may be removed to make room, and one that is not there is fetched.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/work/tenant_budget.h"

namespace uma::image {

// The SHA-256 of an image's file, in hexadecimal digits.
[[nodiscard]] std::string file_hash(std::span<const std::byte> file);

class KeptImages {
 public:
  // While a Use exists, its file is not removed, even if no session refers to it any more.
  using Use = std::shared_ptr<const void>;

  // Fetches the file of an image from where all daemons have them. `done` is called once, from any thread.
  using Fetch = std::function<void(const std::string& id, MoveOnlyFunction<void(Expected<Bytes>)> done)>;
  // How long read() and bring() wait for fetched files.
  static constexpr Duration kFetchWithin = std::chrono::seconds(15);

  // Files already in the folder are counted for no tenant. The folder may be missing. `fetch` is null where the folder has all
  // images; else it may call `done` as long as this object exists.
  KeptImages(std::string folder, std::uint64_t bytes_max, Fetch fetch = nullptr);

  // Keeps the file of this id for the tenant, unless it is already kept. Each tenant that keeps it is charged until the file is
  // removed, so that neither success nor an error tells what others keep. Only sync() guarantees that it is on the disk.
  // Errors: E_IO_001; E_LIMIT_003 if the budget of the tenant or of all tenants is exhausted.
  [[nodiscard]] Expected<Use> keep(const TenantId& tenant, const std::string& id, std::span<const std::byte> file);
  [[nodiscard]] Expected<Unit> sync();
  // Fetches the file if it is not in the folder, which blocks for kFetchWithin at most. Errors: E_IO_001 for a missing or
  // damaged file, or if it cannot be fetched.
  [[nodiscard]] Expected<Bytes> read(const std::string& id);
  // The file in the folder. Errors: E_IO_001 for a missing or damaged file.
  [[nodiscard]] Expected<Bytes> read_here(const std::string& id);
  // Fetches those files that are not in the folder, without blocking: up to the first one that fails, for kFetchWithin, and up
  // to about `bytes_max`. `done` is called here, or on the thread that fetches.
  void bring(std::vector<std::string> ids, std::uint64_t bytes_max, MoveOnlyFunction<void()> done);
  // The size of the file; nothing if it is not kept.
  [[nodiscard]] std::optional<std::uint64_t> size_of(const std::string& id) const;
  // Removes the files without a Use for which `is_used` is false. `is_used` is called with a lock held.
  void remove(std::span<const std::string> ids, const std::function<bool(const std::string& id)>& is_used = nullptr);
  // Removes all other files.
  void remove_others(const std::unordered_set<std::string>& wanted);
  // The bytes of all files.
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  struct Entry {
    std::uint64_t size = 0;
    std::map<TenantId, std::shared_ptr<TenantBudget::Share>> shares;  // One for each tenant that keeps it, else one for nobody.
    std::weak_ptr<const void> use;
    std::uint64_t used = 0;  // The count of uses at its last one.
  };
  struct Bringing;

  [[nodiscard]] std::string path_of(const std::string& id) const { return folder_ + "/" + id; }
  [[nodiscard]] Entry* find_file(const std::string& id) REQUIRES_LOCK(mutex_);
  [[nodiscard]] Use use_of(Entry& entry) REQUIRES_LOCK(mutex_);
  [[nodiscard]] Expected<std::shared_ptr<TenantBudget::Share>> charge(const TenantId& tenant, std::uint64_t bytes);
  static void add_share(Entry& entry, const TenantId& tenant, std::shared_ptr<TenantBudget::Share> share);
  [[nodiscard]] Expected<Unit> write(const std::string& id, std::span<const std::byte> file, const TenantId& tenant,
                                     std::shared_ptr<TenantBudget::Share> share, Use* use);
  [[nodiscard]] Expected<Bytes> fetch_now(const std::string& id);
  [[nodiscard]] Expected<Bytes> take_fetched(const std::string& id, Expected<Bytes> file);
  void bring_next(std::shared_ptr<Bringing> bringing);
  [[nodiscard]] bool make_room();
  void remove_locked(const std::string& id) REQUIRES_LOCK(mutex_);

  const std::string folder_;
  const Fetch fetch_;                           // Null: the folder has all images.
  const std::shared_ptr<TenantBudget> budget_;  // Shared with the entries.
  mutable Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_ GUARDED_BY(mutex_);
  std::uint64_t uses_ GUARDED_BY(mutex_) = 0;
};

}  // namespace uma::image
