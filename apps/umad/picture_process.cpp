#include "umad/picture_process.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <format>
#include <optional>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "base/thread_name.h"
#include "image/image_header.h"
#include "umad/child_process.h"
#include "umad/confine.h"

namespace uma::umad {
namespace {

// The limits of one picture. 64 million pixels of the most expensive kind take some seconds and a gigabyte.
constexpr rlim_t kPictureCpuSecondsMax = 30;
constexpr rlim_t kPictureDataBytesMax = rlim_t{1536} << 20;
constexpr Duration kPicturePatience = std::chrono::minutes(2);  // On a machine that is busy.
constexpr std::uint64_t kTextBytesMax = 1000;

// Sent to the process, followed by the file.
struct PictureAsked {
  std::uint64_t file_bytes = 0;
  std::uint64_t turns = 0;
};

// Followed by the levels, or by a text that says why there are none.
struct PictureAnswer {
  std::int32_t width = 0;  // 0: refused.
  std::int32_t height = 0;
  std::uint64_t bytes = 0;
};

template <class T>
std::span<std::byte> raw_bytes(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// Waits until the file is ready for `events`. False: too late.
bool wait_for_pipe(int fd, short events, TimePoint end, const Clock& clock) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - clock.now());
    pollfd ready{.fd = fd, .events = events, .revents = 0};
    const int count = left.count() <= 0 ? 0 : ::poll(&ready, 1, static_cast<int>(left.count()));
    if (count > 0) return true;
    if (count == 0 || errno != EINTR) return false;
  }
}

// The daemon's side does not wait longer than `end`; kNever: a process that waits for the daemon.
bool read_pipe(int fd, std::span<std::byte> bytes, TimePoint end = kNever) {
  const SteadyClock clock;
  while (!bytes.empty()) {
    if (end != kNever && !wait_for_pipe(fd, POLLIN, end, clock)) return false;
    const ssize_t got = ::read(fd, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

bool write_pipe(int fd, std::span<const std::byte> bytes, TimePoint end = kNever) {
  const SteadyClock clock;
  while (!bytes.empty()) {
    if (end != kNever && !wait_for_pipe(fd, POLLOUT, end, clock)) return false;
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (put <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return true;
}

bool is_possible_answer(const PictureAnswer& answer) {
  if (answer.width == 0) return answer.bytes <= kTextBytesMax;
  const std::int64_t pixels = std::int64_t{answer.width} * answer.height;
  return answer.width > 0 && answer.height > 0 && answer.width <= image::kImageSideMax &&
         answer.height <= image::kImageSideMax && pixels <= image::kImagePixelsMax &&
         answer.bytes == static_cast<std::uint64_t>(pixels) * 3;
}

// --- In the process

Expected<llm::Picture> decode_asked(const PictureAsked& asked) {
  if (!confine()) return fail(ErrorCode::runtime_decode, "the process of the picture's decoder cannot be confined");
  Bytes file(asked.file_bytes);
  if (!read_pipe(STDIN_FILENO, file)) return fail(ErrorCode::proto_field, "the picture has not come");
  try {
    return image::decode_picture(file, asked.turns != 0 ? image::Turns::yes : image::Turns::no);
  } catch (const std::exception&) {
    return fail(ErrorCode::proto_field, "the image cannot be read: its decoder needs too much memory");
  }
}

// False: the daemon does not read it.
bool answer_with(const Expected<llm::Picture>& picture) {
  if (picture) {
    PictureAnswer answer{.width = picture->width, .height = picture->height, .bytes = picture->levels.size()};
    return write_pipe(STDOUT_FILENO, raw_bytes(answer)) && write_pipe(STDOUT_FILENO, std::as_bytes(std::span(picture->levels)));
  }
  const std::string text = picture.error().message.substr(0, kTextBytesMax);
  PictureAnswer answer{.width = 0, .height = 0, .bytes = text.size()};
  return write_pipe(STDOUT_FILENO, raw_bytes(answer)) && write_pipe(STDOUT_FILENO, std::as_bytes(std::span(text)));
}

void set_limit(int resource, rlim_t soft, rlim_t hard) {
  const rlimit limits{.rlim_cur = soft, .rlim_max = hard};
  ::setrlimit(resource, &limits);
}

}  // namespace

// --- In the daemon

PictureProcesses::Waiting::Waiting(Waiting&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), to_(std::move(other.to_)), from_(std::move(other.from_)) {}

PictureProcesses::Waiting& PictureProcesses::Waiting::operator=(Waiting&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(to_, other.to_);
  std::swap(from_, other.from_);
  return *this;
}

PictureProcesses::Waiting::~Waiting() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<Expected<llm::Picture>> PictureProcesses::Waiting::decode(std::span<const std::byte> file,
                                                                        image::Turns turns) const {
  const TimePoint end = SteadyClock().now() + kPicturePatience;
  PictureAsked asked{.file_bytes = file.size(), .turns = turns == image::Turns::yes ? 1U : 0U};
  if (!write_pipe(to_.get(), raw_bytes(asked), end) || !write_pipe(to_.get(), file, end)) return std::nullopt;
  PictureAnswer answer;
  if (!read_pipe(from_.get(), raw_bytes(answer), end) || !is_possible_answer(answer)) return std::nullopt;
  if (answer.width == 0) {
    std::string text(answer.bytes, '\0');
    if (!read_pipe(from_.get(), std::as_writable_bytes(std::span(text)), end)) return std::nullopt;
    return fail(ErrorCode::proto_field, std::move(text));
  }
  llm::Picture picture{.width = answer.width, .height = answer.height, .levels = std::vector<std::uint8_t>(answer.bytes)};
  if (!read_pipe(from_.get(), std::as_writable_bytes(std::span(picture.levels)), end)) return std::nullopt;
  return picture;
}

std::optional<PictureProcesses::Waiting> PictureProcesses::take() {
  const MutexLock lock(mutex_);
  return std::exchange(idle_, std::nullopt);
}

Expected<PictureProcesses::Waiting> PictureProcesses::start() const {
  auto requests = open_pipe();
  auto answers = open_pipe();
  int problem = errno;
  if (requests && answers) {
    make_nonblocking(requests->in.get());
    const pid_t pid = spawn_child(program_, {"umad", kPictureCommand, std::to_string(::getpid())}, own_environment(),
                                  {.input = requests->out.get(), .output = answers->in.get(), .errors = -1});
    if (pid > 0) return Waiting(pid, std::move(requests->in), std::move(answers->out));
    problem = -pid;
  }
  return fail(ErrorCode::runtime_decode, std::format("the picture's decoder could not be started: {}", std::strerror(problem)));
}

Expected<llm::Picture> PictureProcesses::decode(std::span<const std::byte> file, image::Turns turns) {
  auto waiting = take();
  auto picture = waiting ? waiting->decode(file, turns) : std::nullopt;
  if (!picture) {  // The one that waited may have ended for another reason.
    auto started = start();
    if (!started) return std::unexpected(started.error());
    waiting = std::move(*started);
    picture = waiting->decode(file, turns);
  }
  if (!picture) {
    log_warning("the decoder of a picture of {} bytes has crashed, or needed more than {} s or {} MiB", file.size(),
                kPictureCpuSecondsMax, kPictureDataBytesMax >> 20);
    return fail(ErrorCode::proto_field,
                "the image cannot be read: its decoder has crashed, or needed too much time or memory: save it anew");
  }
  const MutexLock lock(mutex_);
  if (!idle_) idle_ = std::move(*waiting);
  return std::move(*picture);
}

int run_picture_command(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2 || std::to_string(::getppid()) != arguments[1]) {
    std::fputs("umad: decode-pictures is an internal command of umad\n", stderr);
    return 1;
  }
  set_thread_name("umad-picture");
  set_limit(RLIMIT_CORE, 0, 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // Their shadow memory would count.
  set_limit(RLIMIT_DATA, kPictureDataBytesMax, kPictureDataBytesMax);
#endif
  // Until the daemon closes the pipe.
  for (PictureAsked asked; read_pipe(STDIN_FILENO, raw_bytes(asked));) {
    const pid_t pid = ::fork();
    if (pid < 0) return 1;
    if (pid == 0) {
      set_limit(RLIMIT_CPU, kPictureCpuSecondsMax, kPictureCpuSecondsMax + 1);
      ::_exit(answer_with(decode_asked(asked)) ? 0 : 1);
    }
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    // After a crash it is not known what is left in the pipes.
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return 1;
  }
  return 0;
}

}  // namespace uma::umad
