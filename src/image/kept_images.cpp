#include "image/kept_images.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <optional>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/log.h"
#include "base/sha256.h"
#include "base/sync_folder.h"
#include "base/unique_fd.h"

namespace uma::image {
namespace {

namespace fs = std::filesystem;

// The error has no path, because it goes to tenants.
std::unexpected<Error> disk_error(const std::string& path, int problem) {
  log_error("cannot write {}: {}", path, std::strerror(problem));
  return fail(ErrorCode::io_failed, std::format("an image of the session cannot be stored: {}", std::strerror(problem)));
}

bool write_whole(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(file, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return true;
}

}  // namespace

KeptImages::KeptImages(std::string folder, std::uint64_t bytes_max)
    : folder_(std::move(folder)),
      budget_(std::make_shared<TenantBudget>(bytes_max, "images of sessions", "vision.kept_bytes_max")) {
  std::error_code problem;
  const MutexLock lock(mutex_);
  for (const auto& file : fs::directory_iterator(folder_, problem)) {
    const std::string name = file.path().filename().string();
    const std::uint64_t size = file.file_size(problem);
    Entry entry{.size = size, .share = budget_->open(TenantId()), .use = {}};
    if (!problem && entry.share->grow(size)) entries_.emplace(name, std::move(entry));
  }
}

KeptImages::Use KeptImages::use_of(Entry& entry) {
  Use use = entry.use.lock();
  if (use == nullptr) {
    use = std::make_shared<const char>();
    entry.use = use;
  }
  return use;
}

Expected<KeptImages::Use> KeptImages::keep(const TenantId& tenant, const std::string& id, std::span<const std::byte> file) {
  std::shared_ptr<TenantBudget::Share> share = budget_->open(tenant);
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(id);
    // The folder may have been cleaned from outside.
    const bool is_there = found != entries_.end() && ::access(path_of(id).c_str(), F_OK) == 0;
    if (is_there) return use_of(found->second);
    if (found != entries_.end()) entries_.erase(found);
  }
  if (auto grown = share->grow(file.size()); !grown) return std::unexpected(grown.error());
  std::error_code ignored;
  fs::create_directories(folder_, ignored);
  // Another thread may write the same file at the same time.
  static std::atomic<std::uint64_t> parts{0};
  const std::string part = std::format("{}.{}.part", path_of(id), parts.fetch_add(1));
  const UniqueFd out(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!out.is_open()) return disk_error(part, errno);
  if (!write_whole(out.get(), file) || ::fsync(out.get()) != 0) {
    const int problem = errno;
    ::unlink(part.c_str());
    return disk_error(part, problem);
  }
  const MutexLock lock(mutex_);
  if (::rename(part.c_str(), path_of(id).c_str()) != 0) {
    const int problem = errno;
    ::unlink(part.c_str());
    return disk_error(path_of(id), problem);
  }
  Entry& entry = entries_.try_emplace(id, Entry{.size = file.size(), .share = std::move(share), .use = {}}).first->second;
  return use_of(entry);
}

Expected<Unit> KeptImages::sync() {
  if (const int problem = sync_folder(folder_); problem != 0) return disk_error(folder_, problem);
  return Unit{};
}

Expected<Bytes> KeptImages::read(const std::string& id) const {
  const auto refuse = [&](std::string_view why) {
    return fail(ErrorCode::io_failed, std::format("the image {} of the session cannot be read: {}", id, why));
  };
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
  Sha256 hash;
  hash.add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (hash.hex() != id) return refuse("the file is damaged");
  return bytes;
}

std::optional<std::uint64_t> KeptImages::size_of(const std::string& id) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() ? std::nullopt : std::optional(found->second.size);
}

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
