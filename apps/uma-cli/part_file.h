// A file that is being fetched: TARGET.part and what it is the beginning of, TARGET.part.json. Holds an exclusive lock on the
// part for its life. Nothing but publish() makes TARGET, in one step, from a part that is on the disk. Invariants: (1) Once
// loaded or begun, the sum and the first bytes are those of the part as it is. (2) A state on the disk describes the part's
// bytes: it is written before them.
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

// The checksum of a file that is here. Ctrl-C ends it.
[[nodiscard]] Result<std::string> sha256_of_file(const std::string& path, Interrupts& interrupts, const OnBytes& on_bytes);

// What `path` is, followed by nothing.
enum class Presence { missing, file, other };
[[nodiscard]] Presence presence_of(const std::string& path);

class PartFile {
 public:
  // Fails when somebody else holds the lock, or the folder does not take files.
  static Result<std::unique_ptr<PartFile>> open(const std::string& target);
  ~PartFile();  // an empty part is removed
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  // Reads the bytes that an earlier run left, for the sum. Called once, before append() goes on with them.
  Result<void> load(Interrupts& interrupts, const OnBytes& on_bytes);
  // Empties the part and says what it will hold.
  Result<void> begin(PartState state);
  Result<void> append(std::string_view bytes);
  // Fails when the disk has no room for a file of `total` bytes.
  [[nodiscard]] Result<void> check_room(std::uint64_t total) const;
  // Gives the part its name. Without `replaces` it fails where somebody made the target meanwhile.
  Result<void> publish(bool replaces);
  void discard();

  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] const PartState* state() const { return state_ ? &*state_ : nullptr; }
  [[nodiscard]] const std::string& head() const { return head_; }  // the first kGgufHeadBytes, or fewer
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
