#include "kv/cold_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <span>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/file_calls.h"
#include "base/log.h"
#include "kv/read_streamed.h"
#include "kv/state_file.h"

namespace uma::kv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStateEnd = ".kv";
constexpr std::string_view kTemporaryEnd = ".kv.tmp";
constexpr std::string_view kDamagedEnd = ".kv.damaged";
constexpr std::size_t kNameDigits = 32;
constexpr std::size_t kDamagedMax = 16;
constexpr std::size_t kLogLinesMax = 20;
constexpr std::size_t kFirstReadBytes = 16'384;  // The whole head of a state of about 4,000 tokens.

std::unexpected<Error> io_failure(const std::string& path, int error_number) {
  const char* reason = error_number == ELOOP ? "is a symbolic link" : std::strerror(error_number);
  return fail(ErrorCode::io_failed, std::format("{}: {}", path, reason));
}

std::unexpected<Error> file_refused(const std::string& path, std::string_view reason) {
  return fail(ErrorCode::runtime_decode, std::format("{}: {}", path, reason));
}

bool is_name(std::string_view name) {
  return name.size() == kNameDigits && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The name in "NAME<end>"; empty for other files.
std::string_view name_in(std::string_view file, std::string_view end) {
  if (!file.ends_with(end)) return {};
  file.remove_suffix(end.size());
  return is_name(file) ? file : std::string_view();
}

// Returns 0 or an errno.
int write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

// The error for a result of read_all() or read_streamed().
std::unexpected<Error> read_failure(const std::string& path, int problem) {
  return problem == ENODATA ? file_refused(path, "truncated while it was read") : io_failure(path, problem);
}

struct OpenState {
  UniqueFd file;
  StateHead head;
  std::uint64_t head_bytes = 0;
  std::int64_t last_used_s = 0;
};

// Opens the file of the state `name` and reads its head.
Expected<OpenState> open_state(const std::string& path, std::string_view name, bool wants_payload) {
  OpenState state;
  // With O_NONBLOCK, opening a special file does not block.
  state.file = UniqueFd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat facts{};
  if (!state.file.is_open() || ::fstat(state.file.get(), &facts) != 0) return io_failure(path, errno);
  if (!S_ISREG(facts.st_mode)) return fail(ErrorCode::io_failed, std::format("{}: is not a regular file", path));
  const auto file_bytes = static_cast<std::uint64_t>(facts.st_size);
  state.last_used_s = modified_at(facts).tv_sec;
  // Otherwise the system would read ahead beyond the head.
  if (!wants_payload) expect_random_reads(state.file.get());

  Bytes bytes(std::min<std::uint64_t>(file_bytes, kFirstReadBytes));
  if (const int problem = read_all(state.file.get(), 0, bytes); problem != 0) return read_failure(path, problem);
  const auto head_bytes = state_head_bytes(bytes);
  if (!head_bytes) return file_refused(path, head_bytes.error().message);
  if (*head_bytes > file_bytes)
    return file_refused(path, std::format("truncated: it ends after {} bytes, inside its head", file_bytes));
  const std::size_t have = std::min(bytes.size(), *head_bytes);
  bytes.resize(*head_bytes);
  const int problem = read_all(state.file.get(), have, std::span(bytes).subspan(have));
  if (problem != 0) return read_failure(path, problem);

  auto head = decode_state_head(bytes);
  if (!head) return file_refused(path, head.error().message);
  if (head->file_bytes != file_bytes) {
    return file_refused(path, std::format("{}: it has {} of {} bytes", file_bytes < head->file_bytes ? "truncated" : "damaged",
                                          file_bytes, head->file_bytes));
  }
  if (state_name(head->owner, head->identity, head->tokens) != name)
    return file_refused(path, "damaged: its name does not match its content");
  state.head = std::move(*head);
  state.head_bytes = *head_bytes;
  return state;
}

// Whether an older umad wrote the file.
bool is_older_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  std::array<std::byte, kStatePrefixBytes> prefix{};
  return file.is_open() && read_all(file.get(), 0, prefix) == 0 && is_older_state(prefix);
}

Expected<Snapshot> read_payload(OpenState& state, const std::string& path, BytePool& pool) {
  Snapshot snapshot{
      .identity = std::move(state.head.identity), .tokens = std::move(state.head.tokens), .room = {}, .pieces = {}};
  RunningChecksum checksum(snapshot.identity, snapshot.tokens, state.head.pieces.size());
  std::uint64_t offset = state.head_bytes;
  std::int32_t begin = 0;
  snapshot.pieces.reserve(state.head.pieces.size());
  for (const StatePieceEntry& entry : state.head.pieces) {
    SnapshotPiece& piece = snapshot.pieces.emplace_back(begin, entry.end, pool.take(in_blocks(entry.bytes) + kPieceSpareBytes));
    piece.bytes.resize(in_blocks(entry.bytes));
    checksum.begin_piece(piece.begin, piece.end, entry.bytes);
    std::size_t left = entry.bytes;
    bool is_padded = true;
    const auto add = [&](std::span<const std::byte> part) {
      const std::size_t count = std::min(left, part.size());
      checksum.add(part.first(count));
      left -= count;
      is_padded = is_padded && std::ranges::all_of(part.subspan(count), [](std::byte byte) { return byte == std::byte{0}; });
    };
    const int problem = read_streamed(state.file.get(), offset, piece.bytes, add);
    if (problem != 0) return read_failure(path, problem);
    if (!is_padded) return file_refused(path, "damaged: there are bytes between its pieces");
    piece.bytes.resize(entry.bytes);
    offset += in_blocks(entry.bytes);
    begin = entry.end;
  }
  if (checksum.value() != state.head.checksum) return file_refused(path, "damaged: the checksum of the payload is wrong");
  return snapshot;
}

}  // namespace

ColdFiles::ColdFiles(std::string folder, UniqueFd opened) : folder_(std::move(folder)), opened_(std::move(opened)) {}

Expected<std::unique_ptr<ColdFiles>> ColdFiles::open(std::string folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return io_failure(folder, errno);
  UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat facts{};
  if (!opened.is_open() || ::fstat(opened.get(), &facts) != 0) return io_failure(folder, errno);
  // The library trusts every byte of a state, and a checksum does not stop an attacker.
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fail(ErrorCode::io_failed, std::format("{}: other users can write to this folder: run chmod 700 on it", folder));
  }
  // On a file system without locks, other processes are not detected.
  if (::flock(opened.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return fail(ErrorCode::io_failed,
                std::format("{}: another process uses this folder: give this umad another --data-dir", folder));
  }
  std::unique_ptr<ColdFiles> store(new ColdFiles(std::move(folder), std::move(opened)));
  if (auto names = store->names(); !names) return std::unexpected(names.error());
  return store;
}

std::string ColdFiles::path_of(const std::string& name) const {
  UMA_CHECK(is_name(name));
  return std::format("{}/{}{}", folder_, name, kStateEnd);
}

Expected<ColdHead> ColdFiles::write(const StateOwner& owner, const Snapshot& snapshot) {
  const Bytes head = encode_state_head(owner, snapshot, checksum_of(snapshot));
  ColdHead stored{.name = state_name(owner, snapshot.identity, snapshot.tokens),
                  .owner = owner,
                  .identity = snapshot.identity,
                  .tokens = snapshot.tokens};
  const std::string path = path_of(stored.name);
  const std::string temporary = std::format("{}/{}{}", folder_, stored.name, kTemporaryEnd);
  ::unlink(temporary.c_str());
  UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.is_open()) return io_failure(temporary, errno);

  stored.bytes = head.size();
  int problem = write_all(file.get(), head);
  for (const SnapshotPiece& piece : snapshot.pieces) {
    const std::uint64_t padded = in_blocks(piece.bytes.size());
    stored.bytes += padded;
    if (problem == 0) problem = write_all(file.get(), piece.bytes);
    if (problem == 0) problem = write_all(file.get(), std::span(kBlockOfZeros).first(padded - piece.bytes.size()));
  }
  struct stat facts{};
  if (problem == 0) problem = sync_file_bytes(file.get());
  if (problem == 0 && ::fstat(file.get(), &facts) != 0) problem = errno;
  if (problem == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) problem = errno;
  if (problem != 0) {
    ::unlink(temporary.c_str());
    return io_failure(path, problem);
  }
  // Some file systems cannot sync a folder and return EINVAL.
  if (::fsync(opened_.get()) != 0 && errno != EINVAL) {
    auto failure = io_failure(folder_, errno);
    ::unlink(path.c_str());
    return failure;
  }
  stored.last_used_s = modified_at(facts).tv_sec;
  return stored;
}

Expected<Snapshot> ColdFiles::read(const std::string& name, const StateOwner& owner, BytePool& pool) {
  const std::string path = path_of(name);
  auto state = open_state(path, name, true);
  if (state && state->head.owner != owner) return file_refused(path, "it belongs to another owner");
  auto snapshot = state ? read_payload(*state, path, pool) : std::unexpected(std::move(state.error()));
  if (!snapshot && snapshot.error().code == ErrorCode::runtime_decode) {
    set_aside(name);
    prune_damaged();
  }
  return snapshot;
}

Expected<Unit> ColdFiles::remove(const std::string& name) {
  const std::string path = path_of(name);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return io_failure(path, errno);
  return Unit{};
}

void ColdFiles::touch(const std::string& name) {
  const timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = 0, .tv_nsec = UTIME_NOW}};
  if (::utimensat(AT_FDCWD, path_of(name).c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) {
    log_debug("{}: {}", path_of(name), std::strerror(errno));
  }
}

Expected<std::vector<ColdHead>> ColdFiles::list() {
  auto found = names();
  if (!found) return std::unexpected(found.error());
  std::vector<ColdHead> heads;
  heads.reserve(found->size());
  std::size_t refused_count = 0;
  std::size_t older_count = 0;
  for (std::string& name : *found) {
    auto state = open_state(path_of(name), name, false);
    if (state) {
      heads.push_back({.name = std::move(name),
                       .owner = std::move(state->head.owner),
                       .identity = std::move(state->head.identity),
                       .tokens = std::move(state->head.tokens),
                       .bytes = state->head.file_bytes,
                       .last_used_s = state->last_used_s});
      continue;
    }
    if (is_older_file(path_of(name))) {
      if (const auto removed = remove(name); !removed) log_warning("{}", removed.error().message);
      ++older_count;
      continue;
    }
    if (++refused_count <= kLogLinesMax) log_warning("a stored state is ignored: {}", state.error().message);
    if (state.error().code == ErrorCode::runtime_decode) set_aside(name);
  }
  if (older_count > 0) {
    log_info("{}: removed {} states of an older umad; their tokens are computed again when needed", folder_, older_count);
  }
  if (refused_count > kLogLinesMax) log_warning("{}: {} more stored states are ignored", folder_, refused_count - kLogLinesMax);
  if (refused_count > 0) prune_damaged();
  return heads;
}

Expected<std::vector<std::string>> ColdFiles::names() {
  std::vector<std::string> found;
  std::error_code problem;
  for (fs::directory_iterator at(folder_, problem); !problem && at != fs::directory_iterator(); at.increment(problem)) {
    const std::string file = at->path().filename();
    if (const auto name = name_in(file, kStateEnd); !name.empty()) found.emplace_back(name);
    if (!name_in(file, kTemporaryEnd).empty()) ::unlink(at->path().c_str());
  }
  if (problem) return io_failure(folder_, problem.value());
  return found;
}

void ColdFiles::set_aside(const std::string& name) {
  const std::string path = path_of(name);
  const std::string aside = std::format("{}/{}{}", folder_, name, kDamagedEnd);
  if (std::rename(path.c_str(), aside.c_str()) != 0) log_debug("{}: {}", path, std::strerror(errno));
}

void ColdFiles::prune_damaged() {
  struct Damaged {
    timespec since;  // The rename sets a file's change time.
    std::string path;
  };
  std::vector<Damaged> files;
  std::error_code problem;
  for (fs::directory_iterator at(folder_, problem); !problem && at != fs::directory_iterator(); at.increment(problem)) {
    struct stat facts{};
    if (name_in(at->path().filename().string(), kDamagedEnd).empty() || ::lstat(at->path().c_str(), &facts) != 0) continue;
    files.push_back({changed_at(facts), at->path()});
  }
  if (files.size() <= kDamagedMax) return;
  std::ranges::sort(files, std::ranges::greater(),
                    [](const Damaged& file) { return std::tuple(file.since.tv_sec, file.since.tv_nsec, file.path); });
  for (const Damaged& file : std::span(files).subspan(kDamagedMax)) ::unlink(file.path.c_str());
}

}  // namespace uma::kv
