#include "server/service_manager.h"

#include <cstdlib>
#include <systemd/sd-daemon.h>

namespace uma::server {

static_assert(kFirstPassedDescriptor == SD_LISTEN_FDS_START);

std::expected<std::vector<std::string>, int> take_passed_names() {
  char** listed = nullptr;
  const int count = ::sd_listen_fds_with_names(1, &listed);
  if (count < 0) return std::unexpected(-count);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    names.emplace_back(listed[i]);
    std::free(listed[i]);
  }
  std::free(static_cast<void*>(listed));
  return names;
}

void tell_service_manager(const char* state) {
  ::sd_notify(0, state);
}

}  // namespace uma::server
