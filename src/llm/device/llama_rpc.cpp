#include "llm/device/llama_rpc.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <format>
#include <map>
#include <utility>

#include <ggml-rpc.h>

#include "base/mutex.h"
#include "llm/llama_guard.h"

namespace uma::llm {
namespace {

using AddServer = ggml_backend_reg_t (*)(const char* endpoint);

std::atomic<std::chrono::milliseconds> answer_limit{RpcLimits{}.answer};

constexpr RpcVersion kLibraryVersion{RPC_PROTO_MAJOR_VERSION, RPC_PROTO_MINOR_VERSION, RPC_PROTO_PATCH_VERSION};

constexpr std::chrono::seconds kKept{5};

// A server that the process knows. The library never forgets an endpoint, so a relay is used again until it has lost its
// server, or the server has other devices.
struct KnownServer {
  std::shared_ptr<RpcRelay> relay;
  ggml_backend_reg_t registry = nullptr;  // Null: the library does not know the relay's endpoint yet.
  std::vector<RpcDevice> devices;         // When it came to know it.
  std::weak_ptr<RpcServer> used;
};

// A server with which there was a connection.
struct ShownServer {
  std::shared_ptr<RpcRelay> relay;
  std::vector<Device> devices;
  std::shared_ptr<RpcServer> kept;  // Until kept_until.
  std::chrono::steady_clock::time_point kept_until;
};

// While a thread connects, others wait for it only if they connect, too.
struct KnownServers {
  Mutex connecting;
  std::map<std::string, KnownServer> by_address GUARDED_BY(connecting);
  Mutex mutex;  // Taken after `connecting`.
  std::map<std::string, ShownServer> shown GUARDED_BY(mutex);

  // Servers are freed without the lock, because the library may wait for one.
  void keep(const std::string& address, const std::shared_ptr<RpcServer>& server) {
    std::shared_ptr<RpcServer> former;
    const MutexLock lock(mutex);
    ShownServer& known = shown[address];
    former = std::exchange(known.kept, server);
    known.kept_until = std::chrono::steady_clock::now() + kKept;
  }
  void show(const std::string& address, const std::shared_ptr<RpcRelay>& relay, const std::vector<Device>& devices) {
    const MutexLock lock(mutex);
    ShownServer& known = shown[address];
    known.relay = relay;
    known.devices = devices;
  }
  void hide(const std::string& address) {
    std::map<std::string, ShownServer>::node_type former;
    const MutexLock lock(mutex);
    former = shown.extract(address);
  }
};

KnownServers& known_servers() {
  static auto* const known = new KnownServers();  // Never freed: threads of the library may live until the process ends.
  return *known;
}

// The library's devices are never freed.
struct RpcDeviceNames {
  Mutex mutex;
  std::map<ggml_backend_dev_t, std::string> by_device GUARDED_BY(mutex);
};

RpcDeviceNames& rpc_device_names() {
  static auto* const names = new RpcDeviceNames();
  return *names;
}

bool are_same(const std::vector<RpcDevice>& devices, const std::vector<RpcDevice>& others) {
  return std::ranges::equal(devices, others, [](const RpcDevice& one, const RpcDevice& other) {
    return one.memory_total == other.memory_total && one.alignment == other.alignment &&
           one.buffer_bytes_max == other.buffer_bytes_max;
  });
}

// The protocol does not tell what hardware a device is. Its memory differs where the hardware does; whole GiB, because a
// machine's memory is not the same to the byte at every start.
Device described(const RpcAddress& address, std::size_t index, std::size_t count, const RpcDevice& device) {
  const std::string suffix = count == 1 ? "" : std::format("#{}", index);
  const auto gib = static_cast<std::uint64_t>(std::llround(static_cast<double>(device.memory_total) / (1u << 30)));
  return {.name = std::format("{}{}{}", kRpcPrefix, address.text(), suffix),
          .description = std::format("{}{}, {} GiB, alignment {}", address.text(), suffix, gib, device.alignment),
          .backend = "RPC",
          .hardware = std::format("{}{}{}", kRpcPrefix, address.text(), suffix),
          .kind = DeviceKind::gpu,
          .total = device.memory_total,
          .free = device.memory_free};
}

Expected<AddServer> find_backend(const RpcAddress& address) {
  const auto cannot = [&](const std::string& reason) {
    return fail(ErrorCode::model_load, std::format("devices: {}{}: {}", kRpcPrefix, address.text(), reason));
  };
  auto* const backend = ggml_backend_reg_by_name("RPC");
  if (backend == nullptr) return cannot("the library's RPC backend is not installed (package libggml0-backend-rpc)");
  if (kLibraryVersion.major != kRpcKnown.major || kLibraryVersion.minor != kRpcKnown.minor) {
    return cannot(std::format("the library speaks version {} of the RPC protocol, which this umad does not know",
                              kLibraryVersion.text()));
  }
  const auto add = reinterpret_cast<AddServer>(ggml_backend_reg_get_proc_address(backend, "ggml_backend_rpc_add_server"));
  if (add == nullptr) return cannot("the library's RPC backend cannot add servers");
  return add;
}

std::unexpected<Error> cannot_use(const RpcRelay& relay, const char* reason) {
  if (relay.is_lost()) return std::unexpected(relay.loss(ErrorCode::model_load));
  return fail(ErrorCode::model_load, std::format("devices: {}{}: {}", kRpcPrefix, relay.address().text(), reason));
}

// Connects the relay to its server, and makes it known to the library. Afterwards the relay is ready for the library's next
// connection.
Expected<std::vector<RpcDevice>> prepare(const RpcAddress& address, AddServer add, KnownServer& known) {
  const bool is_new = known.relay == nullptr || known.relay->is_lost();
  if (is_new) {
    auto relay = RpcRelay::open(address, kLibraryVersion, {.answer = answer_limit.load()});
    if (!relay) return std::unexpected(relay.error());
    known = KnownServer{};
    known.relay = *std::move(relay);
  }
  auto devices = known.relay->connect();
  if (!devices) return devices;
  if (known.registry == nullptr) {
    // The library connects for the number of devices only.
    known.registry = add(known.relay->endpoint().c_str());
    if (known.registry == nullptr || ggml_backend_reg_dev_count(known.registry) != devices->size()) {
      known.registry = nullptr;
      return cannot_use(*known.relay, "its devices are not known");
    }
    known.devices = *devices;
    devices = known.relay->connect();
  }
  return devices;
}

}  // namespace

void set_rpc_answer_limit(std::chrono::milliseconds limit) {
  answer_limit = std::max(limit, std::chrono::milliseconds(100));
}

Expected<std::shared_ptr<RpcServer>> RpcServer::at(const RpcAddress& address) {
  const auto add = find_backend(address);
  if (!add) return std::unexpected(add.error());
  KnownServers& all = known_servers();
  const MutexLock lock(all.connecting);
  KnownServer& known = all.by_address[address.text()];
  if (auto used = known.used.lock(); used && !used->relay().is_lost()) {
    all.keep(address.text(), used);
    return used;
  }
  return guarded(ErrorCode::model_load, "connecting to an RPC server", [&]() -> Expected<std::shared_ptr<RpcServer>> {
    auto devices = prepare(address, *add, known);
    if (devices && !are_same(*devices, known.devices)) {
      all.hide(address.text());
      known = KnownServer{};
      devices = prepare(address, *add, known);
    }
    if (!devices) return std::unexpected(devices.error());
    std::vector<ggml_backend_dev_t> handles;
    std::vector<Device> shown_devices;
    for (std::size_t i = 0; i < devices->size(); ++i) {
      handles.push_back(ggml_backend_reg_dev_get(known.registry, i));
      shown_devices.push_back(described(address, i, devices->size(), (*devices)[i]));
      const MutexLock names_lock(rpc_device_names().mutex);
      rpc_device_names().by_device[handles.back()] = shown_devices.back().name;
    }
    auto* const holder = ggml_backend_dev_init(handles.front(), nullptr);
    if (holder == nullptr) {
      known.relay->disconnect();
      return cannot_use(*known.relay, "the library does not connect to it");
    }
    all.show(address.text(), known.relay, shown_devices);
    std::shared_ptr<RpcServer> server(new RpcServer(known.relay, holder, std::move(handles), std::move(shown_devices)));
    if (known.relay->is_lost()) return cannot_use(*known.relay, "");
    known.used = server;
    all.keep(address.text(), server);
    return server;
  });
}

std::string device_name(ggml_backend_dev_t device) {
  RpcDeviceNames& names = rpc_device_names();
  const MutexLock lock(names.mutex);
  const auto found = names.by_device.find(device);
  return found == names.by_device.end() ? ggml_backend_dev_name(device) : found->second;
}

std::vector<DeviceMemory> rpc_memory() {
  std::vector<std::shared_ptr<RpcServer>> unused;  // Freed without the lock: the library may wait for the server.
  std::vector<DeviceMemory> memory;
  KnownServers& all = known_servers();
  const MutexLock lock(all.mutex);
  for (auto& [address, known] : all.shown) {
    const bool is_lost = known.relay->is_lost();
    if (known.kept && (is_lost || known.kept_until < std::chrono::steady_clock::now())) unused.push_back(std::move(known.kept));
    for (std::size_t i = 0; i < known.devices.size() && !is_lost; ++i) {
      const Device& device = known.devices[i];
      const std::uint64_t taken = std::min(known.relay->bytes_allocated(i), device.free);
      memory.push_back({.name = device.name, .total = device.total, .free = device.free - taken});
    }
  }
  return memory;
}

RpcServer::RpcServer(std::shared_ptr<RpcRelay> relay, ggml_backend_t holder, std::vector<ggml_backend_dev_t> handles,
                     std::vector<Device> devices)
    : relay_(std::move(relay)), holder_(holder), handles_(std::move(handles)), devices_(std::move(devices)) {}

RpcServer::~RpcServer() {
  ggml_backend_free(holder_);
}

void RpcServers::add(std::shared_ptr<RpcServer> server) {
  const auto place = std::ranges::lower_bound(servers_, server);
  if (place == servers_.end() || *place != server) servers_.insert(place, std::move(server));
}

bool RpcServers::are_lost() const {
  return std::ranges::any_of(servers_, [](const auto& server) { return server->relay().is_lost(); });
}

Expected<Unit> RpcServers::check(ErrorCode code) const {
  for (const auto& server : servers_) {
    if (server->relay().is_lost()) return std::unexpected(server->relay().loss(code));
  }
  return Unit{};
}

std::vector<std::unique_lock<std::mutex>> RpcServers::lock() const {
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& server : servers_) locks.emplace_back(server->computing());
  return locks;
}

}  // namespace uma::llm
