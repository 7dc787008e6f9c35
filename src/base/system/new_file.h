// Files that are written whole: whoever opens the name gets the old file or the new one, and with sync() also after a crash of
// the machine.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>

#include "base/system/unique_fd.h"

namespace uma {

// Writes all bytes. Returns 0 or an errno.
[[nodiscard]] int write_all(int fd, std::span<const std::byte> bytes);
[[nodiscard]] int write_all(int fd, std::string_view text);

// Makes created, renamed and removed files of a folder durable. Blocks until its entries are on the disk. Empty: the current
// folder. Returns an errno, or 0, which is also the result for file systems that cannot sync folders (EINVAL).
[[nodiscard]] int sync_folder(const std::string& folder);

// A file that has a temporary name until publish(). After a failure the calls do nothing, and problem() is its errno. A file
// that was not published is removed.
class NewFile {
 public:
  // The temporary name has the process id.
  explicit NewFile(const std::string& path, mode_t mode = 0600);
  // A file that has the temporary name already was left behind by a killed process, and is replaced.
  NewFile(std::string path, std::string temporary, mode_t mode = 0600);
  ~NewFile();
  NewFile(const NewFile&) = delete;

  [[nodiscard]] int problem() const { return problem_; }
  [[nodiscard]] int fd() const { return file_.get(); }
  // The caller has done something with fd(), with this result: 0 or an errno.
  void note(int result);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // Blocks until the bytes are on the disk.
  void sync();
  // Gives the file its name. Returns problem().
  [[nodiscard]] int publish();

 private:
  const std::string path_;
  const std::string temporary_;
  UniqueFd file_;
  int problem_ = 0;
  bool is_there_ = false;  // Under its temporary name.
};

}  // namespace uma
