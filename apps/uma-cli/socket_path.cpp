#include "uma-cli/socket_path.h"

#include <format>
#include <sys/stat.h>
#include <sys/un.h>
#include <utility>

namespace uma::cli {
namespace {

// Path below the runtime folder; the socket units in packaging/systemd use it, too.
constexpr const char* kServiceSocket = "uma-serve/umad.sock";

// Whether the file exists and is the user's. In a folder with the sticky bit, nobody else can replace it.
bool belongs_to(const std::string& path, uid_t user) {
  struct stat facts{};
  return ::lstat(path.c_str(), &facts) == 0 && facts.st_uid == user;
}

}  // namespace

std::vector<std::string> sockets_to_try(const SocketPlaces& places) {
  if (!places.from_flag.empty()) return {places.from_flag};
  if (!places.from_environment.empty()) return {places.from_environment};
  std::vector<std::string> paths;
  const std::string folder =
      places.runtime_folder.starts_with('/') ? places.runtime_folder : std::format("/run/user/{}", places.user);
  for (const std::string& by_hand : {folder + "/uma.sock", places.default_path}) {
    if (belongs_to(by_hand, places.user)) paths.push_back(by_hand);
  }
  std::string own_service = std::format("{}/{}", folder, kServiceSocket);
  if (own_service.size() < sizeof(sockaddr_un::sun_path)) paths.push_back(std::move(own_service));
  paths.push_back(std::format("/run/{}", kServiceSocket));
  return paths;
}

}  // namespace uma::cli
