// Export and import of sessions as files (docs/SESSION_FILE.md). Owned by the router's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/byte_budget.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/service.h"
#include "core/work/task.h"
#include "engine/router/router_parts.h"
#include "engine/router/session_commands.h"
#include "engine/session/portable_session.h"
#include "kv/snapshot.h"

namespace uma::engine {

// Each command is described in core::Service, with its errors.
class SessionTransfer {
 public:
  // `commands` outlives this object.
  SessionTransfer(const RouterParts& parts, SessionCommands& commands)
      : parts_(parts), commands_(commands), exports_(std::make_shared<ByteBudget>(parts.limits.transfer_bytes_max)) {}

  [[nodiscard]] Task<Expected<ExportedSession>> export_session(TenantId tenant, std::string session, bool with_kv);
  [[nodiscard]] Task<Expected<ImportedSession>> import_session(TenantId tenant, ImportRequest request);

 private:
  [[nodiscard]] Task<Expected<PortableFile>> export_kv(const ModelLease& lease, const kv::SessionRecord& record);
  [[nodiscard]] Task<Expected<PortableFile>> export_conversation(const ModelLease& lease, kv::RecordPtr record);
  [[nodiscard]] Task<Expected<ImageHold>> keep_images(const ModelLease& lease, TenantId tenant, PortableFile file,
                                                      std::vector<std::string>& ids);
  [[nodiscard]] Task<Expected<kv::Snapshot>> import_kv(const ModelLease& lease, const ImportRequest& request,
                                                       const kv::SessionRecord& record);
  [[nodiscard]] ImportedKv keep_kv(const SessionId& id, Expected<kv::Snapshot> snapshot);

  const RouterParts parts_;
  SessionCommands& commands_;
  const std::shared_ptr<ByteBudget> exports_;  // Memory of KV that clients are reading; shared with the exported files.
};

}  // namespace uma::engine
