// The cold store on a disk: a folder with one file per state (docs/STATE_FILE.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "kv/cold_store.h"

namespace uma::kv {

// Invariants: (1) A file NAME.kv is whole: it was written under another name and renamed once its bytes were on the disk. (2) A
// file whose content is not what was written is never used again: it becomes NAME.kv.damaged, for people; 16 of these stay.
// (3) Whatever else lies in the folder is left alone. Symbolic links are not followed.
class ColdFiles final : public ColdStore {
 public:
  // Makes the folder (its parent exists) and removes what a killed process left half written. Errors, all E_IO_001: also a
  // folder that other users may write to, and one in which another process has its cold store.
  [[nodiscard]] static Expected<std::unique_ptr<ColdFiles>> open(std::string folder);

  [[nodiscard]] Expected<ColdHead> write(const StateOwner& owner, const StateImage& image) override;
  [[nodiscard]] Expected<StateImage> read(const std::string& name, const StateOwner& owner, BytePool& pool) override;
  [[nodiscard]] Expected<Unit> remove(const std::string& name) override;
  void touch(const std::string& name) override;
  [[nodiscard]] Expected<std::vector<ColdHead>> list() override;

 private:
  ColdFiles(std::string folder, UniqueFd opened);

  [[nodiscard]] std::string path_of(const std::string& name) const;
  // The names of all states, from the folder alone; removes half-written files.
  [[nodiscard]] Expected<std::vector<std::string>> names();
  void set_aside(const std::string& name);
  void prune_damaged();

  std::string folder_;
  UniqueFd opened_;  // the folder, locked
};

}  // namespace uma::kv
