// Ids as distinct types, so that the compiler detects a wrong one.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace uma {

using Token = std::int32_t;  // Index into the model's vocabulary.
inline constexpr Token kNoToken = -1;

// One request inside this process. Clients' own ids stay in the server.
struct RequestId {
  std::uint64_t value = 0;
  auto operator<=>(const RequestId&) const = default;
};

// A conversation for its whole life: 32 random hexadecimal digits, made by the engine.
struct SessionId {
  std::string value;
  auto operator<=>(const SessionId&) const = default;
  [[nodiscard]] bool empty() const { return value.empty(); }
};

// The owner of sessions and prefixes. The Unix socket and keyless HTTP on loopback share one tenant, the daemon's uid.
struct TenantId {
  std::string value;
  auto operator<=>(const TenantId&) const = default;
};

}  // namespace uma

template <>
struct std::hash<uma::RequestId> {
  std::size_t operator()(const uma::RequestId& id) const noexcept { return std::hash<std::uint64_t>()(id.value); }
};
template <>
struct std::hash<uma::SessionId> {
  std::size_t operator()(const uma::SessionId& id) const noexcept { return std::hash<std::string>()(id.value); }
};
template <>
struct std::hash<uma::TenantId> {
  std::size_t operator()(const uma::TenantId& id) const noexcept { return std::hash<std::string>()(id.value); }
};
