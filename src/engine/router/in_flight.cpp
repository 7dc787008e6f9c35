#include "engine/router/in_flight.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "base/thrown.h"

namespace uma::engine {

Expected<Unit> InFlightTable::admit(std::int64_t waiting) const {
  if (is_draining_) return fail(ErrorCode::limit_wait, "the daemon is shutting down and takes no new requests");
  const auto waiting_max = static_cast<std::int64_t>(limits_.queue_max);
  if (waiting_max > 0 && waiting >= waiting_max) {
    return fail(ErrorCode::limit_wait,
                std::format("{} requests wait already, limits.queue_max is {}: try again later", waiting, waiting_max));
  }
  return Unit{};
}

InFlight& InFlightTable::begin(InFlight request) {
  const RequestId id = request.id;
  InFlight& begun = requests_.insert_or_assign(id, std::move(request)).first->second;
  generations_ += std::ssize(begun.sinks);
  embeddings_ += begun.sinks.empty() ? 1 : 0;
  count_.set(generations_ + embeddings_);
  expire_by(begun.timeout);
  if (unsent_.emplace(id, begun.received).second) ++unsent_of_tenants_[begun.flow.tenant];
  waiting_since_us_.set(to_us(unsent_.begin()->second));
  return begun;
}

void InFlightTable::start(InFlight& request, Task<> task) {
  const RequestId id = request.id;
  const std::uint64_t started = tasks_.start(std::move(task));
  if (InFlight* left = find(id)) left->task = started;  // The task may have ended the request already.
}

InFlight* InFlightTable::find(RequestId id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : &found->second;
}

InFlight* InFlightTable::find_of(const SessionId& session) {
  const auto found = std::ranges::find_if(requests_, [&](const auto& entry) { return entry.second.session == session; });
  return found == requests_.end() ? nullptr : &found->second;
}

std::vector<RequestId> InFlightTable::split(InFlight& request) {
  std::vector<RequestId> ids{request.id};
  const std::vector<std::shared_ptr<EventSink>> sinks = std::move(request.sinks);
  request.sinks = {sinks.front()};
  generations_ -= std::ssize(sinks) - 1;
  for (std::size_t i = 1; i < sinks.size(); ++i) {
    const RequestId id{request.id.value + i};
    begin({.id = id,
           .model = request.model,
           .flow = request.flow,
           .agent = request.agent,
           .received = request.received,
           .timeout = request.timeout,
           .deadline_ms = request.deadline_ms,
           .sinks = {sinks[i]},
           .wants_progress = request.wants_progress,
           .is_kept_by_client = request.is_kept_by_client,
           .is_background = request.is_background,
           .share = request.share,
           .end = {},
           .lease = request.lease.share(),
           .adapters = request.adapters,
           .on_abort = {}});
    ids.push_back(id);
  }
  return ids;
}

// The request does not wait for a lane any more: it is in one, or has ended.
void InFlightTable::set_sent(const InFlight& request) {
  if (unsent_.erase(request.id) == 0) return;
  if (const auto counted = unsent_of_tenants_.find(request.flow.tenant); --counted->second == 0) {
    unsent_of_tenants_.erase(counted);
  }
  waiting_since_us_.set(unsent_.empty() ? 0 : to_us(unsent_.begin()->second));
}

void InFlightTable::set_in_lane(InFlight& request, Lane& lane) {
  request.lane = &lane;
  ++count_in_[&lane];
  set_in_lane(request, [&lane, id = request.id] { lane.post(CancelCommand{id}); });
}

void InFlightTable::set_in_lane(InFlight& request, std::function<void()> cancel) {
  request.cancel_in_lane = std::move(cancel);
  set_sent(request);
}

std::int64_t InFlightTable::count_in(const Lane* lane) const {
  const auto found = count_in_.find(lane);
  return found == count_in_.end() ? 0 : found->second;
}

std::vector<WaitingRequest> InFlightTable::first_unsent(std::size_t count) const {
  std::vector<WaitingRequest> first;
  for (const auto& [id, received] : unsent_) {
    if (first.size() == count) break;
    const InFlight& request = requests_.at(id);
    first.push_back({.request = id,
                     .model = request.model,
                     .tenant = request.flow.tenant,
                     .agent = request.agent,
                     .is_background = request.is_background,
                     .stage = request.lease.is_empty() ? WaitStage::loading : WaitStage::preparing,
                     .since = received});
  }
  return first;
}

// --- Ends

void InFlightTable::end(InFlight& request) {
  (void)request.end.request_stop();
  if (const auto counted = count_in_.find(request.lane); counted != count_in_.end() && --counted->second == 0) {
    count_in_.erase(counted);
  }
  generations_ -= std::ssize(request.sinks);
  embeddings_ -= request.sinks.empty() ? 1 : 0;
  count_.set(generations_ + embeddings_);
  set_sent(request);
  requests_.erase(request.id);
}

void InFlightTable::abort(InFlight& request, const Abort& how) {
  UMA_CHECK(!request.cancel_in_lane);
  tasks_.end(request.task);
  auto on_abort = std::move(request.on_abort);
  const std::vector<std::shared_ptr<EventSink>> sinks = request.sinks;
  end(request);
  const bool is_refused = how.reason == FinishReason::error;
  if (is_refused) refused_.add();
  if (sinks.empty()) run_noting([&] { on_abort(how); });
  const Event terminal = is_refused ? Event(FailureEvent{how.error})
                                    : Event(EosEvent{.reason = how.reason, .usage = {}, .text = {}, .error = std::nullopt});
  for (const auto& sink : sinks) run_noting([&] { (void)sink->deliver(terminal); });
}

bool InFlightTable::cancel(RequestId id) {
  InFlight* request = find(id);
  if (request == nullptr) return false;
  if (request->cancel_in_lane) {
    request->cancel_in_lane();
  } else {
    abort(*request, {.reason = FinishReason::cancelled});
  }
  return true;
}

void InFlightTable::abort_all() {
  std::vector<RequestId> left;
  for (auto& [id, request] : requests_) {
    request.cancel_in_lane = nullptr;  // A lane that was closed before the request came has dropped the request.
    if (!request.has_result) left.push_back(id);
  }
  for (const RequestId id : left) abort(requests_.at(id), {.reason = FinishReason::cancelled});
}

// --- Time

TimePoint InFlightTable::deadline_of(const InFlight& request) const {
  const std::int64_t deadline_ms = request.deadline_ms.value_or(limits_.deadline_ms);
  return deadline_after(request.received, deadline_ms, request.lease.is_empty() ? nullptr : &*request.lease);
}

void InFlightTable::set_deadline(InFlight& request) {
  request.deadline = deadline_of(request);
  expire_by(request.deadline);
}

void InFlightTable::expire_by(TimePoint time) {
  expiry_.set_by(time, [this] { expire(); });
}

// Ends requests that are past their timeout or deadline and in no lane. Lanes check their own requests.
void InFlightTable::expire() {
  const TimePoint now = clock_.now();
  std::vector<RequestId> late;
  for (const auto& [id, request] : requests_) {
    if (request.cancel_in_lane) continue;
    const TimePoint expires = std::min(request.timeout, request.deadline);
    if (expires <= now) {
      late.push_back(id);
    } else {
      expire_by(expires);
    }
  }
  for (const RequestId id : late) {
    InFlight& request = requests_.at(id);
    if (request.timeout <= now) {
      abort(request, {.reason = FinishReason::timeout});
    } else if (!request.lease.is_empty()) {
      abort(request,
            {.error = {ErrorCode::limit_wait,
                       "the request's deadline passed while another reply of the conversation was made: try again later"}});
    } else {
      const std::string memory = readable_bytes(models_.bytes_wanted(request.model));
      abort(request,
            {.error = {ErrorCode::limit_wait, std::format("the request's deadline passed while model \"{}\" waited for {} of "
                                                          "memory, which models in use hold: try again later",
                                                          request.model, memory)}});
    }
  }
}

void InFlightTable::on_load_queued(const std::string& model, std::uint64_t bytes) {
  for (auto& [id, request] : requests_) {
    if (request.model != model || !request.lease.is_empty()) continue;
    if (bytes > 0) {
      set_deadline(request);
    } else {
      request.deadline = kNever;
    }
  }
}

void InFlightTable::on_load_progress(const std::string& model, std::int64_t percent) {
  const ProgressEvent event{.stage = ProgressStage::loading, .done = percent, .total = 100, .position = 0, .eta_ms = 0};
  for (const auto& [id, request] : requests_) {
    if (!request.wants_progress || request.model != model || request.cancel_in_lane) continue;
    // The request continues if a progress report fails.
    for (const auto& sink : request.sinks) run_noting([&] { (void)sink->deliver(event); });
  }
}

}  // namespace uma::engine
