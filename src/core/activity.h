// The requests at one moment: those in slots, and those that wait. For people who watch the daemon; MetricsSnapshot has the
// sums. Bounded whatever the load: lists end at the limits below, and the numbers beside them count everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/agent.h"
#include "core/ids.h"

namespace uma {

inline constexpr std::size_t kSlotsShownMax = 64;     // For each worker.
inline constexpr std::size_t kWaitingShownMax = 64;   // For each worker, and for the requests that are in none.
inline constexpr std::size_t kTenantsShownMax = 32;   // The rest is counted as kOtherTenants.
inline constexpr std::size_t kTenantsKeptMax = 1024;  // Limit in an ActivitySnapshot, partly shown; the rest is kOtherTenants.
inline constexpr const char* kOtherTenants = "other";

enum class SlotState : std::uint8_t {
  idle,
  restore,  // A stored state is being loaded.
  prefill,
  decode,
};

struct SlotActivity {
  std::int32_t slot = 0;
  SlotState state = SlotState::idle;
  RequestId request{};             // 0: idle.
  std::string tenant{};            // The request's tenant; empty: idle.
  Agent agent{};                   // The request's agent.
  std::int64_t tokens = 0;         // In the context, those of an ended request included.
  std::int64_t prompt_tokens = 0;  // Tokens of the request's prompt.
};

enum class WaitStage : std::uint8_t {
  loading,    // For its model.
  preparing,  // For its tokens, or for another reply of its session.
  queued,     // For a slot.
  swapped,    // For a slot, to go on.
};

struct WaitingRequest {
  RequestId request{};
  std::string model{};  // Empty: not known yet.
  std::string tenant{};
  Agent agent{};
  bool is_background = false;
  WaitStage stage = WaitStage::queued;
  TimePoint since{};  // When it was received.
};

struct TenantActivity {
  double work = 0;  // Tokens that were computed for it lately: the older, the less they count.
  std::int64_t sequences_active = 0;
  std::int64_t queue_depth = 0;

  TenantActivity& operator+=(const TenantActivity& other) {
    work += other.work;
    sequences_active += other.sequences_active;
    queue_depth += other.queue_depth;
    return *this;
  }
};

// By the tenant's name.
using TenantActivities = std::map<std::string, TenantActivity>;

// Adds to the tenant's numbers, or to those of kOtherTenants if there are too many tenants.
inline void add_activity(TenantActivities& tenants, const std::string& tenant, const TenantActivity& more,
                         std::size_t tenants_max = kTenantsKeptMax) {
  const bool is_listed = tenants.contains(tenant) || tenants.size() < tenants_max;
  tenants[is_listed ? tenant : kOtherTenants] += more;
}

// A worker that generates text.
struct WorkerActivity {
  std::string model{};
  std::vector<SlotActivity> slots{};
  std::vector<WaitingRequest> waiting{};  // In the order in which they will get slots, as of now.
  double contract_ms = 0;                 // The time between two tokens of a stream that is promised.
};

struct ActivitySnapshot {
  double contract_ms = 0;                 // The longest of the workers'; without a worker, what one begins with.
  std::vector<WorkerActivity> workers{};  // Loaded workers, in the order of MetricsSnapshot::workers.
  std::vector<WaitingRequest> waiting{};  // Requests that are in no worker yet, the oldest first.
  std::int64_t waiting_count = 0;         // Their number.
  TenantActivities tenants{};
  std::map<std::string, std::int64_t> model_uses{};  // Requests that use each loaded model.
};

}  // namespace uma
