#include "base/sync_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace uma {

int sync_folder(const std::string& folder) {
  const UniqueFd opened(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open()) return errno;
  return ::fsync(opened.get()) == 0 || errno == EINVAL ? 0 : errno;
}

}  // namespace uma
