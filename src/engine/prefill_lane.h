// Computes prompts in a context of its own, beside the lane that decodes, and hands each over as a StateImage: on a CPU a long
// prompt then costs the streams some cores but no pause (docs/decisions/0011). One prompt at a time is in the context; a better
// one takes its place between two chunks, and the state of the first is kept. Runs as a step() like the lane it serves.
//
// Invariants: (1) every job gets exactly one final report, unless it is cancelled. (2) The context holds tokens of `resident_`
// only.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "core/ids.h"
#include "engine/core_share.h"
#include "engine/image_runs.h"
#include "engine/interrupt.h"
#include "engine/lane_stats.h"
#include "kv/state_image.h"
#include "llm/model.h"
#include "sched/bytes_moved.h"
#include "sched/step_model.h"

namespace uma::engine {

struct StepOutcome {
  bool did_work = false;  // false: nothing to do before `wake`, unless a command comes
  TimePoint wake = kNever;
};

struct PrefillJob {
  RequestId id;
  std::vector<Token> tokens;            // the whole chain
  std::vector<ImageRun> images{};       // among them; those that are not in the state are encoded
  std::optional<kv::StateImage> image;  // of its beginning
  ByteBudget::Share room{};             // for the state of the whole; with the image, if there is one
  bool is_background = false;
  TimePoint received{};
  TimePoint placed{};      // since when it has its slot
  TimePoint due = kNever;  // when its first token is wanted
};

struct PrefillReport {
  RequestId id;
  std::int32_t tokens_done = 0;
  TimePoint began{};
  // The last report of a job has one of these. The logits are those after the last token.
  std::optional<kv::StateImage> image;
  std::vector<float> logits;
  std::optional<Error> error;

  [[nodiscard]] bool is_final() const { return image || error; }
};

struct PrefillOptions {
  sched::WeightBytes weights;
  bool is_reproducible = false;  // LaneOptions
};

class PrefillLane {
 public:
  using OnReport = std::function<void(PrefillReport)>;

  // `context` has one sequence. What is passed by reference outlives the lane. `on_report` is called from step().
  PrefillLane(std::unique_ptr<llm::Context> context, const PrefillOptions& options, kv::BytePool& pool, CoreShare& cores,
              sched::BandwidthBudget& bandwidth, LaneStats& stats, const Clock& clock, OnReport on_report);

  // --- Any thread.
  void post(PrefillJob job) { inbox_.push(std::move(job)); }
  // Ends a job early, also in mid-computation. A final report may already be on its way.
  void cancel(RequestId id);
  void close();
  [[nodiscard]] bool is_closed() const { return closed_.load(); }

  // --- Owner thread.
  // Computes one chunk of one prompt.
  StepOutcome step();
  // Its jobs end without a report, and their memory is free.
  void forget_all();
  // Waits for work. False once close() was called.
  bool wait(TimePoint until) { return inbox_.wait_drain(inbox_taken_, until); }
  [[nodiscard]] const llm::Context& context() const { return *context_; }
  void check_invariants();

 private:
  struct Cancel {
    RequestId id;
  };
  using Command = std::variant<PrefillJob, Cancel>;
  struct Job {
    PrefillJob asked;
    std::int32_t tokens_done = 0;  // in the context, or in the image
    TimePoint began{};
  };

  void take_commands();
  void forget(RequestId id);
  [[nodiscard]] Job& choose() const;
  // Makes `job` the resident one. False: its state could not be moved, and it has been reported as failed.
  [[nodiscard]] bool bring_in(Job& job);
  void put_aside();
  void set_resident(Job* job);
  void run_chunk(Job& job);
  [[nodiscard]] std::int32_t chunk_rows(const Job& job) const;
  void hand_over(Job& job, std::int32_t row);
  void fail_job(Job& job, Error error);
  void remove(const Job& job);

  // Constant after construction.
  const PrefillOptions options_;
  kv::BytePool& pool_;
  CoreShare& cores_;
  sched::BandwidthBudget& bandwidth_;
  LaneStats& stats_;
  const Clock& clock_;
  const OnReport on_report_;

  // Owned by the lane's thread.
  std::unique_ptr<llm::Context> context_;
  std::vector<std::unique_ptr<Job>> jobs_;
  Job* resident_ = nullptr;
  std::vector<llm::BatchRow> rows_;
  std::vector<Command> inbox_taken_;
  sched::StepModel step_model_;
  std::int32_t threads_ = 0;  // the context computes with

  // Shared.
  Mailbox<Command> inbox_;
  std::atomic<std::uint64_t> resident_id_{0};  // of the resident job's request; 0: none
  Interrupt interrupt_;
  std::atomic<bool> closed_{false};
};

}  // namespace uma::engine
