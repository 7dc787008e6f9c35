#include "kv/catalog/catalog_lock.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <format>
#include <sys/file.h>

namespace uma::kv {

Expected<UniqueFd> take_catalog_lock(const std::string& catalog) {
  const std::string path = catalog + ".lock";
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.is_open()) return fail(ErrorCode::io_failed, std::format("{}: {}", path, std::strerror(errno)));
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) return fail(ErrorCode::io_failed, std::format("{}: {}", path, std::strerror(errno)));
  return fail(ErrorCode::io_failed,
              std::format("{} is in use by another umad: stop that one, or give this one another --data-dir", catalog));
}

}  // namespace uma::kv
