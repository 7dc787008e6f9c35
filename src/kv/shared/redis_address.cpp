#include "kv/shared/redis_address.h"

#include <algorithm>
#include <charconv>
#include <format>
#include <system_error>

namespace uma::kv {
namespace {

constexpr std::string_view kPlain = "redis://";
constexpr std::string_view kEncrypted = "rediss://";

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string RedisAddress::text() const {
  const bool is_ipv6 = host.contains(':');
  return std::format("{}{}{}{}:{}/{}", is_encrypted ? kEncrypted : kPlain, is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", port,
                     database);
}

bool is_redis_address(std::string_view text) {
  return text.starts_with(kPlain) || text.starts_with(kEncrypted);
}

bool has_redis_password(std::string_view text) {
  if (!is_redis_address(text)) return false;
  text.remove_prefix(text.find("//") + 2);
  const std::string_view user = text.substr(0, text.substr(0, text.find('/')).rfind('@') + 1);
  return user.contains(':');
}

std::expected<RedisAddress, std::string> parse_redis_address(std::string_view text) {
  const auto expected = std::unexpected("redis://[USER@]HOST[:PORT][/DATABASE], or rediss:// with TLS");
  if (!is_redis_address(text)) return expected;
  RedisAddress address;
  address.is_encrypted = text.starts_with(kEncrypted);
  text.remove_prefix(address.is_encrypted ? kEncrypted.size() : kPlain.size());
  if (const auto slash = text.find('/'); slash != std::string_view::npos) {
    if (slash + 1 < text.size() && !read_number(text.substr(slash + 1), address.database)) return expected;
    text = text.substr(0, slash);
  }
  if (const auto at = text.rfind('@'); at != std::string_view::npos) {
    address.user = text.substr(0, at);
    if (address.user.contains(':')) return std::unexpected("an address without a password");
    text.remove_prefix(at + 1);
  }
  const bool is_ipv6 = text.starts_with('[');
  const auto host_end = is_ipv6 ? text.find(']') : text.find(':');
  if (is_ipv6 && host_end == std::string_view::npos) return expected;
  address.host = is_ipv6 ? text.substr(1, host_end - 1) : text.substr(0, host_end);
  std::string_view rest = host_end == std::string_view::npos ? std::string_view() : text.substr(host_end + (is_ipv6 ? 1 : 0));
  if (!rest.empty() && (rest[0] != ':' || !read_number(rest.substr(1), address.port))) return expected;
  const auto is_odd = [](char c) { return c <= ' ' || c == '?' || c == '#'; };
  if (address.host.empty() || address.port == 0 || std::ranges::any_of(address.host, is_odd)) return expected;
  return address;
}

}  // namespace uma::kv
