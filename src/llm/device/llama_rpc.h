// The library's devices that are behind RPC servers. Internal to llm, because it includes the library's headers.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ggml-backend.h>

#include "core/error.h"
#include "llm/device/devices.h"
#include "llm/device/rpc_address.h"
#include "llm/device/rpc_relay.h"

namespace uma::llm {

// A connection of the library to a server, through a relay, for as long as this object lives. All models with devices of the
// server share it: a server serves one connection at a time.
class RpcServer {
 public:
  // The object of that server if it exists and is not lost, else a new connection, which blocks up to the limits of
  // rpc_connect.h. It is kept for some seconds, because a load asks several times. Any thread. Errors: E_MODEL_002 with the
  // address and the reason; E_IO_001 if this machine lacks a port or a descriptor.
  [[nodiscard]] static Expected<std::shared_ptr<RpcServer>> at(const RpcAddress& address);
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // "rpc://HOST:PORT" if there is one device, else "rpc://HOST:PORT#0" and so on.
  [[nodiscard]] const std::vector<Device>& devices() const { return devices_; }
  [[nodiscard]] ggml_backend_dev_t handle(std::size_t device) const { return handles_[device]; }
  [[nodiscard]] const RpcRelay& relay() const { return *relay_; }
  // Held while a graph is computed. The library notes the last graph of each device and sends only its number again; two
  // threads would mix that up, and the server would compute the other one's graph.
  [[nodiscard]] std::mutex& computing() const { return computing_; }

 private:
  RpcServer(std::shared_ptr<RpcRelay> relay, ggml_backend_t holder, std::vector<ggml_backend_dev_t> handles,
            std::vector<Device> devices);

  const std::shared_ptr<RpcRelay> relay_;
  ggml_backend* const holder_;  // Keeps the library's connection.
  const std::vector<ggml_backend_dev_t> handles_;
  const std::vector<Device> devices_;
  mutable std::mutex computing_;
};

// The memory of the devices of servers that were used and are not lost: what was free before this process took some, less what
// it has. Asks no server, and waits for no thread that connects to one.
[[nodiscard]] std::vector<DeviceMemory> rpc_memory();

// The device's name in DeviceOptions: the library's, but "rpc://…" for a device of a server.
[[nodiscard]] std::string device_name(ggml_backend_dev_t device);

// The servers of a model's devices; none for most models. A value: models and contexts have copies, which must be freed after
// their parts of the library.
class RpcServers {
 public:
  void add(std::shared_ptr<RpcServer> server);
  [[nodiscard]] bool are_lost() const;
  // Fails with `code` if one is lost: what was computed since then is wrong.
  [[nodiscard]] Expected<Unit> check(ErrorCode code) const;
  // Keeps other threads from computing on these servers.
  [[nodiscard]] std::vector<std::unique_lock<std::mutex>> lock() const;

 private:
  std::vector<std::shared_ptr<RpcServer>> servers_;  // In the order of their addresses in memory, so that locks have one order.
};

}  // namespace uma::llm
