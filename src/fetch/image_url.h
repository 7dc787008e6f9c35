// The rules for the addresses of images. A client chooses the URL, and the daemon may reach places that the client cannot: it
// is behind the firewall, and near services that trust local connections. So only public addresses are allowed, unless the
// configuration names a host. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/image.h"

namespace uma::fetch {

inline constexpr std::size_t kImageUrlBytesMax = 8'192;
inline constexpr int kImageRedirectsMax = 3;

struct ImageUrl {
  bool is_secure = false;  // True for https.
  std::string host;        // Lower case; an IPv6 address has no brackets.
  std::uint16_t port = 0;
  std::string target;  // Path and query.

  // The form in ImageUrlRules::hosts, and in the Host header if the port is not the default.
  [[nodiscard]] std::string authority() const;
  [[nodiscard]] bool has_usual_port() const { return port == (is_secure ? 443 : 80); }
};

// Errors: E_PROTO_003 for text that is not an http or https URL, and for a URL with a user name or a password.
[[nodiscard]] Expected<ImageUrl> parse_image_url(std::string_view text);
// The target of a redirect from `base`. Errors: as parse_image_url(); also from https to http.
[[nodiscard]] Expected<ImageUrl> redirected(const ImageUrl& base, std::string_view location);

// Whether the rules allow the URL, before its host is looked up. Errors: E_PROTO_003.
[[nodiscard]] Expected<Unit> check_allowed(const ImageUrl& url, const ImageUrlRules& rules);
// The 4 bytes of an IPv4 address or the 16 bytes of an IPv6 address, in network order.
using AddressBytes = std::span<const unsigned char>;
// Whether the address is on the public internet: not loopback, private, shared, link-local, multicast, reserved, for
// documentation, or an embedding of another address (RFC 6890 and its successors).
[[nodiscard]] bool is_public(AddressBytes address);
// Addresses that begin with the first `bits` of `address`.
struct Network {
  std::vector<unsigned char> address;
  unsigned bits = 0;
};
// Whether the rules allow the URL at this address of its host. `own` are the daemon's own addresses and those of its
// neighbours, which trust it as others do not, although the addresses may be public.
[[nodiscard]] bool is_allowed_at(const ImageUrl& url, AddressBytes address, const ImageUrlRules& rules,
                                 std::span<const Network> own);

}  // namespace uma::fetch
