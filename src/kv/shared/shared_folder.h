// A shared store in a folder that several machines mount, such as one of NFS (docs/CLUSTER.md).
//
//   FOLDER/SS/SESSION/IDENTITY-STATE.kv     SESSION, IDENTITY and STATE are hashes, SS the first digits of SESSION
//
// Nothing depends on locks, nor on what a listing or a rename shows to others at once: every file has a name of its own until
// it is complete, the name is a hash of its content's owner, identity and tokens, and readers verify every byte. A file that
// vanishes while it is read is simply gone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/shared/shared_store.h"

namespace uma::kv {

// Errors: E_IO_001: it is missing, or others may write to it.
[[nodiscard]] Expected<Unit> check_shared_folder(const std::string& folder);

class SharedFolder final : public SharedStore {
 public:
  // The folder need not exist yet, and is not created: it may be one that is mounted later. `unix_s` is the time by which
  // states age.
  SharedFolder(std::string folder, SharedBounds bounds, std::function<std::int64_t()> unix_s);

  [[nodiscard]] Expected<ColdHead> write(const StateOwner& owner, const Snapshot& snapshot) override;
  [[nodiscard]] Expected<std::vector<ColdHead>> find(const TenantId& tenant, const SessionId& session,
                                                     std::span<const std::string> identities) override;
  [[nodiscard]] Expected<std::optional<Snapshot>> read(const std::string& name, const StateOwner& owner, std::uint64_t bytes,
                                                       BytePool& pool) override;
  [[nodiscard]] Expected<Unit> remove(const TenantId& tenant, const SessionId& session) override;
  [[nodiscard]] Expected<std::size_t> clean() override;
  [[nodiscard]] std::string text() const override { return folder_; }

 private:
  [[nodiscard]] std::string folder_of(const std::string& session_name) const;
  [[nodiscard]] Expected<std::vector<std::string>> files_in(const std::string& folder) const;
  void remove_former(const std::string& folder, const std::string& kept);

  const std::string folder_;
  const SharedBounds bounds_;
  const std::function<std::int64_t()> unix_s_;
};

}  // namespace uma::kv
