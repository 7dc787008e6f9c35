// The memory that a load needs, estimated from the model's file and from earlier loads of the same file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "core/error.h"
#include "engine/model/load_workers.h"
#include "pool/model_registry.h"

namespace uma::pool {

// Bytes of the weights, and of the contexts of all workers.
struct MemoryNeed {
  std::uint64_t workers = 1;
  std::uint64_t weights = 0;
  std::uint64_t contexts = 0;
  llm::DeviceBytes weights_on_devices{};   // Part of `weights`.
  llm::DeviceBytes contexts_on_devices{};  // Part of `contexts`.
  std::uint64_t cache = 0;                 // Keys and values of the model's contexts; part of `contexts`.
  std::uint64_t projector = 0;             // Part of `weights` that the library does not report.
  llm::DeviceBytes projector_on_devices{};
  std::uint64_t states = 0;  // Part of `contexts`: one state per worker in transfer from or to a context,
                             // of at most llm::kOneSequenceMax tokens.
  std::uint64_t images = 0;  // Part of `contexts`: cached encoded images.
  bool operator==(const MemoryNeed&) const = default;

  // The bytes that a load has to reserve on devices, and in the machine's memory.
  [[nodiscard]] llm::DeviceBytes device_bytes(bool has_weights) const {
    return has_weights ? contexts_on_devices : contexts_on_devices + weights_on_devices;
  }
  [[nodiscard]] std::uint64_t host_bytes(bool has_weights) const {
    return host_contexts() + (has_weights ? 0 : host_weights());
  }
  // The parts in the machine's memory.
  [[nodiscard]] std::uint64_t host_weights() const { return weights_on_devices.rest_of(weights); }
  [[nodiscard]] std::uint64_t host_contexts() const { return contexts_on_devices.rest_of(contexts); }
};

// Estimates the need: exactly by a dry run of the library (llm::measure_footprint), or roughly from the headers of the files.
// Errors: a file that cannot be read.
enum class Estimate : std::uint8_t { exact, rough };
[[nodiscard]] Expected<MemoryNeed> estimate_need(const engine::LoadWorkersOptions& options, std::uint64_t image_cache_bytes_max,
                                                 Estimate kind = Estimate::exact);

// Whether a rough estimate suffices until the load has ended and its memory is known: there is room for several such loads. A
// dry run reads the vocabulary, which takes about as long as everything else of a small model's load. `left`: bytes that are
// not reserved.
[[nodiscard]] bool is_rough_enough(const MemoryNeed& rough, std::int64_t left);

// The memory that loads of each model took. Thread-safe.
class MeasuredNeeds {
 public:
  // The memory that the last load of the same file with the same estimate has taken; nullopt: there was none.
  [[nodiscard]] std::optional<MemoryNeed> find(const RegisteredModel& model, const MemoryNeed& estimated) const;
  // Stores that a load with the need `need`, an estimate or a result of find(), has taken `taken`.
  void note(const RegisteredModel& model, const MemoryNeed& need, const MemoryNeed& taken);

 private:
  struct Measured {
    std::shared_ptr<const ModelFile> file;
    MemoryNeed estimated;
    MemoryNeed taken;
  };

  mutable Mutex mutex_;
  std::map<std::string, Measured> measured_ GUARDED_BY(mutex_);
};

}  // namespace uma::pool
