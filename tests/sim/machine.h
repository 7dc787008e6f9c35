// A worker with realistic times: a Lane and, optionally, a PrefillLane, each an actor of a Timeline, on FakeModel contexts
// whose calls take the time of a real machine (docs/MEASUREMENTS.md has the shapes). When the decode lane interrupts the
// prefill lane at the gate, the interrupted call stops in virtual time.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/lane/lane.h"
#include "sched/step_model.h"
#include "testing/fake_model.h"
#include "timeline.h"

namespace uma::sim {

// Times of calls on all threads, in ms, before noise and changes of speed.
struct Price {
  double decode_call = 6;
  double decode_row = 2;
  double decode_kv = 0.0005;  // Per cached token that a row attends to.
  double prefill_call = 2;
  double prefill_row = 0.5;
  double prefill_kv = 0.0001;
  double small_chunk_factor = 1.4;  // For chunks of fewer than kFastChunk rows.
  double state_call = 0.3;          // Saving or loading a sequence's state.
  double state_token = 0.004;
  double threads_exponent = 0.9;  // Time falls with this power of the number of threads.
  double noise = 0.1;             // Maximum deviation in both directions.

  [[nodiscard]] double decode_ms(int rows, std::int64_t kv_tokens) const {
    return decode_call + decode_row * rows + decode_kv * static_cast<double>(kv_tokens);
  }
  // The time of `rows` rows of one prompt after `cached` tokens.
  [[nodiscard]] double chunk_ms(int rows, std::int64_t cached) const {
    sched::StepShape shape;
    shape.add_chunk(rows, cached);
    return prefill_ms(shape);
  }
  [[nodiscard]] double prefill_ms(const sched::StepShape& shape) const {
    const double small = small_chunk_factor - 1;
    return prefill_call + prefill_row * (shape.prefill_rows + small * shape.small_rows) +
           prefill_kv * (static_cast<double>(shape.kv_tokens) + small * static_cast<double>(shape.small_kv_tokens));
  }
  [[nodiscard]] double state_ms(int tokens) const { return state_call + state_token * tokens; }
};

// From `at` on, calls take `factor` times their normal time.
struct SpeedChange {
  TimePoint at{};
  double factor = 1;
};

struct MachineOptions {
  Price price;
  std::vector<SpeedChange> speeds;  // Sorted by time.
  testing::FakeOptions model;
  std::int32_t layers = 12;
  bool has_prefill_lane = false;
  engine::LaneOptions lane;
  std::uint64_t seed = 0;
};

// The rows of one sequence in a call. A prompt names its request: after the BOS token come kNameLength letters. A shorter
// prefix belongs to no known request.
inline constexpr int kNameLength = 2;
inline constexpr std::uint64_t kUnknownRequest = std::numeric_limits<std::uint64_t>::max();
[[nodiscard]] std::string name_of(std::uint64_t request);

struct CallPart {
  std::uint64_t request = 0;
  std::int32_t rows = 0;
  std::int32_t cached = 0;
};

struct Call {
  bool in_prefill_lane = false;
  bool is_prefill = false;
  std::int32_t threads = 0;
  std::uint64_t step = 0;  // Number of the lane's step; the calls of a tick have the same number.
  TimePoint began{};
  TimePoint ended{};  // Including the time while interrupted.
  double ms = 0;      // Without the time while interrupted.
  sched::StepShape shape;
  std::vector<CallPart> parts;
};

class Machine {
 public:
  Machine(MachineOptions options, Timeline& timeline, const llm::Vocab& vocab, engine::Lane::OnResult on_result);
  ~Machine();

  [[nodiscard]] engine::Lane& lane() { return *lane_; }
  // Call this after posting commands to the lane.
  void wake_lane() { timeline_.wake(*decoder_); }

  // Called at the begin of a call (without times) and at its end, by the computing actor.
  std::function<void(const Call&)> on_begin;
  std::function<void(const Call&)> on_call;
  // Called after each step of the lane.
  std::function<void()> on_step;
  // Called with the time that the lane took to save or load a sequence's state.
  std::function<void(double ms)> on_state;
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  [[nodiscard]] bool prefill_lane_computes() const { return held_.is_running; }
  // Calls that began while both lanes together used more threads than the worker has.
  [[nodiscard]] std::uint64_t crowded_calls() const { return crowded_calls_; }

 private:
  class PricedContext;
  // A call of the prefill lane, which can be interrupted.
  struct Held {
    bool is_running = false;
    bool is_paused = false;
    std::int32_t threads = 0;
    Duration total{};
    Duration left{};  // Left at the time `since`.
    TimePoint since{};
    Duration held_up{};
  };

  void run_lane(Timeline::Actor& self);
  void run_prefill_lane(Timeline::Actor& self);
  [[nodiscard]] double speed() const;
  [[nodiscard]] double noisy(double ms);
  void compute_decode(Duration time, std::int32_t threads);
  [[nodiscard]] Duration compute_prefill(Duration time, std::int32_t threads);
  void watch_gate();
  void wake_prefill_lane();
  void wait_for_open_gate(Timeline::Actor& self);
  [[nodiscard]] engine::CoreShare& cores();

  const MachineOptions options_;
  Timeline& timeline_;
  Random random_;
  std::unique_ptr<engine::Lane> lane_;
  Timeline::Actor* decoder_ = nullptr;
  Timeline::Actor* prefiller_ = nullptr;
  Held held_;
  bool gate_was_closed_ = false;
  std::int32_t decode_threads_ = 0;  // Threads of the decode lane's running call; 0: no call runs.
  std::uint64_t steps_ = 0;
  std::uint64_t crowded_calls_ = 0;
};

}  // namespace uma::sim
