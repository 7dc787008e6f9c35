// The loops of the engine's threads: each steps an object that needs no thread of its own.
#pragma once

#include <source_location>

#include "base/clock.h"
#include "base/thrown.h"
#include "engine/lane/run/prefill_lane.h"

namespace uma::engine {

// Steps while there is work, then waits; ends when the object is closed and has no work left. An exception of a step is logged,
// and the loop continues.
template <class ObjectT>
void run_loop(ObjectT& object, const std::source_location& place = std::source_location::current()) {
  do {
    bool did_work = true;
    while (did_work) {
      run_noting([&] { did_work = object.step(); }, place);
    }
  } while (object.wait());
}

// The loop of a lane, whose step returns when it wants the next one. Ends when the lane is closed.
template <class LaneT>
void run_lane_loop(LaneT& lane, const std::source_location& place = std::source_location::current()) {
  while (!lane.is_closed()) {
    StepOutcome outcome{.did_work = true, .wake = kNever};
    run_noting([&] { outcome = lane.step(); }, place);
    if (!outcome.did_work && !lane.wait(outcome.wake)) break;
  }
}

}  // namespace uma::engine
