#include "fetch/image_url.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <charconv>
#include <format>
#include <netinet/in.h>
#include <optional>
#include <utility>

#include "base/text.h"

namespace uma::fetch {
namespace {

std::unexpected<Error> url_refused(std::string_view why) {
  return fail(ErrorCode::proto_field, std::format("the image's URL {}", why));
}

// Whether all characters are printable ASCII; otherwise a part of a URL could be mistaken for another part, or for a line of
// the request.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f && !std::string_view("\"<>\\^`{|}").contains(c); });
}

bool is_host_name(std::string_view host) {
  return !host.empty() && host.size() <= 253 && host.front() != '.' && std::ranges::all_of(host, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
  });
}

std::optional<std::uint16_t> port_of(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (problem != std::errc() || end != text.data() + text.size() || port == 0) return std::nullopt;
  return port;
}

bool is_ipv6(const std::string& text) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

// The forms are HOST, HOST:PORT, [ADDRESS] and [ADDRESS]:PORT.
Expected<Unit> read_authority(std::string_view text, ImageUrl& url) {
  if (text.contains('@')) return url_refused("must not have a user name or a password");
  std::string_view rest = text;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos || !is_ipv6(std::string(text.substr(1, end - 1)))) return url_refused("has no host");
    url.host = lower_ascii(text.substr(1, end - 1));
    rest.remove_prefix(end + 1);
  } else {
    url.host = lower_ascii(text.substr(0, text.find(':')));
    rest.remove_prefix(url.host.size());
    if (!is_host_name(url.host)) return url_refused("has no host");
  }
  url.port = url.is_secure ? 443 : 80;
  if (rest.empty()) return Unit{};
  const auto port = rest.starts_with(':') ? port_of(rest.substr(1)) : std::nullopt;
  if (!port) return url_refused("has no valid port behind its colon");
  url.port = *port;
  return Unit{};
}

bool begins_with(AddressBytes address, AddressBytes network, unsigned bits) {
  unsigned at = 0;
  for (const unsigned char byte : network) {
    const unsigned rest = bits > at * 8 ? std::min(8u, bits - at * 8) : 0;
    const auto mask = static_cast<unsigned char>(0xff00u >> rest);
    if ((address[at] & mask) != (byte & mask)) return false;
    ++at;
  }
  return true;
}

bool begins_with(AddressBytes address, std::initializer_list<unsigned char> network, unsigned bits) {
  return begins_with(address, AddressBytes(network.begin(), network.size()), bits);
}

bool is_public_v4(AddressBytes address) {
  struct Special {
    std::array<unsigned char, 3> begin;
    unsigned bits;
  };
  constexpr std::array<Special, 14> kSpecial = {{{{0, 0, 0}, 8},       // This network.
                                                 {{10, 0, 0}, 8},      // Private.
                                                 {{100, 64, 0}, 10},   // Shared by customers of a provider.
                                                 {{127, 0, 0}, 8},     // Loopback.
                                                 {{169, 254, 0}, 16},  // Link-local.
                                                 {{172, 16, 0}, 12},   // Private.
                                                 {{192, 0, 0}, 24},    // Protocols.
                                                 {{192, 0, 2}, 24},    // Documentation.
                                                 {{192, 88, 99}, 24},  // Relays to IPv6.
                                                 {{192, 168, 0}, 16},  // Private.
                                                 {{198, 18, 0}, 15},   // Measurements.
                                                 {{198, 51, 100}, 24},
                                                 {{203, 0, 113}, 24},
                                                 {{224, 0, 0}, 3}}};  // Multicast and reserved.
  return std::ranges::none_of(
      kSpecial, [&](const Special& network) { return begins_with(address, AddressBytes(network.begin), network.bits); });
}

bool is_public_v6(AddressBytes address) {
  if (!begins_with(address, {0x20}, 3)) return false;            // Outside 2000::/3: loopback, mapped, local, multicast.
  return !begins_with(address, {0x20, 0x01, 0x00}, 23)           // Protocols, including Teredo.
         && !begins_with(address, {0x20, 0x01, 0x0d, 0xb8}, 32)  // Documentation.
         && !begins_with(address, {0x20, 0x02}, 16)              // 6to4, which embeds an IPv4 address.
         && !begins_with(address, {0x3f, 0xff, 0x00}, 20);       // Documentation.
}

bool is_within(AddressBytes address, const Network& network) {
  return address.size() == network.address.size() && begins_with(address, network.address, network.bits);
}

bool is_listed(const ImageUrl& url, const ImageUrlRules& rules) {
  return std::ranges::contains(rules.hosts, url.authority());
}

}  // namespace

std::string ImageUrl::authority() const {
  return host.contains(':') ? std::format("[{}]:{}", host, port) : std::format("{}:{}", host, port);
}

Expected<ImageUrl> parse_image_url(std::string_view text) {
  if (text.size() > kImageUrlBytesMax) {
    return url_refused(std::format("has {} bytes; the limit is {}", text.size(), kImageUrlBytesMax));
  }
  if (!is_plain(text)) return url_refused("has characters that must be written as %XX");
  const std::size_t colon = text.find("://");
  const std::string scheme = lower_ascii(text.substr(0, colon));
  if (colon == std::string_view::npos || (scheme != "http" && scheme != "https")) {
    return url_refused("must begin with data:, file://, http:// or https://");
  }
  ImageUrl url{.is_secure = scheme == "https", .host = "", .port = 0, .target = ""};
  std::string_view rest = text.substr(colon + 3);
  rest = rest.substr(0, rest.find('#'));
  const std::size_t path = std::min(rest.find_first_of("/?"), rest.size());
  if (auto read = read_authority(rest.substr(0, path), url); !read) return std::unexpected(read.error());
  url.target = rest.substr(path);
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  return url;
}

Expected<ImageUrl> redirected(const ImageUrl& base, std::string_view location) {
  const std::string_view scheme = base.is_secure ? "https" : "http";
  const std::string_view path = std::string_view(base.target).substr(0, base.target.find('?'));
  std::string text;
  if (location.starts_with("//")) {
    text = std::format("{}:{}", scheme, location);
  } else if (location.starts_with('/')) {
    text = std::format("{}://{}{}", scheme, base.authority(), location);
  } else if (location.starts_with('?')) {
    text = std::format("{}://{}{}{}", scheme, base.authority(), path, location);
  } else if (const std::size_t colon = location.find(':'); colon < location.find_first_of("/?#")) {
    text = location;
  } else {
    text = std::format("{}://{}{}{}", scheme, base.authority(), path.substr(0, path.rfind('/') + 1), location);
  }
  auto url = parse_image_url(text);
  if (url && base.is_secure && !url->is_secure) return url_refused("leads from https to http");
  return url;
}

Expected<Unit> check_allowed(const ImageUrl& url, const ImageUrlRules& rules) {
  if (is_listed(url, rules)) return Unit{};
  if (!rules.allows_public) {
    return url_refused(
        std::format("has the host {}, which is not in vision.url_hosts: send the image's data", url.authority()));
  }
  if (!url.has_usual_port()) {
    return url_refused(
        std::format("has port {}: only ports 80 and 443 and the hosts of vision.url_hosts are allowed", url.port));
  }
  return Unit{};
}

bool is_public(AddressBytes address) {
  return (address.size() == 4 && is_public_v4(address)) || (address.size() == 16 && is_public_v6(address));
}

bool is_allowed_at(const ImageUrl& url, AddressBytes address, const ImageUrlRules& rules, std::span<const Network> own) {
  if (is_listed(url, rules)) return true;
  const bool is_own = std::ranges::any_of(own, [&](const Network& network) { return is_within(address, network); });
  return check_allowed(url, rules) && is_public(address) && !is_own;
}

}  // namespace uma::fetch
