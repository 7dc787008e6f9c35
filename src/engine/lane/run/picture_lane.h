// One picture context and the pictures that wait for it. A call does one step of several pictures, of any requests and at any
// of their steps, or encodes or decodes one picture. The next pictures are those of the client for which the least work was
// done, so that a request of ten pictures does not delay a request of one; within a request they are drawn in order. The logic
// is step(); a thread is a loop around it.
//
// Invariants: (1) Every posted task gets exactly one outcome. (2) A step of a picture is either done or not begun: a call that
// was ended early is made again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/move_only_function.h"
#include "core/error.h"
#include "core/ids.h"
#include "engine/lane/plan/core_share.h"
#include "engine/lane/run/interrupt.h"
#include "engine/lane/run/prefill_lane.h"
#include "llm/picture/picture_drawing.h"
#include "llm/picture/picture_model.h"
#include "sched/fair_share.h"

namespace uma::engine {

// Why a request's pictures are not all finished, and the time that they took.
struct PictureOutcome {
  enum class End : std::uint8_t { done, cancelled, slow_consumer, failed };
  End end = End::done;
  Error error{};                // With `failed`.
  double queue_ms = 0;          // From receipt until the first call.
  double draw_ms = 0;           // From then on.
  std::int64_t steps_done = 0;  // Steps of all pictures.
};

// One request, ready to be drawn.
struct PictureTask {
  struct Step {
    std::int32_t picture;  // From 0.
    const llm::PictureDrawing& drawing;
    double eta_ms;             // Until all pictures are drawn.
    bool is_decoding = false;  // Not one of the drawing's steps: the finished picture was decoded.
  };
  // Gets the state of a picture after each step, and after it was decoded. False: the client reads too slowly, and the request
  // ends. Called from step().
  using OnStep = MoveOnlyFunction<bool(const Step& step)>;
  // Called from step() or cancel_all(), after the last on_step.
  using Done = MoveOnlyFunction<void(const PictureOutcome& outcome)>;

  RequestId id;
  llm::CaptionTokens caption;  // Result of the model's read_caption(), as is the next one.
  llm::CaptionTokens negative;
  llm::DrawingOptions drawing;  // Options of the first picture; the seeds of the others count up from its seed.
  // A picture that the drawings begin with, [height, width, 3], and the step they begin at; empty: noise.
  std::vector<std::uint8_t> begin{};
  std::int32_t first_step = 0;
  std::int64_t places = 1;  // That the model computes of a picture: its work.
  std::int32_t count = 1;
  sched::Flow flow;            // The tenant and client that the work is charged to.
  bool is_background = false;  // Runs only in the time that interactive requests leave.
  TimePoint received{};
  TimePoint deadline = kNever;  // For the whole request.
  OnStep on_step;
  Done done;
};

// Written by the lane's thread, read by any.
struct PictureStats {
  Counter requests_failed_total;
  Counter requests_cancelled_total;
  Counter pictures_total;  // Finished pictures.
  Counter steps_total;
  Counter calls_total;
  Gauge queue_depth;  // Requests in flight; also written by the threads that post them.
  Gauge threads;
  Gauge last_call_us;      // When a call last ended, by the engine's clock; 0: never.
  Gauge waiting_since_us;  // When the oldest request without a step was received; 0: there is none.
  LatencyHistogram call;
  LatencyHistogram request;  // From receipt to the outcome, for successful requests.
};

struct PictureLaneOptions {
  std::int32_t index = 0;
  std::int32_t threads = 1;            // Compute threads.
  double call_ms_max = 100;            // Target for a call, because cancels and new requests wait for its end.
  double call_ms_beside_streams = 50;  // Target while other lanes stream tokens.
  std::size_t queue_depth_warn = 50;   // Requests; more are logged as a warning; 0: never.
  // The lane's counters, which outlive it; null: it makes its own.
  std::shared_ptr<PictureStats> stats = nullptr;  // Shared with the readers of metrics.
  // Callbacks and workers as in EmbedLaneOptions.
  std::function<bool()> has_streams = nullptr;
  std::shared_ptr<BusyWorkers> workers = nullptr;  // Shared by all workers of the daemon.
  std::function<void()> on_lost = nullptr;
};

class PictureLane {
 public:
  // `clock` outlives the lane.
  PictureLane(PictureLaneOptions options, std::unique_ptr<llm::PictureContext> context, const Clock& clock);

  // --- Any thread.
  void post(PictureTask task);
  // Cancels a request, even within a call if it is the only one there. Its outcome may already have been delivered.
  void cancel(RequestId id);
  // Ends the loop around step(), even within a call.
  void close();
  [[nodiscard]] bool is_closed() const { return closed_.load(); }
  [[nodiscard]] const PictureStats& stats() const { return *stats_; }

  // --- Owner thread.
  // Makes one call if pictures wait.
  StepOutcome step();
  // Waits for work. False: close() was called and the queue is empty.
  bool wait(TimePoint until) { return inbox_.wait_drain(inbox_taken_, until); }
  // After close(): ends the remaining tasks as cancelled.
  void cancel_all();

 private:
  struct Cancel {
    RequestId id;
  };
  using Command = std::variant<PictureTask, Cancel>;
  struct Job {
    PictureTask asked;
    std::optional<llm::Caption> caption{};
    std::optional<llm::Caption> negative{};                        // Stays empty if the drawings do not need it.
    std::optional<std::vector<float>> begin{};                     // In the form that the model computes with.
    std::vector<std::unique_ptr<llm::PictureDrawing>> drawings{};  // One for each picture; null: not begun, or finished.
    std::int32_t finished = 0;
    std::int32_t decoded = 0;
    std::int64_t steps_done = 0;  // Steps of all pictures.
    TimePoint began{};            // When its first call began; zero: it has not.
  };
  struct Picked {
    Job* job = nullptr;
    std::int32_t picture = 0;
  };

  // The work that a picture needs next.
  enum class Work : std::uint8_t { step, encoding, decoding };
  [[nodiscard]] static Work work_of(const Picked& picture);
  void take_commands();
  void run(PictureTask& task);
  void run(const Cancel& cancel);
  void warn_of_depth();
  void end_lost();
  void expire(TimePoint now);
  [[nodiscard]] TimePoint first_deadline() const;
  void pick();
  void pick_among(bool is_background, std::int32_t pictures_max);
  [[nodiscard]] std::int32_t rows_allowed() const;
  void run_picked();
  [[nodiscard]] Expected<bool> run_call(std::span<const Picked> pictures);
  [[nodiscard]] Expected<bool> encode(Job& job);
  [[nodiscard]] Expected<bool> decode(const Picked& picture);
  [[nodiscard]] Expected<bool> read_captions(Job& job);
  void advance(const Picked& picture, std::size_t& row);
  void tell(const Picked& picture, bool is_decoding);
  void fail(Job& job, const Error& error);
  void end(Job& job, PictureOutcome outcome);
  void drop_ended();

  // Constant after construction.
  const PictureLaneOptions options_;
  const Clock& clock_;

  // Owned by the lane's thread.
  std::unique_ptr<llm::PictureContext> context_;
  std::vector<std::unique_ptr<Job>> jobs_;  // In order of arrival; a job without a `done` has ended.
  sched::FairShare share_;
  std::vector<Picked> picked_;
  std::vector<llm::DenoiseRow> rows_;
  std::vector<float> predicted_;  // By the last call, for each of its rows.
  std::vector<Command> inbox_taken_;
  double row_ms_ = 0;  // Measured; 0: not known yet.
  CoreShare cores_;
  std::int32_t threads_ = 0;    // The context's current number of threads.
  bool has_told_loss_ = false;  // on_lost was called.
  bool has_warned_ = false;     // The queue's depth was logged since the queue was last shallow.

  // Shared.
  Mailbox<Command> inbox_;
  std::atomic<std::uint64_t> alone_id_{0};  // The only request in the running call; 0: several requests, or no call.
  Interrupt interrupt_;
  std::atomic<bool> closed_{false};
  const std::shared_ptr<PictureStats> stats_;
};

}  // namespace uma::engine
