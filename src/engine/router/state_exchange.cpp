#include "engine/router/state_exchange.h"

#include <algorithm>
#include <utility>

#include "engine/lane/lane.h"

namespace uma::engine {
namespace {

// How long a request waits for a lookup, the daemon that wants a session for its state, and the next state in the background.
constexpr Duration kLookUpMax = std::chrono::milliseconds(500);
constexpr Duration kHandOverMax = std::chrono::seconds(2);
constexpr Duration kPublishMax = std::chrono::seconds(60);

}  // namespace

void StateExchange::on_taken(const Session& session) {
  // Which states fit is known when the model is loaded.
  if (access_.lane_of(session) != nullptr) return begin(session.summary.tenant, session.summary.id);
  not_looked_up_.insert_or_assign(session.summary.id, session.summary.tenant);
}

void StateExchange::begin(const TenantId& tenant, const SessionId& session) {
  const TimePoint deadline = clock_.now() + kLookUpMax;
  lookups_[session].deadline = deadline;
  next_expiry_ = std::min(next_expiry_, deadline);
  tasks_.start(look_up(tenant, session));
}

Task<> StateExchange::look_up(TenantId tenant, SessionId session) {
  (void)co_await tasks_.ask<Unit>(
      [&](Reply<Unit> reply) { store_.look_up(tenant, session, [reply = std::move(reply)]() mutable { reply(Unit{}); }); });
  answer(lookups_, session);
}

Task<> StateExchange::wait_for(SessionId session) {
  if (const auto skipped = not_looked_up_.extract(session)) begin(skipped.mapped(), session);
  const auto found = lookups_.find(session);
  if (found == lookups_.end()) co_return;
  (void)co_await tasks_.ask<Unit>([&](Reply<Unit> reply) { found->second.replies.push_back(std::move(reply)); });
}

void StateExchange::publish(const Session& session, bool is_wanted, Reply<Unit> reply) {
  const std::uint64_t number = ++last_publication_;
  Pending& pending = publications_[number];
  pending.deadline = clock_.now() + (is_wanted ? kHandOverMax : kPublishMax);
  pending.replies.push_back(std::move(reply));
  next_expiry_ = std::min(next_expiry_, pending.deadline);
  tasks_.start(publish_now(number, session.summary.id, access_.lane_of(session), is_wanted));
}

// The state may be in a context only.
Task<> StateExchange::publish_now(std::uint64_t number, SessionId session, Lane* lane, bool is_wanted) {
  if (lane != nullptr && lane->holds(session)) {
    (void)co_await tasks_.ask<Unit>(
        [&](Reply<Unit> reply) { lane->post(CopyCommand{session, [reply = std::move(reply)]() mutable { reply(Unit{}); }}); });
    if (!publications_.contains(number)) co_return;  // The session may be another daemon's now.
  }
  const auto urgency = is_wanted ? kv::SharedWriter::Urgency::soon : kv::SharedWriter::Urgency::when_idle;
  (void)co_await tasks_.ask<Unit>(
      [&](Reply<Unit> reply) { store_.publish(session, urgency, [reply = std::move(reply)]() mutable { reply(Unit{}); }); });
  answer(publications_, number);
}

void StateExchange::answer(auto& pending, const auto& key) {
  auto ended = pending.extract(key);
  if (!ended) return;
  for (Reply<Unit>& reply : ended.mapped().replies) reply(Unit{});
}

void StateExchange::expire() {
  const TimePoint now = clock_.now();
  if (now < next_expiry_) return;
  next_expiry_ = kNever;
  const auto end_late = [&](auto& pending) {
    for (auto next = pending.begin(); next != pending.end();) {
      const auto each = next++;
      if (each->second.deadline <= now) {
        const auto key = each->first;
        answer(pending, key);
      } else {
        next_expiry_ = std::min(next_expiry_, each->second.deadline);
      }
    }
  };
  end_late(lookups_);
  end_late(publications_);
}

}  // namespace uma::engine
