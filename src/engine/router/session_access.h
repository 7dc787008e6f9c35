// What the router's requests share when they work with a session: the lease of its model, its place among lanes, what clients
// are told of it, and whether more tokens fit. Owned by the router's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.h"
#include "core/ids.h"
#include "core/session_info.h"
#include "core/task.h"
#include "engine/router/in_flight.h"
#include "engine/served_models.h"
#include "engine/session_table.h"
#include "engine/worker_source.h"
#include "kv/catalog.h"
#include "kv/state_store.h"

namespace uma::engine {

[[nodiscard]] Error busy_session(const std::string& session);
// Whether `known` tokens and `added` new ones leave room for one token of reply. Errors: E_LIMIT_001, E_LIMIT_004.
[[nodiscard]] Expected<Unit> check_fits(const ServedModel& served, std::size_t known, std::size_t added);
// The same of a record to which `added` tokens have just come, without the turns that a full context may drop.
[[nodiscard]] Expected<Unit> check_record_fits(const ServedModel& served, const kv::SessionRecord& record, std::size_t added);
// Whether the record's tokens are this model's: its name may stand for another file by now. Errors: E_MODEL_001.
[[nodiscard]] Expected<Unit> check_model(const ServedModel& served, const kv::SessionRecord& record);

class SessionAccess {
 public:
  // The references outlive it.
  SessionAccess(const WorkerSource& source, kv::StateStore& store, ServedModels& models, SessionTable& sessions,
                const InFlightTable& in_flight)
      : source_(source), store_(store), models_(models), sessions_(sessions), in_flight_(in_flight) {}

  // The session's own model, whatever its name means today. Errors: E_SESSION_001, those of ServedModels::lease_chat().
  [[nodiscard]] Task<Expected<ModelUse>> lease_model(TenantId tenant, std::string session, bool is_background = false);
  // Locks a session in which no reply is being made, now or when the lock is granted. Errors: E_SESSION_001, E_SESSION_002.
  [[nodiscard]] Task<Expected<SessionLock>> lock_unless_running(TenantId tenant, std::string session);
  // Whether the model has room for `next`, and its tenant a quota for the tokens that `record` did not have. Errors:
  // E_LIMIT_001, E_LIMIT_004, E_LIMIT_005.
  [[nodiscard]] Expected<Unit> check_next(const ServedModel& served, const kv::SessionRecord& record,
                                          const kv::SessionRecord& next) const;
  // Null: its model is not loaded.
  [[nodiscard]] Lane* lane_of(const Session& session) const;
  // The index of the lane with the fewest requests, and among those with the fewest idle sessions in its slots.
  [[nodiscard]] std::size_t least_loaded_lane(const ServedModel& served) const;

  [[nodiscard]] SessionInfo info_of(const Session& session) const;
  // `record` is the session's, or the beginning of it.
  [[nodiscard]] SessionDetail detail_of(const Session& session, const kv::SessionRecord& record) const;

 private:
  const WorkerSource& source_;
  kv::StateStore& store_;
  ServedModels& models_;
  SessionTable& sessions_;
  const InFlightTable& in_flight_;
};

}  // namespace uma::engine
