// The commands that create, change, read and end sessions; generations have a class of their own. Owned by the router's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "core/request.h"
#include "core/service.h"
#include "core/session_info.h"
#include "core/work/task.h"
#include "engine/model/model_loader.h"
#include "engine/router/router_parts.h"
#include "engine/session/session_listing.h"
#include "engine/session/session_table.h"
#include "kv/catalog/catalog.h"

namespace uma::engine {

// Each command is described in core::Service, with its errors.
class SessionCommands {
 public:
  SessionCommands(const RouterParts& parts, const ModelLoader& source) : parts_(parts), source_(source) {}

  [[nodiscard]] Task<Expected<SessionInfo>> create(TenantId tenant, CreateSessionRequest request);
  [[nodiscard]] Task<Expected<SessionInfo>> append(TenantId tenant, AppendRequest request);
  [[nodiscard]] Task<Expected<Unit>> end(TenantId tenant, std::string session);
  [[nodiscard]] Task<Expected<SessionInfo>> fork(TenantId tenant, ForkRequest request);
  [[nodiscard]] Task<Expected<SessionInfo>> rewind(TenantId tenant, std::string session, std::int32_t turn);
  [[nodiscard]] Task<Expected<SessionInfo>> touch(TenantId tenant, std::string session);
  [[nodiscard]] Task<Expected<SessionDetail>> get(TenantId tenant, std::string session, RequestShare share = nullptr);
  [[nodiscard]] Task<Expected<Usage>> find_receipt(TenantId tenant, std::string name);
  [[nodiscard]] Task<Expected<std::vector<TurnReceipt>>> list_receipts(TenantId tenant, std::string session);
  [[nodiscard]] Task<Expected<SessionList>> list(TenantId tenant, SessionListRequest request);
  [[nodiscard]] Task<Expected<SessionInfo>> update(TenantId tenant, UpdateSessionRequest request);
  [[nodiscard]] Task<Expected<SessionDetail>> remove_last_message(TenantId tenant, std::string session, MessagePosition place);
  [[nodiscard]] Task<Expected<ResponseDetail>> get_response(TenantId tenant, std::string session, std::string response,
                                                            RequestShare share = nullptr);
  [[nodiscard]] Task<Expected<ResponseDetail>> cancel_response(TenantId tenant, std::string session, std::string response);
  [[nodiscard]] Task<Expected<Unit>> forget_response(TenantId tenant, std::string session, std::string response);

  // Adds a session to the table and the catalog. Errors: E_LIMIT_002, E_LIMIT_005; E_PROTO_003 if the name is taken.
  [[nodiscard]] Task<Expected<SessionInfo>> add(kv::SessionRecord record, std::size_t lane);

 private:
  // Checks that no other session of the tenant has the name; empty: none is wanted.
  [[nodiscard]] Expected<Unit> check_name(const TenantId& tenant, const std::string& name) const;
  [[nodiscard]] Expected<std::optional<ListPosition>> position_after(const TenantId& tenant,
                                                                     const SessionListRequest& request) const;
  [[nodiscard]] Task<Expected<SessionInfo>> commit(SessionLock lock, kv::SessionRecord next);
  [[nodiscard]] Task<Expected<Unit>> end_idle(Session& session);
  [[nodiscard]] Task<Expected<SessionDetail>> detail_apart(SessionInfo info, kv::RecordPtr record, ModelLease lease,
                                                           RequestShare share);

  const RouterParts parts_;
  const ModelLoader& source_;
};

[[nodiscard]] Error unknown_response(const std::string& response);

}  // namespace uma::engine
