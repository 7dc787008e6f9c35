// What a worker computes with: settings that were given, then the profile of this model and machine, then defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llm/model.h"
#include "umad/config.h"
#include "umad/profile.h"

namespace uma::umad {

// Compute threads of the whole daemon when nobody says how many: the physical cores; one per worker for a model so small that
// its decode is shorter than the time threads need to meet.
[[nodiscard]] std::int32_t default_threads(std::uintmax_t model_bytes, std::int32_t cores, std::int32_t workers);

struct Compute {
  llm::ContextOptions context;                     // of each worker
  std::int32_t threads = 1;                        // of each worker: as many as any of its calls uses
  bool lanes = true;                               // a second context for long prompts
  std::int32_t decode_threads_beside_prefill = 0;  // 0: lanes take turns
};

// A profile was measured with one worker: several share its threads out, and the lanes' as if there were none.
[[nodiscard]] Compute choose_compute(const Config& config, const std::optional<Profile>& profile, std::uintmax_t model_bytes,
                                     std::int32_t cores);

// The settings that were given and win over the profile, as "threads, kv.layout"; empty: none.
[[nodiscard]] std::string given_over_profile(const Config& config);

}  // namespace uma::umad
