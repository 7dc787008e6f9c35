#include "kv/shared/shared_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <optional>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "base/system/file_calls.h"
#include "base/system/new_file.h"
#include "kv/disk/state_file.h"
#include "kv/disk/state_file_io.h"

namespace uma::kv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSharedStateEnd = ".kv";
constexpr std::string_view kSharedTemporaryEnd = ".tmp";
constexpr std::size_t kHashDigits = 32;
constexpr std::size_t kFolderDigits = 2;
constexpr std::int64_t kSharedTemporaryMaxS = 3600;  // After so long nobody writes a temporary file any more.

bool is_hash(std::string_view name) {
  return name.size() == kHashDigits && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The parts of "SESSION/IDENTITY-STATE"; empty ones for other texts.
struct StateName {
  std::string session;
  std::string identity;
  std::string state;
};
StateName parts_of(std::string_view name) {
  constexpr std::size_t kLength = 3 * kHashDigits + 2;
  if (name.size() != kLength || name[kHashDigits] != '/' || name[2 * kHashDigits + 1] != '-') return {};
  StateName parts{.session = std::string(name.substr(0, kHashDigits)),
                  .identity = std::string(name.substr(kHashDigits + 1, kHashDigits)),
                  .state = std::string(name.substr(2 * kHashDigits + 2))};
  return is_hash(parts.session) && is_hash(parts.identity) && is_hash(parts.state) ? parts : StateName();
}

// "IDENTITY-STATE" of a state's file; empty for other files.
std::string_view stem_of(std::string_view file) {
  if (!file.ends_with(kSharedStateEnd)) return {};
  file.remove_suffix(kSharedStateEnd.size());
  const bool is_stem = file.size() == 2 * kHashDigits + 1 && file[kHashDigits] == '-' && is_hash(file.substr(0, kHashDigits)) &&
                       is_hash(file.substr(kHashDigits + 1));
  return is_stem ? file : std::string_view();
}

bool is_missing(int error_number) {
  return error_number == ENOENT || error_number == ENOTDIR || error_number == ESTALE;
}

// Whether the file system says that the file has vanished: NFS has an error of its own for that.
bool is_gone(const std::string& path) {
  struct stat facts{};
  return ::lstat(path.c_str(), &facts) != 0 && is_missing(errno);
}

}  // namespace

SharedFolder::SharedFolder(std::string folder, SharedBounds bounds, std::function<std::int64_t()> unix_s)
    : folder_(std::move(folder)), bounds_(bounds), unix_s_(std::move(unix_s)) {}

// The library trusts every byte of a state, and a checksum does not stop an attacker.
Expected<Unit> check_shared_folder(const std::string& folder) {
  struct stat facts{};
  if (::stat(folder.c_str(), &facts) != 0) return io_failure(folder, errno);
  if (!S_ISDIR(facts.st_mode)) return io_failure(folder, ENOTDIR);
  if (facts.st_uid != ::geteuid() && facts.st_uid != 0) {
    return fail(ErrorCode::io_failed, std::format("{}: this folder belongs to another user", folder));
  }
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fail(ErrorCode::io_failed, std::format("{}: other users can write to this folder: run chmod 700 on it", folder));
  }
  return Unit{};
}

std::string SharedFolder::folder_of(const std::string& session_name) const {
  return std::format("{}/{}/{}", folder_, session_name.substr(0, kFolderDigits), session_name);
}

// The states' names without their end. A missing folder has none.
Expected<std::vector<std::string>> SharedFolder::files_in(const std::string& folder) const {
  std::vector<std::string> found;
  std::error_code problem;
  for (fs::directory_iterator at(folder, problem); !problem && at != fs::directory_iterator(); at.increment(problem)) {
    const std::string file = at->path().filename();
    if (const auto stem = stem_of(file); !stem.empty()) found.emplace_back(stem);
  }
  if (problem && !is_missing(problem.value())) return io_failure(folder, problem.value());
  return found;
}

Expected<ColdHead> SharedFolder::write(const StateOwner& owner, const Snapshot& snapshot) {
  UMA_CHECK(!owner.session.empty());
  if (auto usable = check_shared_folder(folder_); !usable) return std::unexpected(usable.error());
  const std::string session = shared_session_name(owner.tenant, owner.session);
  const std::string folder = folder_of(session);
  const std::string stem =
      std::format("{}-{}", shared_identity_name(snapshot.identity), state_name(owner, snapshot.identity, snapshot.tokens));
  const Bytes head = encode_state_head(owner, snapshot, checksum_of(snapshot));
  ColdHead stored{.name = std::format("{}/{}", session, stem),
                  .owner = owner,
                  .identity = snapshot.identity,
                  .tokens = snapshot.tokens,
                  .bytes = head.size(),
                  .last_used_s = unix_s_()};
  for (const SnapshotPiece& piece : snapshot.pieces) stored.bytes += in_blocks(piece.bytes.size());
  if (stored.bytes > std::min(bounds_.state_bytes_max, bounds_.bytes_max)) {
    return fail(ErrorCode::limit_quota,
                std::format("{}: a state of {} bytes is larger than allowed there", folder_, stored.bytes));
  }
  // Another daemon may remove an empty folder before the file is in it.
  const std::string temporary = std::format("{}/{:016x}{:016x}{}", folder, secure_u64(), secure_u64(), kSharedTemporaryEnd);
  const std::string path = std::format("{}/{}{}", folder, stem, kSharedStateEnd);
  const auto make_folders = [&]() -> Expected<Unit> {
    for (const std::string& made : {folder.substr(0, folder.rfind('/')), folder}) {
      if (::mkdir(made.c_str(), 0700) != 0 && errno != EEXIST) return io_failure(made, errno);
    }
    return Unit{};
  };
  if (auto made = make_folders(); !made) return std::unexpected(made.error());
  std::optional<NewFile> file(std::in_place, path, temporary);
  if (file->problem() == ENOENT) {
    if (auto made = make_folders(); !made) return std::unexpected(made.error());
    file.emplace(path, temporary);
  }
  if (file->problem() != 0) return io_failure(temporary, file->problem());
  file->note(write_state_file(file->fd(), head, snapshot, [this] { return is_late(); }).problem);
  if (is_late()) file->note(ETIMEDOUT);
  if (file->problem() == 0) file->note(sync_file_bytes(file->fd()));
  if (const int problem = file->publish(); problem != 0) return io_failure(path, problem);
  remove_former(folder, stem);
  return stored;
}

// Removes the session's other states of the same identity, and those of identities beyond the limit, the oldest first.
void SharedFolder::remove_former(const std::string& folder, const std::string& kept) {
  const auto stems = files_in(folder);
  if (!stems) return;
  const std::string_view identity = std::string_view(kept).substr(0, kHashDigits);
  std::vector<std::pair<std::int64_t, std::string>> others;
  for (const std::string& stem : *stems) {
    if (stem == kept) continue;
    const std::string path = std::format("{}/{}{}", folder, stem, kSharedStateEnd);
    struct stat facts{};
    if (stem.starts_with(identity)) {
      ::unlink(path.c_str());
    } else if (::lstat(path.c_str(), &facts) == 0) {
      others.emplace_back(modified_ns(facts), path);
    }
  }
  std::ranges::sort(others);
  while (others.size() >= kSharedIdentitiesMax) {
    ::unlink(others.front().second.c_str());
    others.erase(others.begin());
  }
}

Expected<std::vector<ColdHead>> SharedFolder::find(const TenantId& tenant, const SessionId& session,
                                                   std::span<const std::string> identities) {
  if (auto usable = check_shared_folder(folder_); !usable) return std::unexpected(usable.error());
  const std::string session_name = shared_session_name(tenant, session);
  const std::string folder = folder_of(session_name);
  auto stems = files_in(folder);
  if (!stems) return std::unexpected(stems.error());
  std::vector<ColdHead> heads;
  for (const std::string& identity : identities) {
    const std::string wanted = shared_identity_name(identity);
    for (const std::string& stem : *stems) {
      if (!stem.starts_with(wanted)) continue;
      if (is_late()) return io_failure(folder, ETIMEDOUT);
      const std::string path = std::format("{}/{}{}", folder, stem, kSharedStateEnd);
      auto state = open_state_file(path, std::string_view(stem).substr(kHashDigits + 1), false);
      const bool is_of_session = state && state->head.owner.tenant == tenant && state->head.owner.session == session &&
                                 state->head.identity == identity;
      if (state && !is_of_session) state = state_refused(path, "it belongs to another session or model");
      if (!state) {
        if (is_gone(path)) continue;
        log_warning("kv: a shared state is ignored: {}", state.error().message);
        if (state.error().code == ErrorCode::runtime_decode) ::unlink(path.c_str());
        continue;
      }
      if (state->head.file_bytes > bounds_.state_bytes_max) continue;
      heads.push_back({.name = std::format("{}/{}", session_name, stem),
                       .owner = std::move(state->head.owner),
                       .identity = std::move(state->head.identity),
                       .tokens = std::move(state->head.tokens),
                       .bytes = state->head.file_bytes,
                       .last_used_s = state->last_used_s});
    }
  }
  return heads;
}

Expected<std::optional<Snapshot>> SharedFolder::read(const std::string& name, const StateOwner& owner, std::uint64_t bytes,
                                                     BytePool& pool) {
  const StateName parts = parts_of(name);
  UMA_CHECK(!parts.session.empty());
  if (auto usable = check_shared_folder(folder_); !usable) return std::unexpected(usable.error());
  const std::string path = std::format("{}/{}-{}{}", folder_of(parts.session), parts.identity, parts.state, kSharedStateEnd);
  auto state = open_state_file(path, parts.state, true);
  if (state && state->head.owner != owner) state = state_refused(path, "it belongs to another owner");
  if (state && state->head.file_bytes != bytes) state = state_refused(path, "it has another size than before");
  auto snapshot =
      state ? read_state_file(*state, path, pool, [this] { return is_late(); }) : std::unexpected(std::move(state.error()));
  if (!snapshot) {
    // A file that another daemon has removed may also look truncated, or damaged.
    if (is_gone(path)) return std::nullopt;
    if (snapshot.error().code == ErrorCode::runtime_decode) ::unlink(path.c_str());
    return std::unexpected(snapshot.error());
  }
  const timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = unix_s_(), .tv_nsec = 0}};
  if (::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) log_debug("{}: {}", path, std::strerror(errno));
  return std::optional(std::move(*snapshot));
}

Expected<Unit> SharedFolder::remove(const TenantId& tenant, const SessionId& session) {
  if (auto usable = check_shared_folder(folder_); !usable) return usable;
  const std::string folder = folder_of(shared_session_name(tenant, session));
  const auto stems = files_in(folder);
  if (!stems) return std::unexpected(stems.error());
  for (const std::string& stem : *stems) {
    if (is_late()) return io_failure(folder, ETIMEDOUT);
    const std::string path = std::format("{}/{}{}", folder, stem, kSharedStateEnd);
    if (::unlink(path.c_str()) != 0 && !is_missing(errno)) return io_failure(path, errno);
  }
  ::rmdir(folder.c_str());
  return Unit{};
}

Expected<std::size_t> SharedFolder::clean() {
  if (auto usable = check_shared_folder(folder_); !usable) return std::unexpected(usable.error());
  struct File {
    std::int64_t used_ns;
    std::uint64_t bytes;
    std::string path;
  };
  std::vector<File> files;
  std::uint64_t bytes = 0;
  std::size_t removed = 0;
  const std::int64_t now_s = unix_s_();
  std::error_code problem;
  // Folders that vanish meanwhile are no problem.
  const auto each_in = [](const std::string& folder, auto&& visit) {
    std::error_code ended;
    for (fs::directory_iterator at(folder, ended); !ended && at != fs::directory_iterator(); at.increment(ended))
      visit(at->path());
  };
  const auto visit_file = [&](const fs::path& path) {
    const std::string file = path.filename();
    const bool is_temporary = file.ends_with(kSharedTemporaryEnd) && is_hash(std::string_view(file).substr(0, kHashDigits));
    struct stat facts{};
    if ((stem_of(file).empty() && !is_temporary) || ::lstat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return;
    const std::int64_t unused_s = now_s - modified_at(facts).tv_sec;
    if (unused_s > (is_temporary ? kSharedTemporaryMaxS : bounds_.ttl_s)) {
      removed += ::unlink(path.c_str()) == 0 && !is_temporary ? 1 : 0;
      return;
    }
    bytes += static_cast<std::uint64_t>(facts.st_size);
    if (!is_temporary) files.push_back({modified_ns(facts), static_cast<std::uint64_t>(facts.st_size), path});
  };
  for (fs::directory_iterator top(folder_, problem); !problem && top != fs::directory_iterator(); top.increment(problem)) {
    const std::string part = top->path().filename();
    if (part.size() != kFolderDigits || part.find_first_not_of("0123456789abcdef") != std::string::npos) continue;
    each_in(top->path(), [&](const fs::path& session) {
      if (!is_hash(session.filename().string()) || is_late()) return;
      each_in(session, visit_file);
      ::rmdir(session.c_str());  // Succeeds if it is empty.
    });
  }
  if (problem) return io_failure(folder_, problem.value());
  if (is_late()) return io_failure(folder_, ETIMEDOUT);  // Not all files were seen.
  std::ranges::sort(files, {}, [](const File& file) { return std::tuple(file.used_ns, file.path); });
  for (const File& file : files) {
    if (bytes <= bounds_.bytes_max || is_late()) break;
    removed += ::unlink(file.path.c_str()) == 0 ? 1 : 0;
    bytes -= file.bytes;
  }
  return removed;
}

}  // namespace uma::kv
