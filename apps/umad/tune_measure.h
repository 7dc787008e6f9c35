// Measures ways of computing with one model on this machine: every way in turn, again and again, so that a machine that is busy
// for a while is busy for all of them; medians decide.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/error.h"
#include "llm/model.h"
#include "umad/tune_choice.h"

namespace uma::umad {

// Streams of the decode calls that are timed.
inline constexpr std::array<std::int32_t, 3> kStreams = {1, 4, 8};

struct TuneSettings {
  llm::ContextOptions base;  // as umad would compute without a profile
  std::int32_t cores = 1;    // the most threads that are tried
  double seconds = 90;       // about; one repetition of everything is done however long it takes
  bool allows_quantized_kv = false;
};

// One comparison: its trials are the rows of a table. Columns: milliseconds of a decode call with each of kStreams, then
// milliseconds of a prompt token; of the lanes: worst tick and all the work, in milliseconds.
struct Comparison {
  std::string title = {};
  bool is_lanes = false;
  std::vector<Trial> trials = {};
  std::vector<std::size_t> columns = {};  // that the choice looks at
  std::size_t default_index = 0;
  std::vector<std::uint64_t> kv_bytes = {};  // of the daemon's context, per trial; empty where all need the same
  Choice choice = {};
  std::string remark = {};  // what limits the comparison
};

struct TuneResult {
  std::int32_t prompt_tokens = 0;       // of a timed prompt, and cached for each stream of a decode call
  llm::ContextShape shape;              // the daemon's context, without a profile
  std::vector<Comparison> comparisons;  // in the order they were made; each builds on the choices before
  // The choices.
  std::int32_t decode_threads = 1;
  std::int32_t prefill_threads = 1;
  llm::ContextOptions context;
  bool lanes = false;
  std::int32_t decode_threads_beside_prefill = 1;
  std::int32_t prefill_threads_beside_decode = 1;
};

// Measures. `on_progress` hears what is being measured. Errors: E_MODEL_002 when the daemon's context cannot be made (no
// memory), E_RUNTIME_001 when the library fails or `interrupted` became true.
[[nodiscard]] Expected<TuneResult> tune(const llm::Model& model, const TuneSettings& settings, const Clock& clock,
                                        const std::atomic<bool>& interrupted,
                                        const std::function<void(const std::string&)>& on_progress);

// Thread counts worth trying: powers of two below `cores`, and `cores`.
[[nodiscard]] std::vector<std::int32_t> thread_counts(std::int32_t cores);

}  // namespace uma::umad
