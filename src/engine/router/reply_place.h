// Finds the session in which a reply is made, or the fork or the new session that a response needs. Owned by the router's
// thread.
#pragma once

#include <cstddef>

#include "core/error.h"
#include "core/ids.h"
#include "core/request.h"
#include "core/work/task.h"
#include "engine/router/router_parts.h"

namespace uma::engine {

// The session in which a reply is made.
struct ReplyPlace {
  SessionLock lock;      // Empty: the session does not exist yet.
  kv::RecordPtr record;  // The record before the reply and its input.
  std::size_t lane = 0;  // For a new session: the index of its lane.
};

class ReplyPlaces {
 public:
  explicit ReplyPlaces(const RouterParts& parts) : parts_(parts) {}

  // Finds and locks the session of the call. Requires a session or a response in it. `call` outlives the task.
  [[nodiscard]] Task<Expected<ReplyPlace>> find(InFlight& request, const TenantId& tenant, const GenerateRequest& call);
  // A new session with the first turns of `session`.
  [[nodiscard]] ReplyPlace fork(const Session& session, const kv::SessionRecord& record, std::size_t turns,
                                const ResponseRequest& response);

 private:
  [[nodiscard]] Task<Expected<ReplyPlace>> find_in_session(InFlight& request, const TenantId& tenant,
                                                           const GenerateRequest& call);
  [[nodiscard]] Task<Expected<ReplyPlace>> find_for_response(InFlight& request, const TenantId& tenant,
                                                             const GenerateRequest& call);
  [[nodiscard]] ReplyPlace create(const TenantId& tenant, const ServedModel& served, const ResponseRequest& response);

  const RouterParts parts_;
};

// Whether the session has turns, of which some may have been dropped.
[[nodiscard]] bool has_turns(const kv::SessionSummary& summary);
// The error for a call that names another model than that of its session.
[[nodiscard]] Error other_model(const std::string& asked, const std::string& own);
// The error for a call whose session does not exist.
[[nodiscard]] Error unknown_session_of(const GenerateRequest& call);

}  // namespace uma::engine
