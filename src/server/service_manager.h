// The exchange between a service manager and a daemon: sd_listen_fds(3) and sd_notify(3).
#pragma once

#include <expected>
#include <string>
#include <vector>

namespace uma::server {

inline constexpr int kFirstPassedDescriptor = 3;

// The names of the descriptors that LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES announce to this process. The first name is that
// of kFirstPassedDescriptor, the next one that of the next descriptor. Makes them close-on-exec and unsets the variables. Empty
// if there are none, or if the variables name another process. Errors: an errno.
[[nodiscard]] std::expected<std::vector<std::string>, int> take_passed_names();

// Tells the service manager about this process, for example "READY=1". Without effect where there is none.
void tell_service_manager(const char* state);

}  // namespace uma::server
