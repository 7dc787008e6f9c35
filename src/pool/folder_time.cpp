#include "pool/folder_time.h"

#include <ctime>
#include <sys/stat.h>
#include <utility>

#include "base/system/file_calls.h"

namespace uma::pool {
namespace {

std::int64_t folder_modified_ns(const std::string& folder) {
  struct stat status{};
  return ::stat(folder.c_str(), &status) == 0 ? modified_ns(status) : 0;
}

// Whether later changes may have the same time: file systems count time in steps.
bool is_recent(std::int64_t time_ns) {
  constexpr std::int64_t kStep_ns = 100'000'000;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t age_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec - time_ns;
  return age_ns >= 0 && age_ns < kStep_ns;
}

}  // namespace

FolderTime time_of(std::string folder) {
  const std::int64_t changed_ns = folder_modified_ns(folder);
  return {.folder = std::move(folder), .modified_ns = is_recent(changed_ns) ? std::nullopt : std::optional(changed_ns)};
}

bool has_changed(const FolderTime& known) {
  return !known.modified_ns || folder_modified_ns(known.folder) != *known.modified_ns;
}

}  // namespace uma::pool
