// Decodes pictures and clips of sound in processes that can do nothing but compute (umad/confine.h), so that a file that breaks
// a decoder harms nothing else (docs/decisions/0093).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/system/unique_fd.h"
#include "core/error.h"
#include "image/decode_picture.h"
#include "image/decode_sound.h"

namespace uma::umad {

// First argument of a process that waits for files; not a command for users.
inline constexpr const char* kMediaCommand = "decode-media";

// A waiting process forks for each file, so no decoding sees what another one has read. One waits while nobody decodes.
class MediaProcesses {
 public:
  // `program` is umad.
  explicit MediaProcesses(std::string program) : program_(std::move(program)) {}

  // See image::DecodePicture and image::DecodeSound. Any thread. When `end` is requested, the processes of this decoding end
  // within 20 ms. Errors: E_PROTO_003 also for a file whose decoder crashes or takes too much time or memory; E_RUNTIME_001 if
  // no process can be started; E_LIMIT_003 after `end`.
  [[nodiscard]] Expected<llm::Picture> decode_picture(std::span<const std::byte> file, image::Turns turns,
                                                      const std::stop_token& end = {});
  [[nodiscard]] Expected<llm::Clip> decode_sound(std::span<const std::byte> file, std::int32_t sample_rate,
                                                 const std::stop_token& end = {});

 private:
  friend struct MediaAnswering;
  struct Asked;
  struct Answer;
  // Where an answer's bytes are written; an empty span: the answer is impossible.
  using Place = std::function<std::span<std::byte>(const Answer&)>;

  // Ends the process with it.
  class Waiting {
   public:
    Waiting(pid_t pid, UniqueFd to, UniqueFd from, UniqueFd ends)
        : pid_(pid), to_(std::move(to)), from_(std::move(from)), ends_(std::move(ends)) {}
    Waiting(Waiting&& other) noexcept;
    Waiting& operator=(Waiting&& other) noexcept;
    ~Waiting();
    // Nothing: the process has failed or was given up, and is not to be used again.
    [[nodiscard]] std::optional<Expected<Unit>> decode(const Asked& asked, std::span<const std::byte> file, const Place& place,
                                                       const std::stop_token& end) const;
    // Whether the process of the last file has ended, so that it can neither see the next file nor answer for it.
    [[nodiscard]] bool has_ended_last() const;

   private:
    pid_t pid_ = 0;  // 0: none.
    UniqueFd to_;
    UniqueFd from_;
    UniqueFd ends_;  // A byte for each process that has ended; those cannot write to it.
  };

  [[nodiscard]] Expected<Unit> decode(const Asked& asked, std::span<const std::byte> file, const Place& place,
                                      const std::stop_token& end);
  [[nodiscard]] std::optional<Waiting> take();
  [[nodiscard]] Expected<Waiting> start() const;

  const std::string program_;
  Mutex mutex_;
  std::optional<Waiting> idle_ GUARDED_BY(mutex_);
};

// main() of a waiting process; `arguments` excludes the program's name.
[[nodiscard]] int run_media_command(const std::vector<std::string>& arguments);

}  // namespace uma::umad
