// The settings of an engine: the configuration, and the objects that the daemon provides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "core/error.h"
#include "core/image_fetcher.h"
#include "core/limits.h"
#include "core/metrics_snapshot.h"
#include "core/session_info.h"
#include "image/image_encoder.h"
#include "kv/state_store.h"
#include "sched/policy.h"

namespace uma::engine {

struct EngineOptions {
  Limits limits;
  std::int32_t threads = 1;  // Compute threads, for all workers together.
  double tick_ms = 30;
  double target_ttft_ms = 0;  // 0: none
  double target_tbt_ms = 0;   // 0: automatic
  sched::PolicyOptions policy;
  double bmt_budget_gbps = 0;                // The limit of memory traffic in 10^9 bytes a second; 0: no limit.
  bool is_reproducible = false;              // LaneOptions has the details.
  std::int32_t verify_every = 0;             // LaneOptions has the details.
  bool warms_up = false;                     // LaneOptions has the details.
  bool speculates = false;                   // Drafts tokens from a sequence's own text where that is faster.
  kv::StoreOptions store;                    // The store of states that are in no context.
  image::ImageEncoderOptions image_encoder;  // For models that have a projector.
  ImageFetcher* fetcher = nullptr;           // Outlives the engine, which stops it; null: images are not fetched from URLs.
  std::size_t queue_depth_warn = 50;  // Embedding requests waiting for one model; more are logged as a warning; 0: never.
  CrashRecord crashes;                // The crashes before this process, for the metrics.
  std::string preload;                // The model that is loaded at the start; empty: the default model.
  // Called once, when the preloaded model is loaded and has warmed up, or could not be loaded.
  std::function<void(const Expected<ModelInfo>&)> on_loaded;
  // At the end: how long states are written to the shared store, and how long its calls in progress are then waited for.
  Duration publish_limit = std::chrono::seconds(10);
  Duration shared_call_limit = std::chrono::seconds(3);
};

}  // namespace uma::engine
