// Chooses a worker's threads and context options: settings that were given, then the profile of this model and machine, then
// defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llm/model.h"
#include "umad/config.h"
#include "umad/tune/profile.h"

namespace uma::umad {

// The default number of compute threads of the whole daemon: the physical cores, or one per worker for a model so small that
// its decode takes less time than threads need to synchronize.
[[nodiscard]] std::int32_t default_threads(std::uintmax_t model_bytes, std::int32_t cores, std::int32_t workers);

struct Compute {
  llm::ContextOptions context;                     // Context options of each worker.
  std::int32_t threads = 1;                        // Threads of each worker: the most that any of its calls uses.
  bool uses_devices = true;                        // False: not even those of the configuration.
  bool lanes = true;                               // Long prompts get a second context.
  std::int32_t decode_threads_beside_prefill = 0;  // 0: lanes take turns.
};

// Lowers the numbers of threads to `processors`, which compute at once at most, and logs that: more threads wait for each other
// (two streams of a 134 M model with 8 threads on two cores: a thirtieth of the speed). 0: unknown.
void limit_threads(Config& config, std::int32_t processors);

// A profile is measured with one worker. With several workers, its threads are divided among them and its lane threads are not
// used.
[[nodiscard]] Compute choose_compute(const Config& config, const std::optional<Profile>& profile, std::uintmax_t model_bytes,
                                     std::int32_t cores);

// The settings that override the profile, as "threads, kv.layout"; empty: none.
[[nodiscard]] std::string given_over_profile(const Config& config);

}  // namespace uma::umad
