// Who is at the other end of a connection of the HTTP door, as far as that is known before it asks.
#pragma once

#include <optional>
#include <string>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "core/error.h"
#include "server/http_server.h"
#include "server/peer_user.h"

namespace uma::server {

struct HttpPeer {
  bool is_local = false;                  // of a Unix socket, whose file says who may connect
  std::optional<Error> refusal = {};      // why it is not served without a key, where the server has no keys
  std::optional<std::string> share = {};  // in whose share of the connections it is (ConnectionShares); none: it may ask
};

// Of a connection that was accepted at the server's address; nothing where it was reset by now.
[[nodiscard]] std::optional<HttpPeer> find_peer(boost::asio::ip::tcp::socket& connection, const HttpServerOptions& options,
                                                PeerUsers& users);

// Why a server without keys does not serve a connection of this user; nothing where it does. `own`: the server's user. Pure.
[[nodiscard]] std::optional<Error> refusal_without_key(const Expected<uid_t>& user, uid_t own);

// The peer that an address of another machine stands for: itself, and of IPv6 the network of its first 64 bits, in which a
// machine may have any number of addresses. Pure.
[[nodiscard]] std::string share_of_address(const boost::asio::ip::address& address);

}  // namespace uma::server
