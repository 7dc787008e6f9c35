// The settings of a lane.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "engine/lane/lane_stats.h"
#include "engine/lane/plan/core_share.h"
#include "engine/lane/plan/kept_widths.h"
#include "engine/lane/run/encode_image.h"
#include "kv/state_store.h"
#include "kv/tier_policy.h"
#include "llm/model.h"
#include "sched/bytes_moved.h"
#include "sched/policy.h"

namespace uma::engine {

struct LaneOptions {
  std::int32_t index = 0;    // Index of the worker, for logs.
  std::int32_t threads = 1;  // Compute threads of the worker.
  // Threads kept for decoding while the prefill lane computes; 0: the two lanes take turns.
  std::int32_t threads_beside_prefill = 0;
  bool is_on_devices = false;         // The CPU computes no layer.
  std::int32_t sampling_threads = 0;  // Choose tokens beside the lane's thread; 0: none.
  // The fewest logits of a call for which these threads help. Waking them for fewer takes longer than choosing from them.
  std::size_t sampling_logits_min = 1 << 17;
  double tick_ms = 30;        // Minimum time of a tick.
  double target_ttft_ms = 0;  // Default time to the first token; 0: none.
  double target_tbt_ms = 0;   // Default time between tokens; 0: see LatencyTargets.
  sched::WeightBytes weights;
  double bmt_budget_gbps = 0;  // Memory traffic allowed, in 10^9 bytes a second; 0: no limit.
  sched::PolicyOptions policy;
  // A request's logits are the same bits whatever runs beside it (docs/decisions/0014).
  bool is_reproducible = false;
  // Computes a few meaningless calls before the first request (warm_up.h).
  bool warms_up = false;
  std::shared_ptr<KeptWidths> widths = nullptr;  // Times that earlier starts have measured; null: it is measured in any case.
  bool speculates = true;                        // Draft tokens are used where they are faster; the text is the same.
  std::int32_t verify_every = 0;                 // One in so many reuses is computed again and compared; 0: none.
  // Shared by all workers of the daemon, which share its threads; null: there is no other worker.
  std::shared_ptr<BusyWorkers> workers = nullptr;
  std::shared_ptr<LaneStats> stats = nullptr;  // Counters of an earlier worker with this index; null: they begin at zero.
  // Stores the states that leave the context; outlives the lane. Null: they are dropped.
  kv::StateStore* store = nullptr;
  std::int32_t stored_tokens_min = 64;                    // Shorter states are not stored.
  kv::EvictionOrder eviction = kv::EvictionOrder::value;  // The order in which idle slots are evicted.
  // So many cells that a row skips cost nothing worth mentioning (kv_compactor.h).
  std::int32_t skipped_cells_max = 4096;
  // Waits, when the lane ends, until `is_done` or until a limit, in case the disk has failed. Null: the lane does not wait.
  std::function<void(const std::function<bool()>& is_done)> wait_for_disk = nullptr;
  // The number of cores that other processes have used recently (CpuLoad); called while there is work. Null: the number of
  // threads is fixed.
  std::function<std::optional<double>()> others_busy = nullptr;
  // The number of cores that others have used since its own last call, for the warm-up. Null: measured times are kept whatever
  // else ran.
  std::function<std::optional<double>()> others_busy_while_measured = nullptr;
  // Makes the prefill lane's context anew for a longer prompt (PrefillOptions::make_wider). Null: it keeps its first one.
  llm::MakeContext make_prefill_context = nullptr;
  // Encodes an image on another thread and calls `then` there, soon and with an error after `end` was requested. Null: jobs
  // have no images.
  EncodeImage encode = nullptr;
  // Called once, on the lane's thread, when requests are computed as fast as later ones (WarmUp::is_over()), or when the lane
  // ends. Null: nobody needs to know.
  std::function<void()> on_warm = nullptr;
  // Called once, on the lane's thread, when a device of its model is lost. Null: nobody needs to know.
  std::function<void()> on_lost = nullptr;
  // For tests: writes up to `count` draft tokens for `chain`, in place of the n-gram drafter.
  std::function<void(std::span<const Token> chain, std::int32_t count, std::vector<Token>& draft)> test_drafter = nullptr;
  // For tests: called with the logits that each token of a request is sampled from.
  std::function<void(RequestId id, std::span<const float> logits)> on_logits = nullptr;
};

}  // namespace uma::engine
