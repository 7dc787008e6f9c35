#include "umad/process/media_process.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <format>
#include <optional>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/system/descriptors.h"
#include "base/system/sanitizer.h"
#include "base/system/thread_name.h"
#include "image/image_header.h"
#include "umad/process/child_process.h"
#include "umad/process/confine.h"
#include "umad/process/parent_end.h"

namespace uma::umad {

// Sent to the process, followed by the file.
struct MediaProcesses::Asked {
  enum class Kind : std::uint32_t { picture, unturned_picture, sound };
  Kind kind = Kind::picture;
  std::int32_t sample_rate = 0;  // A sound's rate, in Hz.
  std::uint64_t file_bytes = 0;
};

// Followed by the levels or the samples, or by a text that says why there are none.
struct MediaProcesses::Answer {
  enum class Kind : std::uint32_t { refused, decoded };
  Kind kind = Kind::refused;
  std::int32_t width = 0;  // A picture's width, in pixels.
  std::int32_t height = 0;
  std::int32_t spare = 0;  // No byte is undefined.
  std::uint64_t bytes = 0;
};

namespace {

// The limits of one file. 64 million pixels of the most expensive kind take some seconds and a gigabyte, ten minutes of sound
// some seconds.
constexpr rlim_t kMediaCpuSecondsMax = 30;
constexpr rlim_t kMediaDataBytesMax = rlim_t{1536} << 20;
constexpr int kMediaNiceness = 5;                             // Streams go first.
constexpr Duration kMediaPatience = std::chrono::minutes(2);  // On a machine that is busy.
constexpr Duration kEndPatience = std::chrono::seconds(1);    // A process that has answered ends at once.
constexpr std::uint64_t kTextBytesMax = 1000;

template <class T>
std::span<std::byte> raw_bytes(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// How long the daemon's side of a pipe waits; a process waits for the daemon without an end.
struct Patience {
  TimePoint until = kNever;
  std::stop_token end{};
};

// Waits until the file is ready for `events`. False: too late.
bool wait_for_pipe(int fd, short events, const Patience& patience) {
  constexpr int kLookAgainMs = 20;
  const SteadyClock clock;
  while (!patience.end.stop_requested() && clock.now() < patience.until) {
    pollfd ready{.fd = fd, .events = events, .revents = 0};
    const int count = ::poll(&ready, 1, kLookAgainMs);
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
  }
  return false;
}

bool read_pipe(int fd, std::span<std::byte> bytes, const Patience& patience = {}) {
  while (!bytes.empty()) {
    if (patience.until != kNever && !wait_for_pipe(fd, POLLIN, patience)) return false;
    const ssize_t got = ::read(fd, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

bool write_pipe(int fd, std::span<const std::byte> bytes, const Patience& patience = {}) {
  while (!bytes.empty()) {
    if (patience.until != kNever && !wait_for_pipe(fd, POLLOUT, patience)) return false;
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (put <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return true;
}

void set_limit(int resource, rlim_t soft, rlim_t hard) {
  const rlimit limits{.rlim_cur = soft, .rlim_max = hard};
  ::setrlimit(resource, &limits);
}

}  // namespace

// --- In the daemon

MediaProcesses::Waiting::Waiting(Waiting&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      to_(std::move(other.to_)),
      from_(std::move(other.from_)),
      ends_(std::move(other.ends_)) {}

MediaProcesses::Waiting& MediaProcesses::Waiting::operator=(Waiting&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(to_, other.to_);
  std::swap(from_, other.from_);
  std::swap(ends_, other.ends_);
  return *this;
}

MediaProcesses::Waiting::~Waiting() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<Expected<Unit>> MediaProcesses::Waiting::decode(const Asked& asked, std::span<const std::byte> file,
                                                              const Place& place, const std::stop_token& end) const {
  const Patience patience{.until = SteadyClock().now() + kMediaPatience, .end = end};
  if (!write_pipe(to_.get(), std::as_bytes(std::span(&asked, 1)), patience) || !write_pipe(to_.get(), file, patience)) {
    return std::nullopt;
  }
  Answer answer;
  if (!read_pipe(from_.get(), raw_bytes(answer), patience)) return std::nullopt;
  if (answer.kind == Answer::Kind::refused) {
    if (answer.bytes > kTextBytesMax) return std::nullopt;
    std::string text(answer.bytes, '\0');
    if (!read_pipe(from_.get(), std::as_writable_bytes(std::span(text)), patience)) return std::nullopt;
    return fail(ErrorCode::proto_field, std::move(text));
  }
  const std::span<std::byte> bytes = place(answer);
  if (bytes.empty() || bytes.size() != answer.bytes || !read_pipe(from_.get(), bytes, patience)) return std::nullopt;
  return Unit{};
}

bool MediaProcesses::Waiting::has_ended_last() const {
  std::byte ended{};
  return read_pipe(ends_.get(), std::span(&ended, 1), {.until = SteadyClock().now() + kEndPatience});
}

std::optional<MediaProcesses::Waiting> MediaProcesses::take() {
  const MutexLock lock(mutex_);
  return std::exchange(idle_, std::nullopt);
}

Expected<MediaProcesses::Waiting> MediaProcesses::start() const {
  auto requests = open_pipe();
  auto answers = open_pipe();
  auto ends = open_pipe();
  int problem = errno;
  if (requests && answers && ends) {
    make_nonblocking(requests->in.get());
    const pid_t pid = spawn_child(program_, {"umad", kMediaCommand, std::to_string(::getpid())}, child_environment(),
                                  {.input = requests->out.get(), .output = answers->in.get(), .errors = ends->in.get()});
    if (pid > 0) return Waiting(pid, std::move(requests->in), std::move(answers->out), std::move(ends->out));
    problem = -pid;
  }
  return fail(ErrorCode::runtime_decode, std::format("the file's decoder could not be started: {}", std::strerror(problem)));
}

Expected<Unit> MediaProcesses::decode(const Asked& asked, std::span<const std::byte> file, const Place& place,
                                      const std::stop_token& end) {
  auto waiting = take();
  auto decoded = waiting ? waiting->decode(asked, file, place, end) : std::nullopt;
  if (!decoded && !end.stop_requested()) {  // The one that waited may have ended for another reason.
    auto started = start();
    if (!started) return std::unexpected(started.error());
    waiting = std::move(*started);
    decoded = waiting->decode(asked, file, place, end);
  }
  if (!decoded && end.stop_requested()) return fail(ErrorCode::limit_wait, "the request has ended");
  const std::string_view what = asked.kind == Asked::Kind::sound ? "clip" : "image";
  if (!decoded) {
    log_warning("the decoder of {} of {} bytes has crashed, or needed more than {} s or {} MiB", what, file.size(),
                kMediaCpuSecondsMax, kMediaDataBytesMax >> 20);
    return fail(
        ErrorCode::proto_field,
        std::format("the {} cannot be read: its decoder has crashed, or needed too much time or memory: save it anew", what));
  }
  if (!waiting->has_ended_last()) return std::move(*decoded);
  const MutexLock lock(mutex_);
  if (!idle_) idle_ = std::move(*waiting);
  return std::move(*decoded);
}

Expected<llm::Picture> MediaProcesses::decode_picture(std::span<const std::byte> file, image::Turns turns,
                                                      const std::stop_token& end) {
  llm::Picture picture;
  const Place place = [&](const Answer& answer) -> std::span<std::byte> {
    const std::int64_t pixels = std::int64_t{answer.width} * answer.height;
    const bool is_possible = answer.width > 0 && answer.height > 0 && answer.width <= image::kImageSideMax &&
                             answer.height <= image::kImageSideMax && pixels <= image::kImagePixelsMax;
    if (!is_possible || answer.bytes != static_cast<std::uint64_t>(pixels) * 3) return {};
    picture = {.width = answer.width, .height = answer.height, .levels = std::vector<std::uint8_t>(answer.bytes)};
    return std::as_writable_bytes(std::span(picture.levels));
  };
  const auto kind = turns == image::Turns::yes ? Asked::Kind::picture : Asked::Kind::unturned_picture;
  const auto decoded = decode({.kind = kind, .file_bytes = file.size()}, file, place, end);
  if (!decoded) return std::unexpected(decoded.error());
  return picture;
}

Expected<llm::Clip> MediaProcesses::decode_sound(std::span<const std::byte> file, std::int32_t sample_rate,
                                                 const std::stop_token& end) {
  llm::Clip clip{.sample_rate = sample_rate, .samples = {}};
  const Place place = [&](const Answer& answer) -> std::span<std::byte> {
    // The last samples of the resampling come behind the longest clip.
    const auto most = static_cast<std::uint64_t>((image::kAudioSecondsMax + 1) * sample_rate);
    if (answer.bytes % sizeof(float) != 0 || answer.bytes / sizeof(float) > most) return {};
    clip.samples.resize(answer.bytes / sizeof(float));
    return std::as_writable_bytes(std::span(clip.samples));
  };
  const Asked asked{.kind = Asked::Kind::sound, .sample_rate = sample_rate, .file_bytes = file.size()};
  const auto decoded = decode(asked, file, place, end);
  if (!decoded) return std::unexpected(decoded.error());
  // Whatever has become of the process, the daemon computes with numbers.
  for (float& sample : clip.samples) sample = std::isfinite(sample) ? sample : 0.0F;
  return clip;
}

// --- In the process

// Reads, decodes and answers in a process of its own. False: the daemon does not read the answer.
struct MediaAnswering {
  using Asked = MediaProcesses::Asked;
  using Answer = MediaProcesses::Answer;

  static bool refuse(std::string_view why) {
    const std::string_view text = why.substr(0, kTextBytesMax);
    Answer answer{.kind = Answer::Kind::refused, .bytes = text.size()};
    return write_pipe(STDOUT_FILENO, raw_bytes(answer)) && write_pipe(STDOUT_FILENO, std::as_bytes(std::span(text)));
  }
  static bool give(std::span<const std::byte> bytes, std::int32_t width = 0, std::int32_t height = 0) {
    Answer answer{.kind = Answer::Kind::decoded, .width = width, .height = height, .bytes = bytes.size()};
    return write_pipe(STDOUT_FILENO, raw_bytes(answer)) && write_pipe(STDOUT_FILENO, bytes);
  }

  static bool answer(const Asked& asked) {
    Bytes file(asked.file_bytes);
    if (!read_pipe(STDIN_FILENO, file)) return false;
    // The next file is not for this process, and neither is the third pipe, to which libraries would write their warnings.
    const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    const bool is_apart = ::dup2(nothing.get(), STDIN_FILENO) >= 0 && ::dup2(nothing.get(), STDERR_FILENO) >= 0;
    if (!is_apart || !confine()) return refuse("the process of the file's decoder cannot be confined");
    const bool is_sound = asked.kind == Asked::Kind::sound;
    try {
      if (is_sound) {
        const auto clip = image::decode_sound(file, asked.sample_rate);
        return clip ? give(std::as_bytes(std::span(clip->samples))) : refuse(clip.error().message);
      }
      const bool turns = asked.kind == Asked::Kind::picture;
      const auto picture = image::decode_picture(file, turns ? image::Turns::yes : image::Turns::no);
      return picture ? give(std::as_bytes(std::span(picture->levels)), picture->width, picture->height)
                     : refuse(picture.error().message);
    } catch (const std::exception&) {
      return refuse(std::format("the {} cannot be read: its decoder needs too much memory", is_sound ? "clip" : "image"));
    }
  }

  static int run() {
    // Until the daemon closes the pipe.
    for (Asked asked; read_pipe(STDIN_FILENO, raw_bytes(asked));) {
      const pid_t parent = ::getpid();
      const pid_t pid = ::fork();
      if (pid < 0) return 1;
      if (pid == 0) {
        if (!end_with_parent() || ::getppid() != parent) ::_exit(1);
        set_limit(RLIMIT_CPU, kMediaCpuSecondsMax, kMediaCpuSecondsMax + 1);
        ::_exit(answer(asked) ? 0 : 1);
      }
      int status = 0;
      while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
      }
      // After a crash it is not known what is left in the pipes.
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return 1;
      const std::byte ended{};
      if (!write_pipe(STDERR_FILENO, std::span(&ended, 1))) return 1;
    }
    return 0;
  }
};

int run_media_command(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2 || std::to_string(::getppid()) != arguments[1]) {
    std::fputs("umad: decode-media is an internal command of umad\n", stderr);
    return 1;
  }
  set_thread_name("umad-media");
  yield_to_others(kMediaNiceness);
  set_limit(RLIMIT_CORE, 0, 0);
#if !UMA_HAS_SANITIZER  // Their shadow memory would count.
  set_limit(RLIMIT_DATA, kMediaDataBytesMax, kMediaDataBytesMax);
#endif
  return MediaAnswering::run();
}

}  // namespace uma::umad
