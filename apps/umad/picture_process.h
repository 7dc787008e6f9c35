// Decodes pictures in processes that can do nothing but compute (umad/confine.h), so that a file that breaks a decoder harms
// nothing else (docs/decisions/0093).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "core/error.h"
#include "image/decode_picture.h"

namespace uma::umad {

// First argument of a process that waits for pictures; not a command for users.
inline constexpr const char* kPictureCommand = "decode-pictures";

// A waiting process forks for each picture, so no decoding sees what another one has read. One waits while nobody decodes.
class PictureProcesses {
 public:
  // `program` is umad.
  explicit PictureProcesses(std::string program) : program_(std::move(program)) {}

  // See image::DecodePicture. Any thread. Errors: E_PROTO_003 also for a file whose decoder crashes or takes too much time or
  // memory; E_RUNTIME_001 if no process can be started.
  [[nodiscard]] Expected<llm::Picture> decode(std::span<const std::byte> file, image::Turns turns);

 private:
  // Ends the process with it.
  class Waiting {
   public:
    Waiting(pid_t pid, UniqueFd to, UniqueFd from) : pid_(pid), to_(std::move(to)), from_(std::move(from)) {}
    Waiting(Waiting&& other) noexcept;
    Waiting& operator=(Waiting&& other) noexcept;
    ~Waiting();
    // Nothing: the process has failed, and is not to be used again.
    [[nodiscard]] std::optional<Expected<llm::Picture>> decode(std::span<const std::byte> file, image::Turns turns) const;

   private:
    pid_t pid_ = 0;  // 0: none.
    UniqueFd to_;
    UniqueFd from_;
  };

  [[nodiscard]] std::optional<Waiting> take();
  [[nodiscard]] Expected<Waiting> start() const;

  const std::string program_;
  Mutex mutex_;
  std::optional<Waiting> idle_ GUARDED_BY(mutex_);
};

// main() of a waiting process; `arguments` excludes the program's name.
[[nodiscard]] int run_picture_command(const std::vector<std::string>& arguments);

}  // namespace uma::umad
