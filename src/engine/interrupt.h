// Ends or holds up a computation of a lane from another thread.
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
  // With a `gate`, which outlives this, the computation waits while it is closed.
  explicit Interrupt(Gate* gate = nullptr) : gate_(gate) {}

  void set(bool wanted) { wanted_.store(wanted); }
  // That a computation has waited at the gate for so long; of the one thread that asks for it.
  void note_held_up(Duration time) { held_up_ += time; }
  // Between computations: how long the last ones have waited at the gate since this was asked.
  Duration take_held_up() { return std::exchange(held_up_, {}); }

  bool wants_end() override {
    if (gate_ != nullptr && gate_->is_closed()) {
      const auto began = std::chrono::steady_clock::now();
      gate_->pass();
      note_held_up(std::chrono::steady_clock::now() - began);
    }
    return wanted_.load(std::memory_order_relaxed);
  }

 private:
  Gate* const gate_;
  std::atomic<bool> wanted_{false};
  Duration held_up_{};  // written by the one thread of the computation that asks
};

}  // namespace uma::engine
