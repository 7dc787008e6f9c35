// A file during its download: TARGET.part, and TARGET.part.json with its PartState. Holds an exclusive lock on the part for its
// lifetime. Only publish() creates TARGET, in one step, from a part that was synced to disk. Invariants: (1) After load() or
// begin(), the checksum and the first bytes match the part's contents. (2) The state on disk describes the part's bytes,
// because it is written before them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "uma-cli/interrupts.h"
#include "uma-cli/result.h"
#include "uma-cli/resume.h"

namespace uma::cli {

using OnBytes = std::function<void(std::uint64_t bytes_done)>;

// Computes the checksum of an existing file. Ctrl-C ends it.
[[nodiscard]] Result<std::string> sha256_of_file(const std::string& path, Interrupts& interrupts, const OnBytes& on_bytes);

// The type of file at `path`, without following links.
enum class Presence { missing, file, other };
[[nodiscard]] Presence presence_of(const std::string& path);

class PartFile {
 public:
  // Fails if another process holds the lock, or if the folder is not writable.
  static Result<std::unique_ptr<PartFile>> open(const std::string& target);
  ~PartFile();  // Removes an empty part.
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  // Reads the bytes of an earlier run into the checksum. Called once, before append() continues.
  Result<void> load(Interrupts& interrupts, const OnBytes& on_bytes);
  // Empties the part and stores the state of the new download.
  Result<void> begin(PartState state);
  Result<void> append(std::string_view bytes);
  // Fails if the disk has no space for a file of `total` bytes.
  [[nodiscard]] Result<void> check_room(std::uint64_t total) const;
  // Renames the part to TARGET. Without `replaces` it fails if TARGET has been created meanwhile.
  Result<void> publish(bool replaces);
  void discard();

  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] const PartState* state() const { return state_ ? &*state_ : nullptr; }
  [[nodiscard]] const std::string& head() const { return head_; }  // The first kModelHeadBytes, or fewer.
  [[nodiscard]] std::string sha256() const { return sum_.hex(); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  PartFile(std::string target, int fd);
  void count(std::string_view bytes);
  Result<void> save_state() const;

  const std::string target_;
  const std::string path_;
  const std::string state_path_;
  const int fd_;
  std::uint64_t size_ = 0;
  std::optional<PartState> state_;
  std::string head_;
  Sha256 sum_;
};

}  // namespace uma::cli
