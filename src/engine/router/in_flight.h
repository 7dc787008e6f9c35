// The table of in-flight requests: generations, embeddings and rerankings that were accepted and have not ended. Owned by the
// router's thread.
//
// Invariants: (1) A request leaves the table once, by end() or by abort(). (2) abort() ends the request's task first, so that
// its locks, leases and images are released before the client gets the terminal event. (3) A request in a lane is cancelled
// there and never aborted: its lane reports its end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/move_only_function.h"
#include "base/timers.h"
#include "core/activity.h"
#include "core/agent.h"
#include "core/error.h"
#include "core/event.h"
#include "core/ids.h"
#include "core/limits.h"
#include "core/request.h"
#include "core/work/task.h"
#include "engine/lane/lane.h"
#include "engine/model/model_table.h"
#include "engine/router/prompt_memory.h"
#include "llm/adapters.h"
#include "sched/fair_share.h"

namespace uma::engine {

// How a request ends that has not run: a reason, or an error.
struct Abort {
  FinishReason reason = FinishReason::error;
  Error error{};  // For reason `error` only.
};

// A prompt that is compared with earlier ones.
struct WatchedPrompt {
  PromptComparison found;
  std::string id;     // Comparison::id
  std::string model;  // PromptFacts::model
  std::uint64_t settings = 0;
  std::int32_t reply_message = 0;  // PromptReply::message
};

struct InFlight {
  RequestId id;
  std::uint64_t task = 0;  // Its id in the TaskRunner; 0: the request has no task.
  std::string model{};     // The model that the request waits for or uses; empty: not known yet.
  SessionId session{};     // Empty: the request has no session.
  sched::Flow flow{};
  Agent agent{};
  TimePoint received{};
  TimePoint timeout = kNever;                     // For the whole request.
  std::optional<std::int64_t> deadline_ms{};      // GenerateOptions
  std::vector<std::shared_ptr<EventSink>> sinks;  // For a generation: one for each reply, shared with the listener.
  bool wants_progress = false;
  bool is_kept_by_client = false;  // The conversation: its replies come back as messages.
  bool is_background = false;
  RequestShare share{};                    // The memory that the request is charged for.
  std::stop_source end;                    // Requested when the request ends: work for it on other threads may stop.
  ModelLease lease;                        // Empty: the request waits for the model.
  llm::AdapterSet adapters{};              // For a generation.
  std::int32_t unseen_images = 0;          // Usage
  std::optional<WatchedPrompt> watched{};  // For a generation: of its first reply.

  // Applies while the request waits for memory for its model, or for another reply in its conversation.
  TimePoint deadline = kNever;

  // Reports an end by abort() to the client of a request without sinks. Those of others get their terminal event.
  MoveOnlyFunction<void(const Abort& how)> on_abort;
  // Ends the request in its lane, which then reports the end in any case; null: the request is in no lane.
  std::function<void()> cancel_in_lane{};
  const Lane* lane = nullptr;  // for a generation
  std::optional<Promise<GenerationResult>> on_result{};
  bool has_result = false;
};

class InFlightTable {
 public:
  // The references outlive the table.
  // `refused` counts requests that end with an error before they run.
  InFlightTable(const Limits& limits, TaskRunner& tasks, ModelTable& models, const Clock& clock, Counter& refused)
      : limits_(limits), tasks_(tasks), models_(models), clock_(clock), refused_(refused), expiry_(tasks.timers()) {}

  // From now on requests are refused.
  void drain() { is_draining_ = true; }
  // Checks whether a request may begin while `waiting` others wait. Errors: E_LIMIT_003.
  [[nodiscard]] Expected<Unit> admit(std::int64_t waiting) const;
  // Accepts a request. The reference is valid until the request ends.
  InFlight& begin(InFlight request);
  // Starts the request's task, which ends the request.
  void start(InFlight& request, Task<> task);
  [[nodiscard]] InFlight* find(RequestId id);
  [[nodiscard]] bool contains(RequestId id) const { return requests_.contains(id); }
  // A request of the session, which may wait for another one; null: the session has none.
  [[nodiscard]] InFlight* find_of(const SessionId& session);
  void for_each(auto&& visit) {
    for (auto& [id, request] : requests_) visit(request);
  }

  // Splits a request whose prompt is prepared into one request for each reply. The first one keeps the request's id.
  [[nodiscard]] std::vector<RequestId> split(InFlight& request);
  // The request enters the lane. `cancel` ends it there, at any time before its result.
  void set_in_lane(InFlight& request, Lane& lane);
  void set_in_lane(InFlight& request, std::function<void()> cancel);
  // The request begins to wait for something that its deadline limits.
  void set_deadline(InFlight& request);
  [[nodiscard]] TimePoint deadline_of(const InFlight& request) const;
  // Called by the request's task. The caller sends the terminal event afterwards.
  void end(InFlight& request);
  // Ends a request that is in no lane.
  void abort(InFlight& request, const Abort& how);
  // Cancels the request in its lane, or by abort(). False: there is no such request.
  bool cancel(RequestId id);
  // Aborts all requests without a result as cancelled. Requires: the lanes have ended.
  void abort_all();

  // The load of the model waits for `bytes` of memory, and the deadlines of its requests apply meanwhile; 0: the load
  // continues.
  void on_load_queued(const std::string& model, std::uint64_t bytes);
  // Reports the progress of the load to the requests that wait for the model.
  void on_load_progress(const std::string& model, std::int64_t percent);

  // The number of requests in the lane.
  [[nodiscard]] std::int64_t count_in(const Lane* lane) const;
  [[nodiscard]] std::int64_t generations() const { return generations_; }
  [[nodiscard]] std::int64_t embeddings() const { return embeddings_; }
  [[nodiscard]] bool is_empty() const { return requests_.empty(); }
  // The requests that are in no lane, the oldest first: the first `count`, and the number of all.
  [[nodiscard]] std::vector<WaitingRequest> first_unsent(std::size_t count) const;
  [[nodiscard]] std::int64_t unsent_count() const { return std::ssize(unsent_); }
  // The number of those of each tenant, by its name; no entry: none.
  [[nodiscard]] const std::map<std::string, std::int64_t>& unsent_of_tenants() const { return unsent_of_tenants_; }

  // --- Any thread.
  [[nodiscard]] std::int64_t count() const { return count_.value(); }
  // When the oldest request that is in no lane was received, by the clock, in µs; 0: there is no such request.
  [[nodiscard]] std::int64_t waiting_since_us() const { return waiting_since_us_.value(); }

 private:
  void set_sent(const InFlight& request);
  void expire_by(TimePoint time);
  void expire();

  const Limits& limits_;
  TaskRunner& tasks_;
  ModelTable& models_;
  const Clock& clock_;
  Counter& refused_;

  std::unordered_map<RequestId, InFlight> requests_;
  std::int64_t generations_ = 0;                            // Replies in flight.
  std::int64_t embeddings_ = 0;                             // Embedding and reranking requests in flight.
  std::unordered_map<const Lane*, std::int64_t> count_in_;  // Number of requests in each lane; no entry: none.
  std::map<RequestId, TimePoint> unsent_;                   // When the requests that are in no lane were received.
  std::map<std::string, std::int64_t> unsent_of_tenants_;   // Their number; no entry: none.
  Timer expiry_;
  bool is_draining_ = false;

  // Shared.
  Gauge count_;
  Gauge waiting_since_us_;
};

}  // namespace uma::engine
