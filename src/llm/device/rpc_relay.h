// Stands between the library's RPC client, which ends the process if a server fails it, and a server. The library connects to a
// port of the loopback; this relay forwards its requests, and answers them itself once the server is lost. It uses no header of
// the library.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/system/descriptors.h"
#include "base/system/unique_fd.h"
#include "core/error.h"
#include "llm/device/rpc_connect.h"
#include "llm/device/rpc_exchange.h"

namespace uma::llm {

// Any thread. Invariants: (1) a connection of the library is never closed before the library closes it. (2) Once an answer was
// made up, is_lost() is true before the library reads it. (3) Only sockets of this process are served. A relay that has lost
// its server stays so: a later load uses a new relay.
class RpcRelay {
 public:
  // Opens the port and starts the thread `uma-rpc`. Errors: E_IO_001.
  [[nodiscard]] static Expected<std::unique_ptr<RpcRelay>> open(RpcAddress address, RpcVersion version, RpcLimits limits);
  // Requires: the library has no connection to it, or will not use it again.
  ~RpcRelay();
  RpcRelay(const RpcRelay&) = delete;
  RpcRelay& operator=(const RpcRelay&) = delete;

  // Connects to the server for the library's next connection, which must follow. Blocks up to the limits. Errors: E_MODEL_002
  // with the address and the reason.
  [[nodiscard]] Expected<std::vector<RpcDevice>> connect();
  // Closes a connection to the server that the library has not used, so that the server can serve others.
  void disconnect();

  // Where the library connects to, such as "127.0.0.1:40123".
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  [[nodiscard]] const RpcAddress& address() const { return address_; }
  // Bytes of the library's buffers on a device of the server.
  [[nodiscard]] std::uint64_t bytes_allocated(std::size_t device) const;
  [[nodiscard]] bool is_lost() const { return is_lost_.load(std::memory_order_acquire); }
  // "the RPC server HOST:PORT is lost: " with the reason. Requires: is_lost().
  [[nodiscard]] Error loss(ErrorCode code) const;

 private:
  RpcRelay(RpcAddress address, RpcVersion version, RpcLimits limits, UniqueFd listener, Pipe wake, std::string endpoint);

  // The thread.
  void run();
  // Adds a connection of this process to `clients`; closes others.
  void accept_client(std::deque<UniqueFd>& clients) const;
  void note_allocations(const RpcExchange& exchange);
  void lose(RpcExchange& exchange, UniqueFd& server, std::string reason);
  // Serves one connection of the library until the library closes it, or the relay ends.
  void serve(UniqueFd client, std::deque<UniqueFd>& clients);
  // Moves what can be moved without waiting. False: the library has closed its connection.
  [[nodiscard]] bool move_library_bytes(RpcExchange& exchange, int client, short events);
  [[nodiscard]] static bool send_to_library(RpcExchange& exchange, int client);
  // The result is why the server is lost.
  [[nodiscard]] std::optional<std::string> move_server_bytes(RpcExchange& exchange, int server, short events, bool& has_moved);

  const RpcAddress address_;
  const RpcVersion version_;
  const RpcLimits limits_;
  const UniqueFd listener_;
  const Pipe wake_;  // A byte in it ends the thread.
  const std::string endpoint_;
  std::atomic<bool> is_lost_{false};
  std::array<std::atomic<std::uint64_t>, kRpcDevicesMax> allocated_{};
  mutable Mutex mutex_;
  std::string reason_ GUARDED_BY(mutex_);
  UniqueFd prepared_ GUARDED_BY(mutex_);  // Connected to the server, for the library's next connection.
  std::vector<std::byte> buffer_;         // Owned by the thread.
  std::thread thread_;
};

}  // namespace uma::llm
