// The name of a listening Unix socket in the file system.
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>

#include "base/unique_fd.h"
#include "core/error.h"

namespace uma::server {

// A name that this process made, and removes at its end. Remembers the inode, so that it never removes what somebody else put
// there meanwhile. Must end before the listening socket is closed: while that is open, no other file can have its inode number.
class SocketFile {
 public:
  SocketFile(std::string path, dev_t device, ino_t inode) : path_(std::move(path)), device_(device), inode_(inode) {}
  ~SocketFile() { remove(); }
  SocketFile(SocketFile&& other) noexcept
      : path_(std::exchange(other.path_, {})), device_(other.device_), inode_(other.inode_) {}
  SocketFile& operator=(SocketFile&&) = delete;

  // Removes the name if it is still ours. Later calls do nothing.
  void remove();

 private:
  std::string path_;  // empty: removed
  dev_t device_;
  ino_t inode_;
};

struct ListeningSocket {
  UniqueFd fd;                          // non-blocking, close-on-exec
  std::optional<SocketFile> file = {};  // none: another process made the name and removes it
  // Whoever the file's permissions let connect is served, each user as a tenant of his own; else the daemon's user and root
  // only.
  bool serves_other_users = false;
};

// Listens at `path` with mode 0600 from the first moment. A socket file on which nobody answers is replaced; a live one, and
// anything that is not a socket, is an error and stays. Two daemons that start at once are told apart: the folder is locked
// meanwhile. May block on that lock for as long as another process starts or stops listening in the same folder.
[[nodiscard]] Expected<ListeningSocket> listen_at(const std::string& path, int backlog);

}  // namespace uma::server
