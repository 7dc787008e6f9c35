// One embedding context and the texts that wait for it. Texts of different requests share the calls: whoever has had the least
// work done is next, so that a request of a thousand texts does not hold up one of a single text. The logic is step(); a thread
// is a loop around it.
//
// Invariants: (1) every task that was posted gets exactly one result. (2) Between two steps a text is computed or it waits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "capability/text_embedding.h"
#include "core/error.h"
#include "core/ids.h"
#include "engine/core_share.h"
#include "engine/interrupt.h"
#include "engine/prefill_lane.h"
#include "llm/embedding.h"
#include "sched/fair_share.h"

namespace uma::engine {

// One request, ready to be computed.
struct EmbedTask {
  // What was computed of the texts, one output after the other; or why not. Called from step() or cancel_all().
  using Done = std::move_only_function<void(const capability::EmbedTexts& texts, Expected<std::vector<float>> outputs)>;

  RequestId id;
  capability::EmbedTexts texts;  // each within the context's shape; at least one
  sched::Flow flow;              // whose it is
  bool is_background = false;    // only where others leave room
  TimePoint received{};
  TimePoint deadline = kNever;  // until it is done
  Done done;

  // Counted while it waits.
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(texts.tokens) * sizeof(Token); }
};

// Written by the lane's thread, read by any.
struct EmbedStats {
  Counter requests_total;  // that have ended, however
  Counter requests_failed_total;
  Counter requests_cancelled_total;
  Counter texts_total;   // that were computed
  Counter tokens_total;  // of them
  Counter calls_total;
  Gauge queue_depth;  // requests that have not ended; also written by who sends them
  Gauge queue_bytes;  // likewise
  Gauge threads;
  Gauge last_call_us;      // when a call last ended, by the engine's clock; 0: never
  Gauge waiting_since_us;  // receipt of the oldest request of which nothing is computed yet; 0: there is none
  LatencyHistogram call;
  LatencyHistogram request;  // from receipt until it was done, of those that were
};

struct EmbedLaneOptions {
  std::int32_t index = 0;
  std::int32_t threads = 1;            // compute threads
  double call_ms_max = 250;            // wanted of a call: who comes waits for the one that runs
  double call_ms_beside_streams = 50;  // while others stream tokens
  std::size_t queue_depth_warn = 50;   // requests; more are worth a line in the log; 0: never
  // Its counters, which outlive it; null: its own.
  std::shared_ptr<EmbedStats> stats = nullptr;  // shared with who reads them later
  // Whether others stream tokens; asked before each call. Null: never.
  std::function<bool()> has_streams = nullptr;
  // With which it shares the threads; null: there are no others.
  std::shared_ptr<BusyWorkers> workers = nullptr;  // shared by all workers of the daemon
};

class EmbedLane {
 public:
  // `clock` outlives the lane.
  EmbedLane(EmbedLaneOptions options, std::unique_ptr<llm::EmbeddingContext> context, const Clock& clock);

  // --- Any thread.
  void post(EmbedTask task);
  // Ends a request early, as cancelled, also in mid-computation where it is computed alone. Its result may already be there.
  void cancel(RequestId id);
  // Ends the loop around step(), in mid-computation.
  void close();
  [[nodiscard]] bool is_closed() const { return closed_.load(); }
  [[nodiscard]] const EmbedStats& stats() const { return *stats_; }
  [[nodiscard]] const llm::EmbeddingShape& shape() const { return context_->shape(); }

  // --- Owner thread.
  // Makes one call, if texts wait.
  StepOutcome step();
  // Waits for work. False once close() was called and nothing is left to take.
  bool wait(TimePoint until) { return inbox_.wait_drain(inbox_taken_, until); }
  // After close(): every task that is left ends as cancelled.
  void cancel_all();

 private:
  struct Cancel {
    RequestId id;
  };
  using Command = std::variant<EmbedTask, Cancel>;
  struct Job {
    EmbedTask asked;
    std::size_t texts_done = 0;  // the first ones
    std::int64_t tokens_done = 0;
    std::size_t texts_taken = 0;  // into the next call, beside those that are done
    std::vector<float> outputs;
  };
  struct Picked {
    Job* job = nullptr;
    std::size_t text = 0;
  };

  void take_commands();
  void run(Command& command);
  void warn_of_depth();
  void expire(TimePoint now);
  void pick_texts();
  void pick_among(bool is_background, std::int32_t rows_max, std::int32_t& rows);
  [[nodiscard]] std::int32_t rows_allowed() const;
  [[nodiscard]] Expected<bool> run_call(std::span<const Picked> texts);
  void run_one_by_one();
  void keep_outputs(std::span<const Picked> texts);
  void end(Job& job, Expected<std::vector<float>> result);
  void drop_ended();

  // Constant after construction.
  const EmbedLaneOptions options_;
  const Clock& clock_;

  // Owned by the lane's thread.
  std::unique_ptr<llm::EmbeddingContext> context_;
  std::vector<std::unique_ptr<Job>> jobs_;  // in the order they came; one without a `done` has ended
  sched::FairShare share_;
  std::vector<Picked> picked_;
  std::vector<std::span<const Token>> texts_;
  std::vector<float> outputs_;  // of the last call
  std::vector<Command> inbox_taken_;
  double row_ms_ = 0;  // measured; 0: nothing is known
  CoreShare cores_;
  std::int32_t threads_ = 0;  // the context computes with
  bool has_warned_ = false;   // of the queue's depth, since it was shallow

  // Shared.
  Mailbox<Command> inbox_;
  std::atomic<std::uint64_t> alone_id_{0};  // of the only request in the call that runs; 0: several, or none runs
  Interrupt interrupt_;
  std::atomic<bool> closed_{false};
  const std::shared_ptr<EmbedStats> stats_;
};

}  // namespace uma::engine
