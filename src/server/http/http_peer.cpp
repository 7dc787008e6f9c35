#include "server/http/http_peer.h"

#include <algorithm>
#include <format>
#include <unistd.h>

#include "server/unix_listener.h"

namespace uma::server {
namespace {

namespace ip = boost::asio::ip;

// Converts an IPv4-mapped IPv6 address to IPv4.
ip::address without_mapping(const ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) return ip::make_address_v4(ip::v4_mapped, address.to_v6());
  return address;
}

}  // namespace

std::optional<Error> refusal_without_key(const Expected<uid_t>& user, uid_t own) {
  if (user && is_peer_allowed(*user, own)) return std::nullopt;
  const std::string who = user ? std::format("this connection belongs to uid {}", *user)
                               : std::format("it is not known whose connection this is: {}", user.error().message);
  return Error{
      ErrorCode::auth,
      std::format("without keys umad serves only its own user (uid {}) and root, and {}. Set http.local_users: true to serve "
                  "every user of this machine, or give other users keys (umad key new NAME)",
                  own, who)};
}

std::string share_of_address(const ip::address& address) {
  const ip::address plain = without_mapping(address);
  if (plain.is_v4()) return plain.to_string();
  ip::address_v6::bytes_type bytes = plain.to_v6().to_bytes();
  std::ranges::fill(bytes.begin() + 8, bytes.end(), 0);
  return ip::address_v6(bytes).to_string() + "/64";
}

std::optional<HttpPeer> find_peer(ip::tcp::socket& connection, const HttpServerOptions& options, PeerUsers& users) {
  boost::system::error_code problem;
  const ip::address address = connection.remote_endpoint(problem).address();
  if (problem) return std::nullopt;
  const bool has_keys = !options.keys.empty();
  // Without keys the server's address is a loopback address, whatever the client's is.
  if (has_keys && !without_mapping(address).is_loopback()) return HttpPeer{.share = share_of_address(address)};
  const Expected<uid_t> user = users.user_of(connection.native_handle());
  std::optional<Error> refusal = refusal_without_key(user, ::geteuid());
  HttpPeer peer{.is_own_user = !refusal};
  if (has_keys || refusal) peer.share = user ? std::format("uid {}", *user) : "unknown users";
  if (!has_keys && !options.serves_local_users) peer.refusal = std::move(refusal);
  return peer;
}

}  // namespace uma::server
