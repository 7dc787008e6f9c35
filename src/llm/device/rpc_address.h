// The address of an RPC server, as the setting `devices` names it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace uma::llm {

inline constexpr std::string_view kRpcPrefix = "rpc://";

struct RpcAddress {
  std::string host;  // A name or an IP address; an IPv6 address without brackets.
  std::uint16_t port = 0;

  // The address as "machine:50052" or "[::1]:50052".
  [[nodiscard]] std::string text() const;
  bool operator==(const RpcAddress&) const = default;
};

[[nodiscard]] constexpr bool is_rpc_name(std::string_view name) {
  return name.starts_with(kRpcPrefix);
}

struct RpcName {
  RpcAddress address;
  std::optional<std::uint32_t> device;  // Nullopt: all of the server.

  bool operator==(const RpcName&) const = default;
};

// Reads "rpc://HOST:PORT" or "rpc://HOST:PORT#DEVICE", where an IPv6 address has brackets.
[[nodiscard]] std::optional<RpcName> rpc_name_of(std::string_view name);

}  // namespace uma::llm
