#include "engine/router/state_exchange.h"

#include <chrono>
#include <utility>

#include "engine/lane/lane.h"
#include "kv/shared/shared_limits.h"

namespace uma::engine {
namespace {

constexpr Duration kPublishMax = std::chrono::seconds(60);  // Limit of storing a state that nobody waits for.

}  // namespace

void StateExchange::on_taken(const Session& session) {
  // Which states fit is known when the model is loaded.
  if (access_.lane_of(session) != nullptr) return begin(session.summary.tenant, session.summary.id);
  not_looked_up_.insert_or_assign(session.summary.id, session.summary.tenant);
}

void StateExchange::begin(const TenantId& tenant, const SessionId& session) {
  lookups_[session].awaited_until = clock_.now() + kv::kStateLookUpMax;
  tasks_.start(look_up(tenant, session));
}

Task<> StateExchange::look_up(TenantId tenant, SessionId session) {
  (void)co_await tasks_.ask<Unit>(
      [&](Promise<Unit> reply) { store_.look_up(tenant, session, [reply = std::move(reply)]() mutable { reply(Unit{}); }); });
  auto ended = lookups_.extract(session);
  if (!ended) co_return;
  for (Promise<Unit>& reply : ended.mapped().replies) reply(Unit{});
}

Task<> StateExchange::wait_for(SessionId session) {
  if (const auto skipped = not_looked_up_.extract(session)) begin(skipped.mapped(), session);
  const auto found = lookups_.find(session);
  if (found == lookups_.end() || found->second.awaited_until <= clock_.now()) co_return;
  (void)co_await tasks_.ask_until<Unit>(found->second.awaited_until,
                                        [&](Promise<Unit> reply) { found->second.replies.push_back(std::move(reply)); });
}

void StateExchange::publish(const Session& session, bool is_wanted, Promise<Unit> reply) {
  tasks_.start(publish_now(session.summary.id, access_.lane_of(session), is_wanted, std::move(reply)));
}

// The state may be in a context only.
Task<> StateExchange::publish_now(SessionId session, Lane* lane, bool is_wanted, Promise<Unit> reply) {
  const TimePoint until = clock_.now() + (is_wanted ? kv::kHandOverMax : kPublishMax);
  bool is_in_time = true;
  if (lane != nullptr && lane->holds(session)) {
    is_in_time =
        (co_await tasks_.ask_until<Unit>(until, [&](Promise<Unit> copied) {
          lane->post(CopyCommand{session, kv::GiveWay::by_disk, [copied = std::move(copied)]() mutable { copied(Unit{}); }});
        })).has_value();
  }
  const auto urgency = is_wanted ? kv::SharedWriter::Urgency::soon : kv::SharedWriter::Urgency::when_idle;
  if (is_in_time) {  // Otherwise the session may be another daemon's now.
    (void)co_await tasks_.ask_until<Unit>(until, [&](Promise<Unit> stored) {
      store_.publish(session, urgency, [stored = std::move(stored)]() mutable { stored(Unit{}); });
    });
  }
  reply(Unit{});
}

}  // namespace uma::engine
