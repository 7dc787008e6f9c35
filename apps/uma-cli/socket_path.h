// Chooses the sockets on which uma-cli looks for a daemon.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace uma::cli {

struct SocketPlaces {
  std::string from_flag;         // --socket; empty: absent
  std::string from_environment;  // UMA_SOCKET; empty: absent
  std::string runtime_folder;    // XDG_RUNTIME_DIR; empty or relative: absent.
  uid_t user = 0;                // The user who runs this program.
  std::string default_path = "/tmp/uma.sock";
};

// The sockets to try, in order. A flag or else the environment gives the only one. Otherwise: a daemon that was started by
// hand, in the runtime folder or else at the default path, if the file belongs to this user (anybody can create one in /tmp);
// the user's service; the system's service. Never empty.
[[nodiscard]] std::vector<std::string> sockets_to_try(const SocketPlaces& places);

}  // namespace uma::cli
