#include "image/kept_images.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <future>
#include <optional>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/log.h"
#include "base/sha256.h"
#include "base/system/new_file.h"
#include "base/system/unique_fd.h"

namespace uma::image {
namespace {

namespace fs = std::filesystem;

// The error has no path, because it goes to tenants.
std::unexpected<Error> disk_error(const std::string& path, int problem) {
  log_error("cannot write {}: {}", path, std::strerror(problem));
  return fail(ErrorCode::io_failed, std::format("an image of the session cannot be stored: {}", std::strerror(problem)));
}

std::unexpected<Error> unreadable(const std::string& id, std::string_view why) {
  return fail(ErrorCode::io_failed, std::format("the image {} of the session cannot be read: {}", id, why));
}

}  // namespace

std::string file_hash(std::span<const std::byte> file) {
  Sha256 hash;
  hash.add({reinterpret_cast<const char*>(file.data()), file.size()});
  return hash.hex();
}

KeptImages::KeptImages(std::string folder, std::uint64_t bytes_max, Fetch fetch)
    : folder_(std::move(folder)),
      fetch_(std::move(fetch)),
      budget_(std::make_shared<TenantBudget>(bytes_max, "images of sessions", "vision.kept_bytes_max")) {
  std::error_code problem;
  const MutexLock lock(mutex_);
  for (const auto& file : fs::directory_iterator(folder_, problem)) {
    const std::string name = file.path().filename().string();
    const std::uint64_t size = file.file_size(problem);
    auto share = budget_->open(TenantId());
    if (problem || !share->grow(size)) continue;
    entries_.emplace(name, Entry{.size = size, .shares = {{TenantId(), std::move(share)}}, .use = {}});
  }
}

// Null: it is not kept. The folder may have been cleaned from outside.
KeptImages::Entry* KeptImages::find_file(const std::string& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  if (::access(path_of(id).c_str(), F_OK) == 0) return &found->second;
  entries_.erase(found);
  return nullptr;
}

KeptImages::Use KeptImages::use_of(Entry& entry) {
  entry.used = ++uses_;
  Use use = entry.use.lock();
  if (use == nullptr) {
    use = std::make_shared<const char>();
    entry.use = use;
  }
  return use;
}

Expected<std::shared_ptr<TenantBudget::Share>> KeptImages::charge(const TenantId& tenant, std::uint64_t bytes) {
  auto share = budget_->open(tenant);
  auto grown = share->grow(bytes);
  while (!grown && make_room()) grown = share->grow(bytes);
  if (!grown) return std::unexpected(std::move(grown.error()));
  return share;
}

// A file counts for nobody only as long as no tenant keeps it.
void KeptImages::add_share(Entry& entry, const TenantId& tenant, std::shared_ptr<TenantBudget::Share> share) {
  if (tenant.value.empty() && !entry.shares.empty()) return;
  entry.shares.emplace(tenant, std::move(share));
  if (!tenant.value.empty()) entry.shares.erase(TenantId());
}

Expected<KeptImages::Use> KeptImages::keep(const TenantId& tenant, const std::string& id, std::span<const std::byte> file) {
  {
    const MutexLock lock(mutex_);
    Entry* entry = find_file(id);
    if (entry != nullptr && entry->shares.contains(tenant)) return use_of(*entry);
  }
  auto share = charge(tenant, file.size());
  if (!share) return std::unexpected(std::move(share.error()));
  {
    const MutexLock lock(mutex_);
    if (Entry* entry = find_file(id)) {
      add_share(*entry, tenant, std::move(*share));
      return use_of(*entry);
    }
  }
  Use use;
  if (auto written = write(id, file, tenant, std::move(*share), &use); !written) return std::unexpected(written.error());
  return use;
}

// Writes a file that is not there, for which `share` is charged. `use` becomes its use; null: nobody uses it.
Expected<Unit> KeptImages::write(const std::string& id, std::span<const std::byte> file, const TenantId& tenant,
                                 std::shared_ptr<TenantBudget::Share> share, Use* use) {
  std::error_code ignored;
  fs::create_directories(folder_, ignored);
  // Another thread may write the same file at the same time.
  static std::atomic<std::uint64_t> parts{0};
  NewFile out(path_of(id), std::format("{}.{}.part", path_of(id), parts.fetch_add(1)));
  out.write(file);
  out.sync();
  const MutexLock lock(mutex_);
  if (const int problem = out.publish(); problem != 0) return disk_error(path_of(id), problem);
  Entry& entry = entries_.try_emplace(id, Entry{.size = file.size(), .shares = {}, .use = {}}).first->second;
  add_share(entry, tenant, std::move(share));
  entry.used = ++uses_;
  if (use != nullptr) *use = use_of(entry);
  return Unit{};
}

// Removes the file that was not used for longest and that no request uses. False: there is none, or the folder is no cache.
bool KeptImages::make_room() {
  if (!fetch_) return false;
  const MutexLock lock(mutex_);
  auto oldest = entries_.end();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const bool is_older = oldest == entries_.end() || entry->second.used < oldest->second.used;
    if (is_older && entry->second.use.expired()) oldest = entry;
  }
  if (oldest == entries_.end()) return false;
  remove_locked(std::string(oldest->first));
  return true;
}

Expected<Unit> KeptImages::sync() {
  if (const int problem = sync_folder(folder_); problem != 0) return disk_error(folder_, problem);
  return Unit{};
}

Expected<Bytes> KeptImages::read(const std::string& id) {
  auto here = read_here(id);
  return here || !fetch_ ? here : fetch_now(id);
}

Expected<Bytes> KeptImages::read_here(const std::string& id) {
  const auto refuse = [&](std::string_view why) { return unreadable(id, why); };
  const auto size = size_of(id);
  const UniqueFd file(size ? ::open(path_of(id).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1);
  if (!file.is_open()) return refuse("the file is missing");
  Bytes bytes(*size);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return refuse("the file is damaged");
    done += static_cast<std::size_t>(got);
  }
  if (file_hash(bytes) != id) return refuse("the file is damaged");
  const MutexLock lock(mutex_);
  if (const auto found = entries_.find(id); found != entries_.end()) found->second.used = ++uses_;
  return bytes;
}

std::uint64_t KeptImages::bytes() const {
  const MutexLock lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [id, entry] : entries_) sum += entry.size;
  return sum;
}

std::optional<std::uint64_t> KeptImages::size_of(const std::string& id) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() ? std::nullopt : std::optional(found->second.size);
}

// --- Files that are elsewhere

// Checks a fetched file, and keeps it in the folder if there is room.
Expected<Bytes> KeptImages::take_fetched(const std::string& id, Expected<Bytes> file) {
  if (!file) return file;
  if (file_hash(*file) != id) return unreadable(id, "the database has another file in its place");
  {
    const MutexLock lock(mutex_);
    // A damaged one is replaced.
    if (const auto found = entries_.find(id); found != entries_.end() && found->second.use.expired()) remove_locked(id);
  }
  if (auto share = charge(TenantId(), file->size())) (void)write(id, *file, TenantId(), std::move(*share), nullptr);
  return file;
}

Expected<Bytes> KeptImages::fetch_now(const std::string& id) {
  // Shared with the callback, which may come after this wait has ended.
  const auto answer = std::make_shared<std::promise<Expected<Bytes>>>();
  auto file = answer->get_future();
  // It is kept also if it comes too late for this request.
  fetch_(id, [this, id, answer](Expected<Bytes> fetched) { answer->set_value(take_fetched(id, std::move(fetched))); });
  if (file.wait_for(kFetchWithin) != std::future_status::ready) {
    return unreadable(id, std::format("the database has not delivered it within {}: try again later",
                                      std::chrono::duration_cast<std::chrono::seconds>(kFetchWithin)));
  }
  return file.get();
}

struct KeptImages::Bringing {
  std::vector<std::string> ids;
  std::size_t next = 0;
  std::uint64_t bytes_left = 0;
  TimePoint deadline{};
  MoveOnlyFunction<void()> done;
};

void KeptImages::bring(std::vector<std::string> ids, std::uint64_t bytes_max, MoveOnlyFunction<void()> done) {
  std::erase_if(ids, [&](const std::string& id) { return !fetch_ || size_of(id).has_value(); });
  bring_next(std::make_shared<Bringing>(std::move(ids), 0, bytes_max, std::chrono::steady_clock::now() + kFetchWithin,
                                        std::move(done)));
}

void KeptImages::bring_next(std::shared_ptr<Bringing> bringing) {
  const bool is_late = std::chrono::steady_clock::now() >= bringing->deadline;
  if (bringing->next == bringing->ids.size() || is_late || bringing->bytes_left == 0) return bringing->done();
  const std::string id = bringing->ids[bringing->next++];
  fetch_(id, [this, id, bringing = std::move(bringing)](Expected<Bytes> fetched) mutable {
    const auto file = take_fetched(id, std::move(fetched));
    if (!file) return bringing->done();
    bringing->bytes_left -= std::min<std::uint64_t>(bringing->bytes_left, file->size());
    bring_next(std::move(bringing));
  });
}

// --- Files that are not needed any more

void KeptImages::remove_locked(const std::string& id) {
  ::unlink(path_of(id).c_str());
  entries_.erase(id);
}

void KeptImages::remove(std::span<const std::string> ids, const std::function<bool(const std::string& id)>& is_used) {
  const MutexLock lock(mutex_);
  for (const std::string& id : ids) {
    const auto found = entries_.find(id);
    // A request that keeps the image again holds its Use until its session refers to the image, so is_used() must be asked
    // after the Use has expired.
    if (found == entries_.end() || !found->second.use.expired() || (is_used && is_used(id))) continue;
    remove_locked(id);
  }
}

void KeptImages::remove_others(const std::unordered_set<std::string>& wanted) {
  std::error_code problem;
  std::size_t removed = 0;
  const MutexLock lock(mutex_);
  for (const auto& file : fs::directory_iterator(folder_, problem)) {
    const std::string name = file.path().filename().string();
    if (wanted.contains(name)) continue;
    remove_locked(name);
    ++removed;
  }
  if (removed > 0) log_info("images: removed {} files that no session refers to", removed);
}

}  // namespace uma::image
