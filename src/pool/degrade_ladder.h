// What gives way when memory runs short, in this order: states in memory go to disk; models that nobody uses lose their
// contexts, then their weights. What does not help enough is not done at all: then the claim waits for what runs now, where
// that is background work alone with new such work held back, or is refused, where nothing would ever make room for it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"

namespace uma::pool {

// A loaded model. Bytes are those of the place that is short.
struct ModelView {
  std::string name;
  bool is_pinned = false;   // keeps its weights and contexts
  bool is_loading = false;  // so is a model in the state between loaded and served
  std::int32_t sequences_active = 0;
  std::int32_t sequences_background = 0;  // of them
  std::int32_t requests_waiting = 0;      // but those that are held back
  bool is_held = false;                   // new background requests for it wait
  Duration idle{};                        // since it was used last
  Duration loaded_for{};
  double load_ms = 0;  // what having it back costs
  double weight = 1;   // how dear it is beside the others (ModelCard::weight)
  std::uint64_t weight_bytes = 0;
  std::uint64_t context_bytes = 0;
  std::uint64_t warm_bytes = 0;  // of its sequences' states in memory

  [[nodiscard]] bool is_idle() const { return !is_loading && sequences_active == 0 && requests_waiting == 0; }
};

enum class StepKind : std::uint8_t { drop_warm, drop_contexts, unload };

struct LadderStep {
  StepKind kind = StepKind::drop_warm;
  std::string model;
  std::uint64_t bytes = 0;  // that it frees
  bool operator==(const LadderStep&) const = default;
};

// fits: after the steps, the claim does. wait: it will once what runs now has ended. refuse: never, as things are.
enum class Outcome : std::uint8_t { fits, wait, refuse };

struct LadderPlan {
  Outcome outcome = Outcome::fits;
  std::vector<LadderStep> steps;   // none unless it fits
  std::uint64_t bytes_freed = 0;   // by them
  std::uint64_t bytes_held = 0;    // by what may not be touched now, but could be later
  std::vector<std::string> holds;  // wait: models that become free once their background requests end and no new ones begin
};

struct LadderOptions {
  // A model that was loaded or used so lately keeps its contexts and weights: this bounds how often models can push each other
  // out, whatever the requests.
  Duration min_loaded = std::chrono::seconds(15);
  bool is_background = false;  // the claim: nobody is held back for it
};

// How to free `shortage` bytes. Among idle models the one goes first whose idle time ÷ (load time × weight) is the largest.
// Ensures: no pinned model loses more than states in memory, no model in use its weights; and outcome fits where and only where
// bytes_freed >= shortage.
[[nodiscard]] LadderPlan plan_relief(std::uint64_t shortage, std::span<const ModelView> models, const LadderOptions& options);

// "unload embedder (2.0 GiB), drop contexts of coder (512.0 MiB)".
[[nodiscard]] std::string text_of(std::span<const LadderStep> steps);

}  // namespace uma::pool
