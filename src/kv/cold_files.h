// The cold store on a disk: a folder with one file per state (docs/STATE_FILE.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "kv/cold_store.h"

namespace uma::kv {

// Invariants: (1) A file NAME.kv is complete: it was written under another name and renamed after a sync. (2) A file whose
// content differs from what was written is never used again: it is renamed to NAME.kv.damaged for inspection; at most 16 of
// these are kept. (3) Other files in the folder are left alone. Symbolic links are not followed.
class ColdFiles final : public ColdStore {
 public:
  // Creates the folder (its parent exists) and removes half-written files of a killed process. Errors, all E_IO_001: among
  // others, a folder that other users may write to, or that another process uses as its cold store.
  [[nodiscard]] static Expected<std::unique_ptr<ColdFiles>> open(std::string folder);

  [[nodiscard]] Expected<ColdHead> write(const StateOwner& owner, const Snapshot& snapshot) override;
  [[nodiscard]] Expected<Snapshot> read(const std::string& name, const StateOwner& owner, BytePool& pool) override;
  [[nodiscard]] Expected<Unit> remove(const std::string& name) override;
  void touch(const std::string& name) override;
  [[nodiscard]] Expected<std::vector<ColdHead>> list() override;

 private:
  ColdFiles(std::string folder, UniqueFd opened);

  [[nodiscard]] std::string path_of(const std::string& name) const;
  // The names of all states, read from the folder only; removes half-written files.
  [[nodiscard]] Expected<std::vector<std::string>> names();
  void set_aside(const std::string& name);
  void prune_damaged();

  std::string folder_;
  UniqueFd opened_;  // The folder, locked.
};

}  // namespace uma::kv
