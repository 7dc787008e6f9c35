// Which addresses an image may be fetched from. A client names the URL, and the daemon stands where the client may not: behind
// the firewall, beside services that trust whoever is on their machine. So only the open internet is asked, unless the
// configuration names a host. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <boost/asio/ip/address.hpp>

#include "core/error.h"
#include "core/image.h"

namespace uma::capability {

inline constexpr std::size_t kImageUrlBytesMax = 8'192;
inline constexpr int kImageRedirectsMax = 3;

struct ImageUrl {
  bool is_secure = false;  // https
  std::string host;        // lower case; of an IPv6 address without its brackets
  std::uint16_t port = 0;
  std::string target;  // path and query

  // As in ImageUrlRules::hosts, and in the Host header where the port is not the usual one.
  [[nodiscard]] std::string authority() const;
  [[nodiscard]] bool has_usual_port() const { return port == (is_secure ? 443 : 80); }
};

// Errors: E_PROTO_003 for what is no URL of http or https, and for one with a user's name or a password.
[[nodiscard]] Expected<ImageUrl> parse_image_url(std::string_view text);
// Where a redirect leads to from `base`. Errors: as parse_image_url; from https to http.
[[nodiscard]] Expected<ImageUrl> redirected(const ImageUrl& base, std::string_view location);

// Whether the URL may be asked for, as far as its words say. Errors: E_PROTO_003.
[[nodiscard]] Expected<Unit> check_allowed(const ImageUrl& url, const ImageUrlRules& rules);
// Whether the address is one of the open internet: not this machine's, a private or shared network's, of one link, of many
// receivers, reserved, for documentation, or one that stands for another address (RFC 6890 and its successors).
[[nodiscard]] bool is_public(const boost::asio::ip::address& address);
// Whether the URL may be asked for at this address, which its host has.
[[nodiscard]] bool is_allowed_at(const ImageUrl& url, const boost::asio::ip::address& address, const ImageUrlRules& rules);

}  // namespace uma::capability
