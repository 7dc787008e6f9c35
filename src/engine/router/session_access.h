// Helpers for all requests that work with a session: the lease of its model, the choice of its lane, its information for
// clients, and the checks whether more tokens fit. Owned by the router's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.h"
#include "core/ids.h"
#include "core/session_info.h"
#include "core/work/task.h"
#include "engine/model/model_loader.h"
#include "engine/model/model_table.h"
#include "engine/router/in_flight.h"
#include "engine/session/session_table.h"
#include "kv/catalog/catalog.h"
#include "kv/state_store.h"

namespace uma::engine {

[[nodiscard]] Error busy_session(const std::string& session);
// Copies the texts of the record. Without those of text mode, which are in its tokens.
[[nodiscard]] SessionDetail detail_of(SessionInfo info, const kv::SessionRecord& record);
// Refuses an input, with the system text before it, whose texts have too many bytes for the context, whatever their tokens are:
// tokenizing megabytes would take seconds, for which other long prompts would wait. Errors: E_LIMIT_001.
[[nodiscard]] Expected<Unit> check_may_fit(const ServedModel& served, const Input& input, std::string_view system = {});
// Checks that `known` tokens and `added` new ones leave a cell for one token of reply. Errors: E_LIMIT_001, E_LIMIT_004.
[[nodiscard]] Expected<Unit> check_fits(const ServedModel& served, std::size_t known, std::size_t added);
// Checks, as check_fits(), a record that has just got `added` tokens, without the turns that a full context may drop.
[[nodiscard]] Expected<Unit> check_record_fits(const ServedModel& served, const kv::SessionRecord& record, std::size_t added);
// The most bytes of kv::source_bytes() that a session of this model may have. What its template leaves out of the tokens, such
// as arguments that it does not know, has no other limit, and the whole record is read, copied and written when the session is
// used.
[[nodiscard]] std::size_t source_bytes_max(const ServedModel& served);
[[nodiscard]] Expected<Unit> check_source(const ServedModel& served, const kv::SessionRecord& record);  // Errors: E_LIMIT_001.
// Checks that the record's tokens belong to this model, because the model's name may mean another file by now, or the
// session's name another session since the model was leased. Errors: E_MODEL_001; E_SESSION_002.
[[nodiscard]] Expected<Unit> check_model(const ServedModel& served, const kv::SessionRecord& record);

class SessionAccess {
 public:
  // The references outlive this object.
  SessionAccess(const ModelLoader& source, kv::StateStore& store, ModelTable& models, SessionTable& sessions,
                const InFlightTable& in_flight)
      : source_(source), store_(store), models_(models), sessions_(sessions), in_flight_(in_flight) {}

  // Leases the session's own model, even if its name means another model today. Errors: E_SESSION_001, those of
  // ModelTable::lease_chat().
  [[nodiscard]] Task<Expected<ModelLease>> lease_model(TenantId tenant, std::string session, bool is_background = false);
  // Leases the model of a session that was just found; `session`: its name, for errors.
  [[nodiscard]] Task<Expected<ModelLease>> lease_model_of(std::string session, std::string model, bool is_background);
  // Locks a session. No reply may be in progress, neither now nor when the lock is granted. Errors: E_SESSION_001,
  // E_SESSION_002.
  [[nodiscard]] Task<Expected<SessionLock>> lock_unless_running(TenantId tenant, std::string session);
  // Checks that `next` fits the model's context, and that the tenant's quota allows the tokens that `record` does not have.
  // Errors: E_LIMIT_001, E_LIMIT_004, E_LIMIT_005.
  [[nodiscard]] Expected<Unit> check_next(const ServedModel& served, const kv::SessionRecord& record,
                                          const kv::SessionRecord& next) const;
  // The lane of the session; null: its model is not loaded.
  [[nodiscard]] Lane* lane_of(const Session& session) const;
  // The index of the lane with the fewest requests, and among equals with the fewest idle sessions in its slots.
  [[nodiscard]] std::size_t least_loaded_lane(const ServedModel& served) const;

  [[nodiscard]] SessionInfo info_of(const Session& session) const;
  // The session's info for a list, with the part of the metadata that is always in memory.
  [[nodiscard]] SessionInfo listed_info_of(const Session& session) const;
  // `record` is the session's record, or the beginning of it.

 private:
  const ModelLoader& source_;
  kv::StateStore& store_;
  ModelTable& models_;
  SessionTable& sessions_;
  const InFlightTable& in_flight_;
};

}  // namespace uma::engine
