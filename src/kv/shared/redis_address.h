// Addresses of Redis and Valkey servers: redis://[USER@]HOST[:PORT][/DATABASE], and rediss:// with TLS. Pure.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

namespace uma::kv {

struct RedisAddress {
  bool is_encrypted = false;
  std::string user{};  // Empty: the server's default user.
  std::string host{};
  std::uint16_t port = 6379;
  std::uint32_t database = 0;
  bool operator==(const RedisAddress&) const = default;

  // "redis://host:port/database", for logs.
  [[nodiscard]] std::string text() const;
};

[[nodiscard]] bool is_redis_address(std::string_view text);
// Whether the address has a password, which is not allowed: addresses are shown to people.
[[nodiscard]] bool has_redis_password(std::string_view text);
// The address, or what was expected. A password is refused.
[[nodiscard]] std::expected<RedisAddress, std::string> parse_redis_address(std::string_view text);

// Whether this program can connect with TLS: not every libhiredis can.
[[nodiscard]] bool redis_has_tls();

}  // namespace uma::kv
