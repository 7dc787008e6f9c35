#include "uma-cli/socket_path.h"

#include <format>
#include <sys/stat.h>

namespace uma::cli {
namespace {

// In the folder of a service manager's runtime files; the socket units in packaging/systemd name it too.
constexpr const char* kServiceSocket = "uma-serve/umad.sock";

bool belongs_to_another(const std::string& path, uid_t user) {
  struct stat facts{};
  return ::lstat(path.c_str(), &facts) == 0 && facts.st_uid != user;
}

}  // namespace

std::vector<std::string> sockets_to_try(const SocketPlaces& places) {
  if (!places.from_flag.empty()) return {places.from_flag};
  if (!places.from_environment.empty()) return {places.from_environment};
  std::vector<std::string> paths;
  if (!belongs_to_another(places.default_path, places.user)) paths.push_back(places.default_path);
  const std::string folder =
      places.runtime_folder.starts_with('/') ? places.runtime_folder : std::format("/run/user/{}", places.user);
  paths.push_back(std::format("{}/{}", folder, kServiceSocket));
  paths.push_back(std::format("/run/{}", kServiceSocket));
  return paths;
}

}  // namespace uma::cli
