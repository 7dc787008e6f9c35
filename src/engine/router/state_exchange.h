// Exchanges the stored states of sessions with other daemons (kv::SharedStates), when sessions move between them. Owned by the
// router's thread. Every wait has a limit: without its state a session goes on, too, and its tokens are computed.
#pragma once

#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "core/ids.h"
#include "core/work/promise.h"
#include "core/work/task.h"
#include "engine/router/session_access.h"
#include "engine/session/session_table.h"
#include "kv/state_store.h"

namespace uma::engine {

class StateExchange {
 public:
  // The references outlive this object.
  StateExchange(kv::StateStore& store, TaskRunner& tasks, const SessionAccess& access, const Clock& clock)
      : store_(store), tasks_(tasks), access_(access), clock_(clock) {}

  // The session was taken from another daemon: begins to look for its states.
  void on_taken(const Session& session);
  // The session was given up, or has ended.
  void forget(const SessionId& session) { not_looked_up_.erase(session); }
  // Waits until the lookup of a session that was taken has ended.
  [[nodiscard]] Task<> wait_for(SessionId session);
  // Stores the state of an idle session where other daemons find it. `is_wanted`: another daemon waits for the session.
  void publish(const Session& session, bool is_wanted, Promise<Unit> reply);

 private:
  struct Lookup {
    TimePoint awaited_until{};
    std::vector<Promise<Unit>> replies;
  };

  void begin(const TenantId& tenant, const SessionId& session);
  [[nodiscard]] Task<> look_up(TenantId tenant, SessionId session);
  [[nodiscard]] Task<> publish_now(SessionId session, Lane* lane, bool is_wanted, Promise<Unit> reply);

  kv::StateStore& store_;
  TaskRunner& tasks_;
  const SessionAccess& access_;
  const Clock& clock_;
  std::unordered_map<SessionId, Lookup> lookups_;
  std::unordered_map<SessionId, TenantId> not_looked_up_;  // Taken while their model was not loaded.
};

}  // namespace uma::engine
