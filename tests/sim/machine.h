// A worker on a machine with a price: a Lane, and a PrefillLane where there is one, each an actor of a Timeline, on FakeModel
// contexts whose calls take the time that a real machine's would (docs/MEASUREMENTS.md has the shapes). Where the decode lane
// holds up the prefill lane at the gate, the held-up call stands still in virtual time.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/lane.h"
#include "sched/step_model.h"
#include "testing/fake_model.h"
#include "timeline.h"

namespace uma::sim {

// What calls cost on all threads, in ms, before noise and changes of speed.
struct Price {
  double decode_call = 6;
  double decode_row = 2;
  double decode_kv = 0.0005;  // per cached token that a row attends to
  double prefill_call = 2;
  double prefill_row = 0.5;
  double prefill_kv = 0.0001;
  double small_chunk_factor = 1.4;  // of chunks of fewer than kFastChunk rows
  double state_call = 0.3;          // moving a sequence's state in or out
  double state_token = 0.004;
  double threads_exponent = 0.9;  // time falls with this power of the threads
  double noise = 0.1;             // either way

  [[nodiscard]] double decode_ms(int rows, std::int64_t kv_tokens) const {
    return decode_call + decode_row * rows + decode_kv * static_cast<double>(kv_tokens);
  }
  // `rows` of one prompt after `cached` tokens.
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

// From `at` on calls take `factor` times their price.
struct SpeedChange {
  TimePoint at{};
  double factor = 1;
};

struct MachineOptions {
  Price price;
  std::vector<SpeedChange> speeds;  // in order of time
  testing::FakeOptions model;
  std::int32_t layers = 12;
  bool has_prefill_lane = false;
  engine::LaneOptions lane;
  std::uint64_t seed = 0;
};

// Rows that a call computes of one sequence. A prompt says whose it is: after the BOS token, kNameLength letters. Of a shorter
// beginning nobody knows.
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
  std::uint64_t step = 0;  // of the lane: a tick is the calls of one
  TimePoint began{};
  TimePoint ended{};  // time it was held up included
  double ms = 0;      // the same left out
  sched::StepShape shape;
  std::vector<CallPart> parts;
};

class Machine {
 public:
  Machine(MachineOptions options, Timeline& timeline, const llm::Vocab& vocab, engine::Lane::OnResult on_result);
  ~Machine();

  [[nodiscard]] engine::Lane& lane() { return *lane_; }
  // Commands were posted to the lane.
  void wake_lane() { timeline_.wake(*decoder_); }

  // Called as a call begins (without times) and as it has ended, by the actor that computes.
  std::function<void(const Call&)> on_begin;
  std::function<void(const Call&)> on_call;
  // The lane has finished a step.
  std::function<void()> on_step;
  // The lane has spent this on moving a sequence's state.
  std::function<void(double ms)> on_state;
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  [[nodiscard]] bool prefill_lane_computes() const { return held_.is_running; }
  // Calls that began while the threads of both lanes were more than the worker has.
  [[nodiscard]] std::uint64_t crowded_calls() const { return crowded_calls_; }

 private:
  class PricedContext;
  // A call of the prefill lane, which may be held up.
  struct Held {
    bool is_running = false;
    bool is_paused = false;
    std::int32_t threads = 0;
    Duration total{};
    Duration left{};  // at `since`
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
  std::int32_t decode_threads_ = 0;  // of the decode lane's running call; 0: none runs
  std::uint64_t steps_ = 0;
  std::uint64_t crowded_calls_ = 0;
};

}  // namespace uma::sim
