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
#include "kv/state_file_io.h"

namespace uma::kv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStateEnd = ".kv";
constexpr std::string_view kTemporaryEnd = ".kv.tmp";
constexpr std::string_view kDamagedEnd = ".kv.damaged";
constexpr std::size_t kNameDigits = 32;
constexpr std::size_t kDamagedMax = 16;
constexpr std::size_t kLogLinesMax = 20;

bool is_name(std::string_view name) {
  return name.size() == kNameDigits && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The name in "NAME<end>"; empty for other files.
std::string_view name_in(std::string_view file, std::string_view end) {
  if (!file.ends_with(end)) return {};
  file.remove_suffix(end.size());
  return is_name(file) ? file : std::string_view();
}

// Whether an older umad wrote the file.
bool is_older_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  std::array<std::byte, kStatePrefixBytes> prefix{};
  return file.is_open() && read_all(file.get(), 0, prefix) == 0 && is_older_state(prefix);
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

  const WrittenState written = write_state_file(file.get(), head, snapshot);
  stored.bytes = written.bytes;
  int problem = written.problem;
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
  auto state = open_state_file(path, name, true);
  if (state && state->head.owner != owner) return state_refused(path, "it belongs to another owner");
  auto snapshot = state ? read_state_file(*state, path, pool) : std::unexpected(std::move(state.error()));
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
    auto state = open_state_file(path_of(name), name, false);
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
