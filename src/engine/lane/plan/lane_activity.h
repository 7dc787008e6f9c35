// Publishes what the lane's slots do and who waits for one, for people who watch the daemon. The lane's thread makes the value,
// only while somebody wants it and at most every kEvery, and never waits for a reader.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/published.h"
#include "core/activity.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/plan/admission.h"
#include "engine/lane/plan/latency_targets.h"

namespace uma::engine {

// Without the model's name.
struct LaneActivity {
  WorkerActivity worker;
  TenantActivities tenants;
  TimePoint as_of{};
};

class LaneActivityBoard {
 public:
  LaneActivityBoard(const LaneParts& parts, const Admission& admission, const LatencyTargets& targets)
      : parts_(parts), admission_(admission), targets_(targets) {}

  // --- The lane's thread.
  // Call it at the end of each step.
  void note_step(bool did_work);

  // --- Any thread.
  // What was published last, with the tenants' work aged to `now`; null: nothing yet. Asks for more until kWantedFor has
  // passed: while a lane works and nobody asked lately, the value may be old.
  [[nodiscard]] std::shared_ptr<const LaneActivity> read(TimePoint now) {
    demand_.want_until(now + kWantedFor);
    return board_.latest();
  }

 private:
  static constexpr Duration kEvery = std::chrono::milliseconds(50);
  static constexpr std::int64_t kNotAtRest = -1;
  static constexpr Duration kWantedFor = std::chrono::seconds(15);

  [[nodiscard]] LaneActivity look(TimePoint now) const;
  void add_slots(LaneActivity& activity) const;
  void add_waiting(LaneActivity& activity, TimePoint now) const;

  const LaneParts& parts_;
  const Admission& admission_;
  const LatencyTargets& targets_;
  TimePoint due_{};
  // The cells that were in use when it was published that the lane has nothing to do; kNotAtRest: it has worked since.
  std::int64_t cells_at_rest_ = kNotAtRest;

  // Shared.
  Published<LaneActivity> board_;
  Demand demand_;
};

}  // namespace uma::engine
