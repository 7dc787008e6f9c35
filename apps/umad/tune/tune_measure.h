// Measures candidates with one model on this machine. All candidates are measured in turn, repeatedly, so that a busy phase
// affects all of them alike; medians decide.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/error.h"
#include "llm/model.h"
#include "umad/tune/tune_choice.h"

namespace uma::umad {

// Numbers of streams in the timed decode calls.
inline constexpr std::array<std::int32_t, 3> kStreams = {1, 4, 8};

// The model on some devices.
struct PlacedModel {
  std::string name;  // For people, such as "on Vulkan0".
  std::shared_ptr<const llm::Model> model;
};

struct TuneSettings {
  llm::ContextOptions base;  // Options of umad's context without a profile.
  std::int32_t cores = 1;    // Largest thread count to try.
  double seconds = 90;       // Approximate duration; one full repetition always runs.
  bool allows_quantized_kv = false;
};

// One comparison, shown as a table whose rows are its trials. Columns: milliseconds of a decode call for each entry of
// kStreams, then milliseconds per prompt token. For lanes: the worst tick and the total time, in milliseconds.
struct Comparison {
  std::string title = {};
  bool is_lanes = false;
  std::vector<Trial> trials = {};
  std::vector<std::size_t> columns = {};  // Columns that the choice considers.
  std::size_t default_index = 0;
  std::vector<std::uint64_t> kv_bytes = {};  // KV memory of the daemon's context per trial; empty if all need the same.
  Choice choice = {};
  std::string remark = {};  // Text about what limits the comparison.
};

struct TuneResult {
  std::int32_t prompt_tokens = 0;       // Length of a timed prompt, and of each stream's cached text.
  llm::ContextShape shape;              // Shape of the daemon's context without a profile.
  std::vector<Comparison> comparisons;  // In the order of measurement; each builds on the earlier choices.
  // The chosen settings.
  std::size_t model = 0;     // Index of the placed model.
  bool uses_devices = true;  // False: the CPU alone is faster than the devices.
  std::int32_t decode_threads = 1;
  std::int32_t prefill_threads = 1;
  llm::ContextOptions context;
  bool lanes = false;
  std::int32_t decode_threads_beside_prefill = 1;
  std::int32_t prefill_threads_beside_decode = 1;
};

// Runs all measurements. `models` are the same model on different devices, the default first. `on_progress` gets the name of
// the current one. Errors: E_MODEL_002 if the daemon's context cannot be created (no memory), E_RUNTIME_001 if the library
// fails or `interrupted` became true.
[[nodiscard]] Expected<TuneResult> tune(std::span<const PlacedModel> models, const TuneSettings& settings, const Clock& clock,
                                        const std::atomic<bool>& interrupted,
                                        const std::function<void(const std::string&)>& on_progress);

// Thread counts to try: powers of two below `cores`, and `cores`.
[[nodiscard]] std::vector<std::int32_t> thread_counts(std::int32_t cores);

}  // namespace uma::umad
