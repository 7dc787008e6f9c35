// Ends or pauses a computation of a lane from another thread.
#pragma once

#include <atomic>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/gate.h"
#include "llm/model.h"

namespace uma::engine {

class Interrupt final : public llm::CallMonitor {
 public:
  // The computation waits while `gate`, which outlives this object, is closed; null: there is no gate.
  explicit Interrupt(Gate* gate = nullptr) : gate_(gate) {}

  void set(bool wanted) { wanted_.store(wanted); }
  // A computation also ends at this time by the clock, which outlives this object. Called between computations.
  void set_deadline(const Clock& clock, TimePoint deadline) {
    clock_ = &clock;
    deadline_ = deadline;
  }
  // Adds to the time that computations have waited at the gate. Called by the computation's thread.
  void add_waited(Duration time) { waited_ += time; }
  // Between computations: the time waited at the gate since the last call.
  Duration take_waited() { return std::exchange(waited_, {}); }

  bool wants_end() override {
    if (gate_ != nullptr && gate_->is_closed()) {
      const auto began = std::chrono::steady_clock::now();
      gate_->pass();
      add_waited(std::chrono::steady_clock::now() - began);
    }
    if (wanted_.load(std::memory_order_relaxed)) return true;
    return deadline_ != kNever && clock_->now() >= deadline_;
  }

 private:
  Gate* const gate_;
  std::atomic<bool> wanted_{false};
  Duration waited_{};  // Written by the computation's thread.
  const Clock* clock_ = nullptr;
  TimePoint deadline_ = kNever;
};

}  // namespace uma::engine
