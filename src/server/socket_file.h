// The file of a listening Unix socket.
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>

#include "base/system/unique_fd.h"
#include "core/error.h"

namespace uma::server {

// A socket file that this process created and removes at its end. It remembers the inode and never removes a file that somebody
// else put in its place. Must be destroyed before the listening socket is closed: until then no other file can have its inode
// number.
class SocketFile {
 public:
  SocketFile(std::string path, dev_t device, ino_t inode) : path_(std::move(path)), device_(device), inode_(inode) {}
  ~SocketFile() { remove(); }
  SocketFile(SocketFile&& other) noexcept
      : path_(std::exchange(other.path_, {})), device_(other.device_), inode_(other.inode_) {}
  SocketFile& operator=(SocketFile&&) = delete;

  // Removes the file if it is still the same one. Later calls do nothing.
  void remove();

 private:
  std::string path_;  // Empty: removed.
  dev_t device_;
  ino_t inode_;
};

struct ListeningSocket {
  UniqueFd fd;                          // Non-blocking, close-on-exec.
  std::optional<SocketFile> file = {};  // Nullopt: another process created the file and removes it.
  // If true, serves every user whom the file's permissions let connect, each as a separate tenant; otherwise only the daemon's
  // user and root.
  bool serves_other_users = false;
};

// Listens at `path`, whose mode is 0600 from the first moment. Replaces a socket file without a listener. A live socket, or a
// file of another type, is an error and stays. The folder is locked meanwhile, so that two daemons can start at the same time.
// May block on that lock while another process starts or stops listening in the same folder.
[[nodiscard]] Expected<ListeningSocket> listen_at(const std::string& path, int backlog);

}  // namespace uma::server
