#include "server/socket_file.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <optional>
#include <string_view>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "base/system/descriptors.h"
#include "server/unix_socket.h"

namespace uma::server {
namespace {

constexpr std::size_t kPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;

std::unexpected<Error> fail_errno(std::string_view what, const std::string& path, int problem = errno) {
  return fail(ErrorCode::io_failed, std::format("{} {}: {}", what, path, std::generic_category().message(problem)));
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd make_socket() {
  UniqueFd made = open_socket(AF_UNIX, SOCK_STREAM);
  if (made.is_open()) make_nonblocking(made.get());
  return made;
}

// Locks the folder of `path` until the descriptor is closed, so that two daemons do not remove each other's socket. Whoever may
// read the folder can hold this lock, such as anybody that of /tmp: after a while it goes on without.
Expected<UniqueFd> lock_folder(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_open()) return fail_errno("cannot open the socket's folder", folder);
  constexpr int kLooks = 200;
  constexpr std::chrono::milliseconds kLookAgain{10};
  for (int look = 0; ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0; ++look) {
    if (errno != EINTR && errno != EWOULDBLOCK) return fail_errno("cannot lock the socket's folder", folder);
    if (look == kLooks) {
      log_warning("another program has locked {} for {} s: going on without the lock", folder,
                  kLooks * kLookAgain / std::chrono::seconds(1));
      break;
    }
    std::this_thread::sleep_for(kLookAgain);
  }
  return fd;
}

// Removes a socket file without a listener; any other file is an error. Called with the folder's lock.
Expected<Unit> make_room(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return Unit{};
    return fail_errno("cannot examine", path);
  }
  if (!S_ISSOCK(status.st_mode)) {
    return fail(ErrorCode::io_failed,
                std::format("{} exists and is not a socket: remove it, or choose another --socket", path));
  }
  const UniqueFd probe = make_socket();
  if (!probe.is_open()) return fail_errno("cannot create a socket for", path);
  const sockaddr_un address = address_of(path);
  // A full backlog (EAGAIN) also means a live listener.
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno == EAGAIN) {
    return fail(ErrorCode::io_failed, std::format("another daemon answers on {}: stop it, or choose another --socket", path));
  }
  if (errno == ENOENT) return Unit{};
  if (errno != ECONNREFUSED) return fail_errno("cannot determine whether a daemon listens on", path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail_errno("cannot remove the stale socket", path);
  log_info("removed the stale socket {}", path);
  return Unit{};
}

}  // namespace

void SocketFile::remove() {
  if (path_.empty()) return;
  const Expected<UniqueFd> lock = lock_folder(path_);
  struct stat status{};
  if (lock && ::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
  path_.clear();
}

Expected<ListeningSocket> listen_at(const std::string& path, int backlog) {
  if (path.empty()) return fail(ErrorCode::io_failed, "the socket path is empty: give --socket PATH");
  if (path.size() > kPathBytesMax) {
    return fail(ErrorCode::io_failed,
                std::format("the socket path has {} bytes, but the limit is {}: choose a shorter --socket", path.size(),
                            kPathBytesMax));
  }
  const Expected<UniqueFd> lock = lock_folder(path);
  if (!lock) return std::unexpected(lock.error());
  if (const Expected<Unit> room = make_room(path); !room) return std::unexpected(room.error());

  UniqueFd fd = make_socket();
  if (!fd.is_open()) return fail_errno("cannot create a socket for", path);
  if (const int problem = bind_privately(fd.get(), address_of(path)); problem != 0)
    return fail_errno("cannot bind", path, problem);
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0 || ::listen(fd.get(), backlog) != 0) {
    const int problem = errno;
    ::unlink(path.c_str());  // Still the file made above, because of the folder's lock.
    return fail_errno("cannot listen on", path, problem);
  }
  return ListeningSocket{std::move(fd), SocketFile(path, status.st_dev, status.st_ino)};
}

}  // namespace uma::server
