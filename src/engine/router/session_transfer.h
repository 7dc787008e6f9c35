// Sessions as files (docs/SESSION_FILE.md): export and import. Owned by the router's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/byte_budget.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/service.h"
#include "core/task.h"
#include "engine/portable_session.h"
#include "engine/router/router_parts.h"
#include "engine/router/session_commands.h"
#include "kv/state_image.h"

namespace uma::engine {

// Each as Service, where its errors are.
class SessionTransfer {
 public:
  // `commands` outlives it.
  SessionTransfer(const RouterParts& parts, SessionCommands& commands)
      : parts_(parts), commands_(commands), exports_(std::make_shared<ByteBudget>(parts.limits.transfer_bytes_max)) {}

  [[nodiscard]] Task<Expected<ExportedSession>> export_session(TenantId tenant, std::string session, bool with_kv);
  [[nodiscard]] Task<Expected<ImportedSession>> import_session(TenantId tenant, ImportRequest request);

 private:
  [[nodiscard]] Task<Expected<PortableFile>> export_kv(const ModelUse& use, const kv::SessionRecord& record);
  [[nodiscard]] Task<Expected<PortableFile>> export_conversation(const ModelUse& use, kv::RecordPtr record);
  [[nodiscard]] Task<Expected<ImageHold>> keep_images(const ModelUse& use, TenantId tenant, PortableFile file,
                                                      std::vector<std::string>& ids);
  [[nodiscard]] Task<Expected<kv::StateImage>> import_kv(const ModelUse& use, const ImportRequest& request,
                                                         const kv::SessionRecord& record);
  [[nodiscard]] ImportedKv keep_kv(const SessionId& id, Expected<kv::StateImage> image);

  const RouterParts parts_;
  SessionCommands& commands_;
  const std::shared_ptr<ByteBudget> exports_;  // KV that clients still read; shared with the files it is in
};

}  // namespace uma::engine
