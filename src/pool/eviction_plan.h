// Plans what to evict when memory is short, in this order: states in memory move to disk; idle models lose their contexts, then
// their weights. If that is not enough, nothing is evicted. The claim then waits for running requests, and models that only run
// background requests are held back; or it is refused, if it can never fit. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"

namespace uma::pool {

// A loaded model. Bytes are those in the place that is short.
struct ModelView {
  std::string name;
  bool is_pinned = false;   // Keeps its weights and contexts.
  bool is_loading = false;  // True until the model is served.
  std::int32_t sequences_active = 0;
  std::int32_t sequences_background = 0;  // Background sequences among these.
  std::int32_t requests_waiting = 0;      // Without those that are held back.
  bool is_held = false;                   // New background requests for the model wait.
  Duration idle{};                        // Time since its last use.
  Duration loaded_for{};
  double load_ms = 0;  // Cost of loading it again.
  double weight = 1;   // Its importance compared with others (ModelCard::weight).
  std::uint64_t weight_bytes = 0;
  std::uint64_t context_bytes = 0;
  std::uint64_t warm_bytes = 0;  // States of its sequences in memory.

  [[nodiscard]] bool is_idle() const { return !is_loading && sequences_active == 0 && requests_waiting == 0; }
};

enum class StepKind : std::uint8_t { drop_warm, drop_contexts, unload };

struct EvictionStep {
  StepKind kind = StepKind::drop_warm;
  std::string model;
  std::uint64_t bytes = 0;  // Bytes that the step frees.
  bool operator==(const EvictionStep&) const = default;
};

// fits: the claim fits after the steps. wait: it will fit once running requests have ended. refuse: it can never fit under the
// present conditions.
enum class Outcome : std::uint8_t { fits, wait, refuse };

struct EvictionPlan {
  Outcome outcome = Outcome::fits;
  std::vector<EvictionStep> steps;  // Empty unless the claim fits.
  std::uint64_t bytes_freed = 0;    // Bytes freed by the steps.
  std::uint64_t bytes_held = 0;     // Bytes that are busy now, but could be freed later.
  // With outcome wait: models that become free once their background requests end and no new ones begin.
  std::vector<std::string> holds;
};

struct EvictionOptions {
  // A model that was loaded or used this recently keeps its contexts and weights. This bounds how often models can evict each
  // other, whatever the requests.
  Duration min_loaded = std::chrono::seconds(15);
  bool is_background = false;  // The claim is a background claim, for which no model is held back.
};

// Plans how to free `shortage` bytes. Among idle models, the one with the largest idle time ÷ (load time × weight) is evicted
// first. Ensures: a pinned model loses nothing but states in memory, a model in use keeps its weights, and the outcome is
// `fits` exactly if bytes_freed >= shortage.
[[nodiscard]] EvictionPlan plan_evictions(std::uint64_t shortage, std::span<const ModelView> models,
                                          const EvictionOptions& options);

// Bytes that models would free if everything that may leave now left: idle models that are not pinned.
[[nodiscard]] std::uint64_t evictable_bytes(std::span<const ModelView> models, const EvictionOptions& options);

// Text such as "unload embedder (2.0 GiB), drop contexts of coder (512.0 MiB)".
[[nodiscard]] std::string text_of(std::span<const EvictionStep> steps);

}  // namespace uma::pool
