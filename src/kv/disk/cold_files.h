// The cold store on a disk: a folder with a file for each state, and one for each part that states share (docs/STATE_FILE.md).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/system/unique_fd.h"
#include "kv/disk/cold_store.h"
#include "kv/disk/state_file.h"

namespace uma::kv {

// Invariants: (1) A file NAME.kv or NAME.part is complete: it was written under another name and renamed after a sync. (2) A
// file whose content differs from what was written is never used again: it is renamed to NAME.….damaged for inspection; at most
// 16 of these are kept. (3) Other files in the folder are left alone. Symbolic links are not followed.
class ColdFiles final : public ColdStore {
 public:
  // Creates the folder (its parent exists) and removes half-written files of a killed process. Errors, all E_IO_001: among
  // others, a folder that other users may write to, or that another process uses as its cold store.
  [[nodiscard]] static Expected<std::unique_ptr<ColdFiles>> open(std::string folder);

  [[nodiscard]] std::vector<ColdPart> parts_of(const StateOwner& owner, const Snapshot& snapshot) const override;
  [[nodiscard]] Expected<ColdPart> write_part(const StateOwner& owner, const Snapshot& snapshot,
                                              const StatePart& part) override;
  [[nodiscard]] Expected<ColdHead> write(const StateOwner& owner, const Snapshot& snapshot) override;
  [[nodiscard]] Expected<Snapshot> read(const std::string& name, const StateOwner& owner, BytePool& pool) override;
  [[nodiscard]] Expected<Unit> remove(const std::string& name) override;
  void touch(const std::string& name) override;
  [[nodiscard]] std::vector<std::string> lost(std::span<const ColdPart> parts) const override;
  [[nodiscard]] std::uint64_t written_bytes() const override { return written_bytes_; }
  [[nodiscard]] Expected<std::vector<ColdHead>> list() override;

 private:
  ColdFiles(std::string folder, UniqueFd opened);

  [[nodiscard]] std::string path_of(const std::string& name) const;
  // The names of all states, and the sizes of all parts, read from the folder only; removes half-written files.
  struct Names {
    std::vector<std::string> states;
    std::map<std::string, std::uint64_t> parts;
    bool is_complete = true;  // False: the size of a part could not be read.
  };
  [[nodiscard]] Expected<Names> names();
  struct Written {
    std::uint64_t bytes = 0;
    std::int64_t at_s = 0;  // Unix time.
  };
  // Writes a file, except for the entry in the folder.
  [[nodiscard]] Expected<Written> write_file(const std::string& name, const StateOwner& owner, const SnapshotView& snapshot);
  [[nodiscard]] Expected<std::uint64_t> write_piece(const std::string& name, const StateOwner& owner, const Snapshot& snapshot,
                                                    const SnapshotPiece& piece);
  [[nodiscard]] Expected<Bytes> read_part(const StatePart& part, const StateOwner& owner, const Snapshot& of, BytePool& pool);
  void set_aside(const std::string& name);
  void prune_damaged();

  std::string folder_;
  UniqueFd opened_;  // The folder, locked.
  std::uint64_t written_bytes_ = 0;
};

}  // namespace uma::kv
