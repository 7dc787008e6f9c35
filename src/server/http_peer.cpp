#include "server/http_peer.h"

#include <format>
#include <unistd.h>

#include "server/unix_listener.h"

namespace uma::server {

std::optional<Error> refusal_without_key(const Expected<uid_t>& user, uid_t own) {
  if (user && is_peer_allowed(*user, own)) return std::nullopt;
  const std::string who = user ? std::format("this connection is of uid {}", *user)
                               : std::format("it is not known whose connection this is: {}", user.error().message);
  return Error{
      ErrorCode::auth,
      std::format("without keys only umad's own user (uid {}) and root are served, and {}; to serve every user of this "
                  "machine set http.local_users: true, to serve some give them keys (umad key new NAME)",
                  own, who)};
}

std::optional<HttpPeer> find_peer(boost::asio::ip::tcp::socket& connection, const HttpServerOptions& options,
                                  PeerUsers& users) {
  boost::system::error_code problem;
  (void)connection.remote_endpoint(problem);
  if (problem) return std::nullopt;
  HttpPeer peer;
  if (options.keys.empty() && !options.serves_local_users) {
    peer.refusal = refusal_without_key(users.user_of(connection.native_handle()), ::geteuid());
  }
  return peer;
}

}  // namespace uma::server
