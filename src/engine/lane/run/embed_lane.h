// One embedding context and the texts that wait for it. Texts of different requests share calls; a text with images has a call
// of its own, once its images are encoded. The next texts are those of the client for which the least work was done, so that a
// request of a thousand texts, or of many images, does not delay a request of one text. The logic is step(); a thread is a loop
// around it.
//
// Invariants: (1) Every posted task gets exactly one result. (2) Between two steps every text is either computed or waiting.
// (3) Only prepared jobs hold rows of images, of one text each, and at most kPreparedMax jobs of each class are prepared.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/move_only_function.h"
#include "core/error.h"
#include "core/ids.h"
#include "engine/lane/plan/core_share.h"
#include "engine/lane/run/encode_image.h"
#include "engine/lane/run/interrupt.h"
#include "engine/lane/run/prefill_lane.h"
#include "image/image_runs.h"
#include "llm/embedding.h"
#include "llm/text_embedding.h"
#include "sched/fair_share.h"

namespace uma::engine {

// One request, ready to be computed.
struct EmbedTask {
  // Gets the outputs of the texts one after another, or an error. Called from step() or cancel_all().
  using Done = MoveOnlyFunction<void(const llm::EmbedTexts& texts, Expected<std::vector<float>> outputs)>;

  RequestId id;
  llm::EmbedTexts texts;  // Each fits the context's shape; at least one.
  // The images of each text, whose files the request holds; empty: no text has images.
  std::vector<std::vector<image::ImageRun>> images{};
  sched::Flow flow;            // The tenant and client that the work is charged to.
  bool is_background = false;  // Runs only in the time that interactive requests leave.
  TimePoint received{};
  TimePoint deadline = kNever;  // For the whole request.
  Done done;

  // The memory that the waiting task counts for.
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(texts.tokens) * sizeof(Token); }
};

// Written by the lane's thread, read by any.
struct EmbedStats {
  Counter requests_total;  // Ended requests, with any outcome.
  Counter requests_failed_total;
  Counter requests_cancelled_total;
  Counter texts_total;   // Computed texts.
  Counter tokens_total;  // Tokens of the computed texts.
  Counter calls_total;
  Gauge queue_depth;  // Requests in flight; also written by the threads that post them.
  Gauge queue_bytes;  // Written in the same way.
  Gauge queue_texts;  // Their texts that are not computed yet; written in the same way.
  Gauge threads;
  Gauge last_call_us;      // When a call last ended, by the engine's clock; 0: never.
  Gauge waiting_since_us;  // When the oldest request without a computed text was received; 0: there is none.
  LatencyHistogram call;
  LatencyHistogram request;  // From receipt to the result, for successful requests.
};

struct EmbedLaneOptions {
  std::int32_t index = 0;
  std::int32_t threads = 1;            // Compute threads.
  double call_ms_max = 250;            // Target for a call, because new requests wait for its end.
  double call_ms_beside_streams = 50;  // Target while other lanes stream tokens.
  std::size_t queue_depth_warn = 50;   // Requests; more are logged as a warning; 0: never.
  // The lane's counters, which outlive it; null: it makes its own.
  std::shared_ptr<EmbedStats> stats = nullptr;  // Shared with the readers of metrics.
  // Whether other lanes stream tokens; called before each call. Null: never.
  std::function<bool()> has_streams = nullptr;
  // The workers that share the threads; null: there is no other worker.
  std::shared_ptr<BusyWorkers> workers = nullptr;  // Shared by all workers of the daemon.
  // Encodes an image (LaneOptions::encode); null: texts have no images.
  EncodeImage encode = nullptr;
  // The callback for a lost device (LaneOptions::on_lost).
  std::function<void()> on_lost = nullptr;
};

class EmbedLane {
 public:
  static constexpr std::size_t kPreparedMax = 2;  // One text with images is computed while those of another are encoded.

  // `clock` outlives the lane.
  EmbedLane(EmbedLaneOptions options, std::unique_ptr<llm::EmbeddingContext> context, const Clock& clock);

  // --- Any thread.
  void post(EmbedTask task);
  // Cancels a request, even within a call if it is the only one there. Its result may already have been delivered.
  void cancel(RequestId id);
  // Ends the loop around step(), even within a call.
  void close();
  [[nodiscard]] bool is_closed() const { return closed_.load(); }
  [[nodiscard]] const EmbedStats& stats() const { return *stats_; }
  [[nodiscard]] const llm::EmbeddingShape& shape() const { return context_->shape(); }
  // Texts beyond those of one call; 0 for a single request, which another worker could not help.
  [[nodiscard]] std::int64_t backlog() const;

  // --- Owner thread.
  // Makes one call if texts wait.
  StepOutcome step();
  // Waits for work. False: close() was called and the queue is empty.
  bool wait(TimePoint until) { return inbox_->wait_drain(inbox_taken_, until); }
  // After close(): ends the remaining tasks as cancelled.
  void cancel_all();

 private:
  struct Cancel {
    RequestId id;
  };
  using Command = std::variant<EmbedTask, Cancel, EncodedReport>;
  struct Job {
    EmbedTask asked;
    std::size_t texts_done = 0;  // Number of computed texts, from the first on.
    std::int64_t tokens_done = 0;
    std::size_t texts_taken = 0;  // Number of texts in the next call, behind the computed ones.
    bool is_prepared = false;     // The images of its next text are encoded, or are being encoded.
    std::vector<float> outputs;
  };
  struct Picked {
    Job* job = nullptr;
    std::size_t text = 0;
  };

  void take_commands();
  void run(Command& command);
  void run(EmbedTask& task);
  void run(const Cancel& cancel);
  void run(const EncodedReport& report);
  void end_lost();
  void warn_of_depth();
  void expire(TimePoint now);
  // The images of a text of the job.
  [[nodiscard]] static std::span<image::ImageRun> images_of(Job& job, std::size_t text);
  [[nodiscard]] static bool is_ready(Job& job);
  void prepare_images();
  void choose_prepared(bool is_background);
  void request_encodings(Job& job);
  [[nodiscard]] bool is_needed(const AskedImage& asked) const;
  [[nodiscard]] std::vector<llm::ImageRows> rows_of(const Picked& text) const;
  [[nodiscard]] TimePoint first_deadline() const;
  void pick_texts();
  void pick_among(bool is_background, std::int32_t rows_max, std::int32_t& rows);
  [[nodiscard]] std::int32_t rows_allowed() const;
  [[nodiscard]] Expected<bool> run_call(std::span<const Picked> texts);
  void run_one_by_one();
  void fail_text(const Picked& text, const Error& error);
  void keep_outputs(std::span<const Picked> texts);
  void end(Job& job, Expected<std::vector<float>> result);
  void drop_ended();

  // Constant after construction.
  const EmbedLaneOptions options_;
  const Clock& clock_;

  // Owned by the lane's thread.
  std::unique_ptr<llm::EmbeddingContext> context_;
  std::vector<std::unique_ptr<Job>> jobs_;  // In order of arrival; a job without a `done` has ended.
  sched::FairShare share_;
  std::vector<Picked> picked_;
  std::vector<std::span<const Token>> texts_;
  std::map<AskedImage, std::stop_source> encoding_;  // Images whose encodings were requested; ends them.
  std::vector<float> outputs_;                       // The outputs of the last call.
  std::vector<Command> inbox_taken_;
  double row_ms_ = 0;  // Measured; 0: not known yet.
  CoreShare cores_;
  std::int32_t threads_ = 0;    // The context's current number of threads.
  bool has_told_loss_ = false;  // on_lost was called.
  bool has_warned_ = false;     // The queue's depth was logged since the queue was last shallow.

  // Shared.
  const std::shared_ptr<Mailbox<Command>> inbox_ = std::make_shared<Mailbox<Command>>();  // Shared with requested encodings.
  std::atomic<std::uint64_t> alone_id_{0};  // The only request in the running call; 0: several requests, or no call.
  Interrupt interrupt_;
  std::atomic<bool> closed_{false};
  const std::shared_ptr<EmbedStats> stats_;
};

}  // namespace uma::engine
