#include "llm/picture/graph_runner.h"

#include <format>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "llm/device/llama_devices.h"
#include "llm/llama_guard.h"

namespace uma::llm {
namespace {

// A function that only some backends have; null: this one does not.
template <class Function>
Function function_of(ggml_backend_t backend, const char* name) {
  auto* const registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
  return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(registry, name));
}

}  // namespace

ComputeGraph::ComputeGraph()
    : context(ggml_init({.mem_size = kNodesMax * ggml_tensor_overhead() + ggml_graph_overhead_custom(kNodesMax, false),
                         .mem_buffer = nullptr,
                         .no_alloc = true})),
      graph(ggml_new_graph_custom(context.get(), kNodesMax, false)) {}

Expected<Backends> Backends::on(ggml_backend_dev_t device) {
  Backends made;
  for (ggml_backend_dev_t each : {device, ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)}) {
    if (each == nullptr) continue;
    made.owned_.emplace_back(ggml_backend_dev_init(each, nullptr));
    if (made.owned_.back() == nullptr) {
      return fail(ErrorCode::model_load, std::format("the device {} cannot be used", ggml_backend_dev_name(each)));
    }
    made.all_.push_back(made.owned_.back().get());
  }
  return made;
}

void Backends::keep() {
  for (ggml_backend_ptr& backend : owned_) [[maybe_unused]]
    auto* const kept = backend.release();
}

ggml_backend_sched_ptr Backends::scheduler() {
  return ggml_backend_sched_ptr(
      ggml_backend_sched_new(all_.data(), nullptr, static_cast<int>(all_.size()), ComputeGraph::kNodesMax, false, true));
}

void add_bytes(PictureBytes& bytes, ggml_backend_dev_t device, std::size_t more) {
  bytes.all += more;
  if (kind_of(device) == DeviceKind::gpu) bytes.on_devices.add(device_name(device), more);
}

std::vector<float> numbers_of(const ggml_tensor* tensor) {
  std::vector<float> numbers(static_cast<std::size_t>(ggml_nelements(tensor)));
  ggml_backend_tensor_get(tensor, numbers.data(), 0, numbers.size() * sizeof(float));
  return numbers;
}

void set_numbers(ggml_tensor* tensor, std::span<const float> numbers) {
  UMA_CHECK(numbers.size_bytes() == ggml_nbytes(tensor));
  ggml_backend_tensor_set(tensor, numbers.data(), 0, numbers.size_bytes());
}

GraphRunner::GraphRunner(ggml_backend_dev_t device, Backends backends, std::int32_t threads)
    : device_(device), timer_(devices()), backends_(std::move(backends)), scheduler_(backends_.scheduler()) {
  if (const auto set = function_of<ggml_backend_set_abort_callback_t>(backends_.cpu(), "ggml_backend_set_abort_callback")) {
    set(backends_.cpu(), wants_end, &monitor_);
  }
  set_threads(threads);
}

GraphRunner::~GraphRunner() {
  if (find_lost(devices(), "")) {
    // Freeing waits for the device and throws (docs/decisions/0071).
    log_warning("a context on a lost device is not freed: its memory is free when umad ends");
    [[maybe_unused]] auto* const kept = scheduler_.release();
    backends_.keep();
    return;
  }
  const std::lock_guard lock(making_mutex());
  scheduler_.reset();
  backends_ = Backends();
}

bool GraphRunner::reserve(const ComputeGraph& graph) {
  return ggml_backend_sched_reserve(scheduler_.get(), graph.graph);
}

PictureBytes GraphRunner::memory() const {
  PictureBytes bytes;
  for (ggml_backend_t backend : backends_.all()) {
    add_bytes(bytes, ggml_backend_get_device(backend), ggml_backend_sched_get_buffer_size(scheduler_.get(), backend));
  }
  return bytes;
}

void GraphRunner::set_threads(std::int32_t threads) {
  const auto set = function_of<ggml_backend_set_n_threads_t>(backends_.cpu(), "ggml_backend_set_n_threads");
  if (set != nullptr) set(backends_.cpu(), threads);
}

bool GraphRunner::wants_end(void* data) {
  auto* const monitor = static_cast<std::atomic<CallMonitor*>*>(data)->load(std::memory_order_acquire);
  return monitor != nullptr && monitor->wants_end();
}

void GraphRunner::drop_plan() {
  ggml_backend_sched_reset(scheduler_.get());
  planned_.reset();
}

Expected<Unit> GraphRunner::plan(std::unique_ptr<ComputeGraph> graph) {
  if (!ggml_backend_sched_alloc_graph(scheduler_.get(), graph->graph)) {
    return fail(ErrorCode::runtime_decode, "there is no memory for the computation of a picture");
  }
  planned_ = std::move(graph);
  return Unit{};
}

Expected<bool> GraphRunner::compute(CallMonitor* monitor) {
  monitor_.store(monitor, std::memory_order_release);
  const auto computing = timer_.begin();
  const ggml_status status = ggml_backend_sched_graph_compute(scheduler_.get(), planned_->graph);
  monitor_.store(nullptr, std::memory_order_release);
  if (status == GGML_STATUS_ABORTED) return false;
  if (status == GGML_STATUS_SUCCESS) return true;
  return fail(ErrorCode::runtime_decode,
              std::format("the library failed to compute a picture (status {})", static_cast<int>(status)));
}

}  // namespace uma::llm
