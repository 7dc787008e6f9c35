// GPUs with faults, for tests: preloaded into umad, it stands in front of the library's functions on devices. Its orders are
// the lines of the file that UMA_FAULTY_DEVICE names, which may change at any time. A device at the end of a line limits it to
// that device; else it is for every GPU:
//   memory BYTES     the device has so much memory: what exceeds it is not allocated
//   hidden_limit BYTES   the same, but the device says that it has more
//   lose             the device is lost, until the end of the process: computations, transfers and waits throw, as those of
//                    Vulkan do. So does the end of a context whose computation was not waited for, which ends the process
//   fail_compute N   the next N computations return that memory is short
//   throw_compute N  the next N computations throw that memory is short
//   throw_shift N    the next N rotations of cached keys, for removed tokens, throw after they were computed
//   fail_shift N     the same, but they return an error
//   slow MS          each computation takes so much longer
// N counts from each change of the file. What a backend allocates for itself, such as room for computations, is not counted.
// To the file that UMA_FAULTY_DEVICE_BYTES names, it adds a line "DEVICE BYTES" whenever the allocated bytes of a device
// change.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ggml-backend.h>

namespace {

// The library's own function.
template <class Function>
Function* original(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool is_gpu(ggml_backend_dev_t device) {
  if (device == nullptr) return false;
  const auto type = ggml_backend_dev_type(device);
  return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

struct Order {
  std::string verb;
  std::uint64_t number = 0;
  std::string device;  // Empty: every GPU.
};

// Any thread.
class Faults {
 public:
  // Never destroyed: the library frees buffers until the end of the process.
  static Faults& instance() {
    static auto* const faults = new Faults();
    return *faults;
  }

  [[nodiscard]] bool is_lost(ggml_backend_dev_t device) {
    if (!is_gpu(device)) return false;
    const std::lock_guard lock(mutex_);
    if (find("lose", device) != nullptr) lost_.insert(device);
    return lost_.contains(device);
  }
  [[nodiscard]] std::uint64_t number_of(const char* verb, ggml_backend_dev_t device) {
    if (!is_gpu(device)) return 0;
    const std::lock_guard lock(mutex_);
    const Order* order = find(verb, device);
    return order == nullptr ? 0 : order->number;
  }
  // Takes one from the order's number.
  [[nodiscard]] bool takes_one(const char* verb, ggml_backend_dev_t device) {
    if (!is_gpu(device)) return false;
    const std::lock_guard lock(mutex_);
    Order* order = find(verb, device);
    if (order == nullptr || order->number == 0) return false;
    --order->number;
    return true;
  }
  // Nullopt: the device has its own memory.
  [[nodiscard]] std::optional<std::uint64_t> memory_of(ggml_backend_dev_t device) {
    if (!is_gpu(device)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const Order* order = find("memory", device);
    return order == nullptr ? std::nullopt : std::optional(order->number);
  }

  // Bytes that can be allocated; nullopt: what the device has.
  [[nodiscard]] std::optional<std::uint64_t> limit_of(ggml_backend_dev_t device) {
    if (const auto memory = memory_of(device)) return memory;
    const std::uint64_t hidden = number_of("hidden_limit", device);
    return hidden == 0 ? std::nullopt : std::optional(hidden);
  }

  // The backend computes until end_work(), which returns whether it did.
  void begin_work(ggml_backend_t backend) {
    const std::lock_guard lock(mutex_);
    working_.insert(backend);
  }
  [[nodiscard]] bool end_work(ggml_backend_t backend) {
    const std::lock_guard lock(mutex_);
    return working_.erase(backend) > 0;
  }

  [[nodiscard]] std::uint64_t used(ggml_backend_dev_t device) {
    const std::lock_guard lock(mutex_);
    return used_[device];
  }
  void add(ggml_backend_buffer_t buffer, ggml_backend_dev_t device, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    buffers_[buffer] = {device, bytes};
    used_[device] += bytes;
    report(device);
  }
  void remove(ggml_backend_buffer_t buffer) {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end()) return;
    auto* const device = found->second.first;
    used_[device] -= found->second.second;
    buffers_.erase(found);
    report(device);
  }

 private:
  void report(ggml_backend_dev_t device) {
    if (bytes_path_ != nullptr)
      std::ofstream(bytes_path_, std::ios::app) << ggml_backend_dev_name(device) << ' ' << used_[device] << '\n';
  }

  Order* find(std::string_view verb, ggml_backend_dev_t device) {
    read_orders();
    for (Order& order : orders_) {
      if (order.verb == verb && (order.device.empty() || order.device == ggml_backend_dev_name(device))) return &order;
    }
    return nullptr;
  }

  void read_orders() {
    struct stat now{};
    if (path_ == nullptr || ::stat(path_, &now) != 0) return orders_.clear();
    if (now.st_ino == seen_.st_ino && now.st_size == seen_.st_size && now.st_mtim.tv_sec == seen_.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen_.st_mtim.tv_nsec) {
      return;
    }
    seen_ = now;
    orders_.clear();
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      Order order;
      words >> order.verb;
      if (order.verb != "lose") words >> order.number;
      words >> order.device;
      if (!order.verb.empty()) orders_.push_back(std::move(order));
    }
  }

  const char* const path_ = std::getenv("UMA_FAULTY_DEVICE");
  const char* const bytes_path_ = std::getenv("UMA_FAULTY_DEVICE_BYTES");
  std::mutex mutex_;
  struct stat seen_{};
  std::vector<Order> orders_;
  std::set<ggml_backend_dev_t> lost_;
  std::set<ggml_backend_t> working_;
  std::unordered_map<ggml_backend_buffer_t, std::pair<ggml_backend_dev_t, std::uint64_t>> buffers_;
  std::unordered_map<ggml_backend_dev_t, std::uint64_t> used_;
};

void check(ggml_backend_dev_t device, const char* call) {
  if (Faults::instance().is_lost(device)) throw std::runtime_error(std::string(call) + ": ErrorDeviceLost");
}

// A lost device computes no more, while this one would go on with memory that is being freed: it is waited for.
void check(ggml_backend_t backend, const char* call) {
  static auto* const wait = original<decltype(ggml_backend_synchronize)>("ggml_backend_synchronize");
  auto* const device = ggml_backend_get_device(backend);
  if (Faults::instance().is_lost(device)) wait(backend);
  check(device, call);
}

ggml_backend_dev_t device_of(ggml_backend_buffer_t buffer) {
  return buffer == nullptr ? nullptr : ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
}

// Null for memory that the processor can use, too.
ggml_backend_dev_t device_of(const ggml_tensor* tensor) {
  auto* const buffer = tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
  return buffer == nullptr || ggml_backend_buffer_is_host(buffer) ? nullptr : device_of(buffer);
}

std::optional<ggml_status> fault_of_compute(ggml_backend_t backend) {
  auto* const device = ggml_backend_get_device(backend);
  Faults& faults = Faults::instance();
  faults.begin_work(backend);
  check(backend, "vk::Queue::submit");
  if (const auto ms = faults.number_of("slow", device); ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  if (faults.takes_one("throw_compute", device)) throw std::runtime_error("vk::Device::allocateMemory: ErrorOutOfDeviceMemory");
  if (faults.takes_one("fail_compute", device)) return GGML_STATUS_ALLOC_FAILED;
  return std::nullopt;
}

// Whether the graph rotates keys of the cache and computes nothing else.
bool rotates_keys(ggml_cgraph* graph) {
  bool rotates = false;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_op operation = ggml_graph_node(graph, i)->op;
    if (operation == GGML_OP_MUL_MAT) return false;
    rotates |= operation == GGML_OP_ROPE;
  }
  return rotates;
}

ggml_status with_fault_of_rotation(ggml_backend_t backend, ggml_cgraph* graph, ggml_status status) {
  auto* const device = ggml_backend_get_device(backend);
  if (!is_gpu(device) || !rotates_keys(graph)) return status;
  ggml_backend_synchronize(backend);
  if (Faults::instance().takes_one("throw_shift", device)) throw std::runtime_error("vk::Queue::submit: ErrorOutOfHostMemory");
  return Faults::instance().takes_one("fail_shift", device) ? GGML_STATUS_FAILED : status;
}

}  // namespace

extern "C" {

// --- Memory

void ggml_backend_dev_memory(ggml_backend_dev_t device, std::size_t* free, std::size_t* total) {
  static auto* const next = original<decltype(ggml_backend_dev_memory)>("ggml_backend_dev_memory");
  next(device, free, total);
  const auto memory = Faults::instance().memory_of(device);
  if (!memory) return;
  const std::uint64_t used = Faults::instance().used(device);
  *total = *memory;
  *free = *memory - std::min(*memory, used);
}

void ggml_backend_dev_get_props(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  static auto* const next = original<decltype(ggml_backend_dev_get_props)>("ggml_backend_dev_get_props");
  next(device, props);
  ggml_backend_dev_memory(device, &props->memory_free, &props->memory_total);
}

ggml_backend_buffer_t ggml_backend_buft_alloc_buffer(ggml_backend_buffer_type_t type, std::size_t bytes) {
  static auto* const next = original<decltype(ggml_backend_buft_alloc_buffer)>("ggml_backend_buft_alloc_buffer");
  auto* const device = ggml_backend_buft_is_host(type) ? nullptr : ggml_backend_buft_get_device(type);
  if (bytes == 0 || !is_gpu(device)) return next(type, bytes);
  const auto memory = Faults::instance().limit_of(device);
  if (memory && Faults::instance().used(device) + bytes > *memory) {
    // As Vulkan does.
    std::cerr << "ggml_vulkan: Device memory allocation of size " << bytes
              << " failed.\nggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory" << std::endl;
    return nullptr;
  }
  auto* const buffer = next(type, bytes);
  if (buffer != nullptr) Faults::instance().add(buffer, device, bytes);
  return buffer;
}

void ggml_backend_buffer_free(ggml_backend_buffer_t buffer) {
  static auto* const next = original<decltype(ggml_backend_buffer_free)>("ggml_backend_buffer_free");
  if (buffer != nullptr) Faults::instance().remove(buffer);
  next(buffer);
}

void ggml_backend_free(ggml_backend_t backend) {
  static auto* const next = original<decltype(ggml_backend_free)>("ggml_backend_free");
  if (backend != nullptr && Faults::instance().end_work(backend)) {
    check(backend, "vk::Device::waitForFences");
  }
  next(backend);
}

// --- Computations

ggml_status ggml_backend_graph_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  static auto* const next = original<decltype(ggml_backend_graph_compute)>("ggml_backend_graph_compute");
  const auto fault = fault_of_compute(backend);
  return fault ? *fault : with_fault_of_rotation(backend, graph, next(backend, graph));
}

ggml_status ggml_backend_graph_compute_async(ggml_backend_t backend, ggml_cgraph* graph) {
  static auto* const next = original<decltype(ggml_backend_graph_compute_async)>("ggml_backend_graph_compute_async");
  const auto fault = fault_of_compute(backend);
  return fault ? *fault : with_fault_of_rotation(backend, graph, next(backend, graph));
}

void ggml_backend_synchronize(ggml_backend_t backend) {
  static auto* const next = original<decltype(ggml_backend_synchronize)>("ggml_backend_synchronize");
  check(backend, "vk::Device::waitForFences");
  next(backend);
  (void)Faults::instance().end_work(backend);
}

// --- Transfers

void ggml_backend_buffer_clear(ggml_backend_buffer_t buffer, std::uint8_t value) {
  static auto* const next = original<decltype(ggml_backend_buffer_clear)>("ggml_backend_buffer_clear");
  if (!ggml_backend_buffer_is_host(buffer)) check(device_of(buffer), "vk::Device::waitForFences");
  next(buffer, value);
}

void ggml_backend_tensor_set(ggml_tensor* tensor, const void* data, std::size_t offset, std::size_t size) {
  static auto* const next = original<decltype(ggml_backend_tensor_set)>("ggml_backend_tensor_set");
  check(device_of(tensor), "vk::Device::waitForFences");
  next(tensor, data, offset, size);
}

void ggml_backend_tensor_get(const ggml_tensor* tensor, void* data, std::size_t offset, std::size_t size) {
  static auto* const next = original<decltype(ggml_backend_tensor_get)>("ggml_backend_tensor_get");
  check(device_of(tensor), "vk::Device::waitForFences");
  next(tensor, data, offset, size);
}

void ggml_backend_tensor_memset(ggml_tensor* tensor, std::uint8_t value, std::size_t offset, std::size_t size) {
  static auto* const next = original<decltype(ggml_backend_tensor_memset)>("ggml_backend_tensor_memset");
  check(device_of(tensor), "vk::Device::waitForFences");
  next(tensor, value, offset, size);
}

void ggml_backend_tensor_set_async(ggml_backend_t backend, ggml_tensor* tensor, const void* data, std::size_t offset,
                                   std::size_t size) {
  static auto* const next = original<decltype(ggml_backend_tensor_set_async)>("ggml_backend_tensor_set_async");
  check(backend, "vk::Queue::submit");
  next(backend, tensor, data, offset, size);
}

void ggml_backend_tensor_get_async(ggml_backend_t backend, const ggml_tensor* tensor, void* data, std::size_t offset,
                                   std::size_t size) {
  static auto* const next = original<decltype(ggml_backend_tensor_get_async)>("ggml_backend_tensor_get_async");
  check(backend, "vk::Queue::submit");
  next(backend, tensor, data, offset, size);
}

void ggml_backend_tensor_copy(const ggml_tensor* from, ggml_tensor* to) {
  static auto* const next = original<decltype(ggml_backend_tensor_copy)>("ggml_backend_tensor_copy");
  check(device_of(from), "vk::Device::waitForFences");
  check(device_of(to), "vk::Device::waitForFences");
  next(from, to);
}

void ggml_backend_tensor_copy_async(ggml_backend_t backend_from, ggml_backend_t backend_to, const ggml_tensor* from,
                                    ggml_tensor* to) {
  static auto* const next = original<decltype(ggml_backend_tensor_copy_async)>("ggml_backend_tensor_copy_async");
  check(backend_from, "vk::Queue::submit");
  check(backend_to, "vk::Queue::submit");
  next(backend_from, backend_to, from, to);
}

}  // extern "C"
