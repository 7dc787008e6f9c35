// The peer of an HTTP connection, as far as it is known before the first request.
#pragma once

#include <optional>
#include <string>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "core/error.h"
#include "server/http/http_server.h"
#include "server/http/peer_user.h"

namespace uma::server {

struct HttpPeer {
  bool is_local = false;              // Connected over a Unix socket, whose file permissions decide who may connect.
  bool is_own_user = false;           // Its user is the server's own, or root.
  std::optional<Error> refusal = {};  // Why the peer is not served without a key, if the server has no keys.
  // The share that the connection counts against (ConnectionShares); nullopt: none, because the peer may send requests.
  std::optional<std::string> share = {};
};

// The peer of an accepted connection, or nullopt if the connection was reset.
[[nodiscard]] std::optional<HttpPeer> find_peer(boost::asio::ip::tcp::socket& connection, const HttpServerOptions& options,
                                                PeerUsers& users);

// Why a server without keys refuses a connection of this user, or nullopt if it serves the user. `own` is the server's user.
// Pure.
[[nodiscard]] std::optional<Error> refusal_without_key(const Expected<uid_t>& user, uid_t own);

// The peer that an address stands for: the address itself, or for IPv6 its 64-bit network, since one machine may have any
// number of addresses there. Pure.
[[nodiscard]] std::string share_of_address(const boost::asio::ip::address& address);

}  // namespace uma::server
