// The requests that were accepted and have not ended: generations, embeddings and rerankings. Owned by the router's thread.
//
// Invariants: (1) A request leaves the table once, by end() or by abort(). (2) abort() ends the request's task first, so what
// the task holds (locks, leases, images) ends before the client hears of it. (3) A request that a lane has is cancelled there,
// never aborted: its lane reports its end.
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
#include "core/error.h"
#include "core/event.h"
#include "core/ids.h"
#include "core/limits.h"
#include "core/request.h"
#include "core/task.h"
#include "engine/lane.h"
#include "engine/served_models.h"
#include "sched/fair_share.h"

namespace uma::engine {

// How a request ends without having run: a reason, or an error.
struct Abort {
  FinishReason reason = FinishReason::error;
  Error error{};  // reason error only
};

struct InFlight {
  RequestId id;
  std::uint64_t task = 0;  // of the TaskRunner; 0: it has none
  std::string model{};     // that it waits for or uses; empty: not known yet
  SessionId session{};     // that it is of; empty: none
  sched::Flow flow{};
  TimePoint received{};
  TimePoint timeout = kNever;                     // of the whole
  std::optional<std::int64_t> deadline_ms{};      // GenerateOptions
  std::vector<std::shared_ptr<EventSink>> sinks;  // of a generation: shared with the door, one for each reply
  bool wants_progress = false;
  RequestShare share{};  // of memory
  std::stop_source end;  // requested when it ends: what is done for it elsewhere may stop
  ModelUse use;          // empty: it waits for the model

  // While it waits for memory for its model, or for the reply that is being made in its conversation.
  TimePoint deadline = kNever;

  // Tells the client of an end by abort().
  std::move_only_function<void(const Abort& how)> on_abort;
  // Ends it in the lane that has it, which then reports its end whatever happens; null: no lane has it.
  std::function<void()> cancel_in_lane{};
  const Lane* lane = nullptr;  // of a generation
  std::optional<Reply<GenerationResult>> on_result{};
  bool has_result = false;
};

class InFlightTable {
 public:
  // The references outlive the table.
  InFlightTable(const Limits& limits, TaskRunner& tasks, ServedModels& models, const Clock& clock)
      : limits_(limits), tasks_(tasks), models_(models), clock_(clock) {}

  // From now on no request may begin.
  void drain() { is_draining_ = true; }
  // Whether a request may begin while `waiting` others wait. Errors: E_LIMIT_003.
  [[nodiscard]] Expected<Unit> admit(std::int64_t waiting) const;
  // Accepts a request. The reference is valid until its end.
  InFlight& begin(InFlight request);
  // Starts the task that ends the request.
  void start(InFlight& request, Task<> task);
  [[nodiscard]] InFlight* find(RequestId id);
  [[nodiscard]] bool contains(RequestId id) const { return requests_.contains(id); }
  // A request of the session; null: there is none.
  [[nodiscard]] InFlight* find_of(const SessionId& session);
  void for_each(auto&& visit) {
    for (auto& [id, request] : requests_) visit(request);
  }

  // The replies to one prompt, which is prepared, go on as requests of their own, the first one with the request's id.
  [[nodiscard]] std::vector<RequestId> split(InFlight& request);
  // The lane that has it from now on; `cancel` ends it there, at any time before its result.
  void set_in_lane(InFlight& request, Lane& lane);
  void set_in_lane(InFlight& request, std::function<void()> cancel);
  // It waits for something that its deadline bounds.
  void set_deadline(InFlight& request);
  [[nodiscard]] TimePoint deadline_of(const InFlight& request) const;
  // Its task ends it; the client is told by the caller, afterwards.
  void end(InFlight& request);
  // No lane has it.
  void abort(InFlight& request, const Abort& how);
  // In its lane, or by abort(). False: there is no such request.
  bool cancel(RequestId id);
  // Aborts every request whose result is not there, as cancelled. REQUIRES: the lanes have ended.
  void abort_all();
  // Ends requests past their timeout or deadline that no lane has: lanes watch over their own.
  void expire();
  [[nodiscard]] TimePoint next_expiry() const { return next_expiry_; }

  // For requests that wait for the model: `bytes` of memory are missing, and deadlines count meanwhile; 0: the load goes on.
  void on_load_queued(const std::string& model, std::uint64_t bytes);
  // They hear how far the load is, in percent.
  void on_load_progress(const std::string& model, std::int64_t percent);

  // Requests that the lane has.
  [[nodiscard]] std::int64_t count_in(const Lane* lane) const;
  [[nodiscard]] std::int64_t generations() const { return generations_; }
  [[nodiscard]] std::int64_t embeddings() const { return embeddings_; }
  [[nodiscard]] bool is_empty() const { return requests_.empty(); }

  // --- Any thread.
  [[nodiscard]] std::int64_t count() const { return count_.value(); }
  // Receipt of the oldest request that no lane has, by the clock, in µs; 0: there is none.
  [[nodiscard]] std::int64_t waiting_since_us() const { return waiting_since_us_.value(); }

 private:
  void set_sent(RequestId id);

  const Limits& limits_;
  TaskRunner& tasks_;
  ServedModels& models_;
  const Clock& clock_;

  std::unordered_map<RequestId, InFlight> requests_;
  std::int64_t generations_ = 0;                            // replies that clients wait for
  std::int64_t embeddings_ = 0;                             // requests for embeddings or a ranking
  std::unordered_map<const Lane*, std::int64_t> count_in_;  // requests that each lane has; no entry: none
  std::map<RequestId, TimePoint> unsent_;                   // receipt of those that no lane has
  TimePoint next_expiry_ = kNever;
  bool is_draining_ = false;

  // Shared.
  Gauge count_;
  Gauge waiting_since_us_;
};

}  // namespace uma::engine
