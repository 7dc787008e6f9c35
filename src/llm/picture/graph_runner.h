// Computes graphs of picture models on a device and the CPU. Internal to llm, because it includes the library's headers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include "core/error.h"
#include "llm/device/call_monitor.h"
#include "llm/device/device_timer.h"
#include "llm/device/lost_devices.h"
#include "llm/picture/picture_model.h"

namespace uma::llm {

// A computation, with the descriptions of its tensors.
struct ComputeGraph {
  // The node limit of every graph, with its leaves.
  static constexpr std::size_t kNodesMax = 32'768;

  ComputeGraph();
  virtual ~ComputeGraph() = default;
  ComputeGraph(const ComputeGraph&) = delete;
  ComputeGraph& operator=(const ComputeGraph&) = delete;

  ggml_context_ptr context;
  ggml_cgraph* graph = nullptr;  // In the context.
};

// The backends that compute: the device, if there is one, and the CPU for what it cannot do.
class Backends {
 public:
  // Null: only the CPU. Errors: E_MODEL_002.
  [[nodiscard]] static Expected<Backends> on(ggml_backend_dev_t device);

  [[nodiscard]] std::span<const ggml_backend_t> all() const { return all_; }
  [[nodiscard]] ggml_backend_t cpu() const { return all_.back(); }
  // They are not freed with this object.
  void keep();
  // Plans and computes graphs. Null: there is no memory.
  [[nodiscard]] ggml_backend_sched_ptr scheduler();

 private:
  std::vector<ggml_backend_ptr> owned_;
  std::vector<ggml_backend_t> all_;
};

// Adds bytes in a device's memory, or in the machine's.
void add_bytes(PictureBytes& bytes, ggml_backend_dev_t device, std::size_t more);

[[nodiscard]] std::vector<float> numbers_of(const ggml_tensor* tensor);
// Requires: as many as the tensor has.
void set_numbers(ggml_tensor* tensor, std::span<const float> numbers);

// One thread at a time. Memory belongs to one graph at a time: planning another one drops the one before.
class GraphRunner {
 public:
  GraphRunner(ggml_backend_dev_t device, Backends backends, std::int32_t threads);
  ~GraphRunner();
  GraphRunner(const GraphRunner&) = delete;
  GraphRunner& operator=(const GraphRunner&) = delete;

  // Takes the memory that the graph needs. False: there is none.
  [[nodiscard]] bool reserve(const ComputeGraph& graph);
  [[nodiscard]] PictureBytes memory() const;
  [[nodiscard]] bool is_lost() const { return LostDevices::of_process().contain_any(devices()); }
  void set_threads(std::int32_t threads);

  // Computes a graph of the type. make() makes it, as an Expected<std::unique_ptr<Graph>>, unless the one that was computed
  // last fits(). give(graph) sets its inputs, all of them: other tensors have taken their memory since the last time.
  // take(graph) reads the results. False: the monitor has ended it. Errors: E_RUNTIME_001, and those of make().
  template <class Graph, class Fits, class Make, class Give, class Take>
  [[nodiscard]] Expected<bool> run(CallMonitor* monitor, const Fits& fits, const Make& make, const Give& give,
                                   const Take& take) {
    return guarded_on(devices(), ErrorCode::runtime_decode, "drawing", [&]() -> Expected<bool> {
      auto* graph = dynamic_cast<Graph*>(planned_.get());
      if (graph == nullptr || !fits(*graph)) {
        drop_plan();
        auto made = make();
        if (!made) return std::unexpected(made.error());
        graph = made->get();
        if (auto planned = plan(*std::move(made)); !planned) return std::unexpected(planned.error());
      }
      give(*graph);
      auto done = compute(monitor);
      if (done && *done) take(*graph);
      return done;
    });
  }

 private:
  static bool wants_end(void* data);
  [[nodiscard]] DeviceList devices() const { return {&device_, device_ == nullptr ? 0U : 1U}; }
  void drop_plan();
  [[nodiscard]] Expected<Unit> plan(std::unique_ptr<ComputeGraph> graph);
  [[nodiscard]] Expected<bool> compute(CallMonitor* monitor);

  ggml_backend_dev_t device_;  // Null: the CPU.
  const DeviceTimer timer_;
  Backends backends_;
  ggml_backend_sched_ptr scheduler_;
  std::unique_ptr<ComputeGraph> planned_;
  std::atomic<CallMonitor*> monitor_{nullptr};  // Monitor of the running call; read by the library's threads.
};

}  // namespace uma::llm
