// Connects to an RPC server and asks what the library must not ask first, because it ends the process where the server does not
// answer as it expects.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <string>
#include <vector>

#include "base/system/unique_fd.h"
#include "llm/device/devices.h"
#include "llm/device/rpc_address.h"
#include "llm/device/rpc_exchange.h"

namespace uma::llm {

struct RpcLimits {
  std::chrono::milliseconds connect{2'000};    // For each IP address of the host.
  std::chrono::milliseconds handshake{5'000};  // For each answer before the library connects. A server may be freeing memory.
  std::chrono::milliseconds answer{
      kRpcAnswerLimit};  // Time without a byte while the server has something to answer or to read.
};

inline constexpr std::uint32_t kRpcDevicesMax = 16;  // Limit of a server; the library uses at most as many devices at once.

// A device of a server, as far as the protocol describes it.
struct RpcDevice {
  std::uint64_t memory_total = 0;
  std::uint64_t memory_free = 0;
  std::uint64_t alignment = 0;
  std::uint64_t buffer_bytes_max = 0;
};

struct RpcConnection {
  UniqueFd socket;  // Non-blocking. The server has answered HELLO.
  std::vector<RpcDevice> devices;
};

// Blocks up to the limits, and for the lookup of the host's name. `version`: what the library speaks. The error is a reason to
// follow the server's address, such as "cannot connect: Connection refused".
[[nodiscard]] std::expected<RpcConnection, std::string> connect_rpc(const RpcAddress& address, RpcVersion version,
                                                                    const RpcLimits& limits);

}  // namespace uma::llm
