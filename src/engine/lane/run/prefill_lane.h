// Computes prompts in a context of its own, beside the lane that decodes, and hands each over as a snapshot: on a CPU a long
// prompt then takes some cores from the streams but does not pause them (docs/decisions/0011). One prompt at a time is in the
// context; a more urgent one replaces it between two chunks, and the state of the first is saved. It runs as a step(), like the
// lane that it serves.
//
// Invariants: (1) Every job gets exactly one final report, unless it is cancelled. (2) The context holds only tokens of
// `resident_`.
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
#include "engine/lane/lane_stats.h"
#include "engine/lane/plan/core_share.h"
#include "engine/lane/run/interrupt.h"
#include "image/image_runs.h"
#include "kv/snapshot.h"
#include "llm/adapters.h"
#include "llm/model.h"
#include "sched/bytes_moved.h"
#include "sched/step_model.h"

namespace uma::engine {

struct StepOutcome {
  bool did_work = false;  // False: there is no work before `wake`, unless a command comes.
  TimePoint wake = kNever;
};

struct PrefillJob {
  RequestId id;
  std::vector<Token> tokens;              // The whole chain.
  std::vector<image::ImageRun> images{};  // The images among the tokens; those beyond the snapshot are encoded.
  llm::AdapterSet adapters{};
  std::optional<kv::Snapshot> snapshot;  // State of the beginning of the chain.
  ByteBudget::Share reservation{};       // The memory for the state of the whole chain, including `snapshot`.
  ByteBudget::Share wider_context{};     // The memory for a wider context, if the chain needs one (PrefillLane::wider_bytes).
  bool is_background = false;
  TimePoint received{};
  TimePoint placed{};      // When it got its slot.
  TimePoint due = kNever;  // When its first token is due.
};

struct PrefillReport {
  RequestId id;
  std::int32_t tokens_done = 0;
  TimePoint began{};
  // The final report of a job has `snapshot` or `error`. The logits are those after the last token.
  std::optional<kv::Snapshot> snapshot;
  std::vector<float> logits;
  std::optional<Error> error;

  [[nodiscard]] bool is_final() const { return snapshot || error; }
};

struct PrefillOptions {
  sched::WeightBytes weights;
  bool is_reproducible = false;   // See LaneOptions.
  llm::MakeContext make_wider{};  // Null: the context never becomes wider.
  std::int32_t cells_max = 0;     // Limit of a wider context.
};

class PrefillLane {
 public:
  using OnReport = std::function<void(PrefillReport)>;

  // `context` computes one sequence. It becomes wider for a longer prompt, and narrow again after a while without one. The
  // references outlive the lane. `on_report` is called from step().
  PrefillLane(std::unique_ptr<llm::Context> context, const PrefillOptions& options, kv::BytePool& pool, CoreShare& cores,
              sched::BandwidthBudget& bandwidth, LaneStats& stats, const Clock& clock, OnReport on_report);

  // --- Any thread.
  void post(PrefillJob job) {
    cores_.prefill_job_sent();
    inbox_.push(std::move(job));
  }
  // Cancels a job, even within a call. Its final report may already have been sent.
  void cancel(RequestId id);
  void close();
  [[nodiscard]] bool is_closed() const { return closed_.load(); }
  // The tokens of the longest prompt, in the present context and in the widest one.
  [[nodiscard]] std::int32_t cells() const { return cells_.load(); }
  [[nodiscard]] std::int32_t cells_max() const {
    return options_.make_wider ? options_.cells_max : first_shape_.sequence_cells_max;
  }
  // The shape of the context that will compute a prompt of so many tokens, with its approximate size.
  [[nodiscard]] llm::ContextShape shape_for(std::int32_t tokens) const;
  // The memory to reserve for a wider context before a prompt of so many tokens is posted; 0: the present one is wide enough.
  [[nodiscard]] std::uint64_t wider_bytes(std::int32_t tokens) const {
    return tokens <= cells() ? 0 : shape_for(tokens).memory_bytes;
  }

  // --- Owner thread.
  // Computes one chunk of one prompt.
  StepOutcome step();
  // Ends all jobs without reports and frees their memory.
  void forget_all();
  // Waits for work. False: close() was called.
  bool wait(TimePoint until) { return inbox_.wait_drain(inbox_taken_, until); }
  [[nodiscard]] const llm::Context& context() const { return *context_; }
  void check_invariants();

 private:
  struct Cancel {
    RequestId id;
  };
  using Command = std::variant<PrefillJob, Cancel>;
  struct Job {
    PrefillJob asked;  // The snapshot of the resident job stays, if it has pieces: others are added when the job is saved.
    std::int32_t tokens_done = 0;  // In the context, or in its snapshot.
    TimePoint began{};
  };
  // A call of the library.
  struct Call {
    Expected<llm::DecodeStatus> status;
    TimePoint began;
    TimePoint ended;
    double ms;  // Without the waits for the streams' cores.
  };

  void take_commands();
  void forget(RequestId id);
  [[nodiscard]] Job& choose() const;
  // Makes `job` the resident one. False: a state could not be moved, and the job was reported as failed.
  [[nodiscard]] bool make_resident(Job& job);
  void save_resident();
  [[nodiscard]] Expected<Unit> replace_context(std::int32_t cells, ByteBudget::Share room);
  [[nodiscard]] StepOutcome rest();
  [[nodiscard]] Expected<kv::Snapshot> save(Job& job, std::int32_t count);
  void drop_snapshot(Job& job);
  void set_resident(Job* job);
  void run_chunk(Job& job);
  [[nodiscard]] Call decode_chunk(Job& job, const image::ImageRun* image, std::int32_t end);
  void keep_computed_rows(Job& job);
  void record_chunk(const Job& job, std::int32_t rows, const Call& call);
  [[nodiscard]] std::int32_t chunk_rows(const Job& job) const;
  void hand_over(Job& job, std::int32_t row);
  void fail_job(Job& job, Error error);
  void remove(Job& job);

  // Constant after construction.
  const PrefillOptions options_;
  kv::BytePool& pool_;
  CoreShare& cores_;
  sched::BandwidthBudget& bandwidth_;
  LaneStats& stats_;
  const Clock& clock_;
  const OnReport on_report_;
  const llm::ContextShape first_shape_;

  // Owned by the lane's thread.
  ByteBudget::Share wider_room_;  // The memory by which the context is larger than the first one.
  std::unique_ptr<llm::Context> context_;
  TimePoint wide_until_{};  // When a wider context is replaced if no prompt needs it.
  std::vector<std::unique_ptr<Job>> jobs_;
  Job* resident_ = nullptr;
  std::vector<llm::BatchRow> rows_;
  std::vector<Command> inbox_taken_;
  sched::StepModel step_model_{context_->shape().attention_share};
  std::int32_t threads_ = 0;  // The context's current number of threads.

  // Shared.
  std::atomic<std::int32_t> cells_;
  Mailbox<Command> inbox_;
  Mutex resident_mutex_;
  RequestId resident_id_ GUARDED_BY(resident_mutex_);  // The request of the resident job; 0: none.
  Interrupt interrupt_;
  std::atomic<bool> closed_{false};
};

}  // namespace uma::engine
