// Where uma-cli looks for a daemon.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace uma::cli {

struct SocketPlaces {
  std::string from_flag;         // --socket; empty: absent
  std::string from_environment;  // UMA_SOCKET; empty: absent
  std::string runtime_folder;    // XDG_RUNTIME_DIR; empty or relative: absent
  uid_t user = 0;                // whose program this is
  std::string default_path = "/tmp/uma.sock";
};

// The sockets to try, in order: the flag's or the environment's alone; else those of a daemon that this user started (the
// default path, where the file is this user's: anybody can make one in /tmp), of the user's service, and of the system's. Never
// empty.
[[nodiscard]] std::vector<std::string> sockets_to_try(const SocketPlaces& places);

}  // namespace uma::cli
