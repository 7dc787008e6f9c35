#include "kv/disk/cold_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/system/file_calls.h"
#include "base/system/new_file.h"
#include "kv/disk/read_streamed.h"
#include "kv/disk/state_file.h"
#include "kv/disk/state_file_io.h"

namespace uma::kv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStateEnd = ".kv";
constexpr std::string_view kPartEnd = ".part";
constexpr std::string_view kTemporaryEnd = ".tmp";
constexpr std::string_view kDamagedEnd = ".damaged";
constexpr std::size_t kNameDigits = 32;
constexpr std::size_t kDamagedMax = 16;
constexpr std::size_t kLogLinesMax = 20;

bool is_name(std::string_view name) {
  return name.size() == kNameDigits && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_part_name(std::string_view name) {
  const std::size_t dash = name.find('-');
  return dash != std::string_view::npos && is_name(name.substr(0, dash)) && dash + 1 < name.size() &&
         name.find_first_not_of("0123456789", dash + 1) == std::string_view::npos;
}

// The name of the state or part in "NAME.kv<end>" or "NAME.part<end>"; empty for other files.
std::string_view name_in(std::string_view file, std::string_view end) {
  if (!file.ends_with(end)) return {};
  file.remove_suffix(end.size());
  const std::size_t dot = file.find('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view name = file.substr(0, dot);
  const std::string_view kind = file.substr(dot);
  return (kind == kStateEnd && is_name(name)) || (kind == kPartEnd && is_part_name(name)) ? name : std::string_view();
}

std::vector<std::int32_t> ends_of(const Snapshot& snapshot) {
  std::vector<std::int32_t> ends;
  for (const SnapshotPiece& piece : snapshot.pieces) ends.push_back(piece.end);
  return ends;
}

// The parts of a state that its own file does not have.
std::vector<StatePart> parts_of_head(const StateHead& head) {
  if (!head.has_parts()) return {};
  std::vector<std::int32_t> ends;
  for (const StatePieceEntry& piece : head.pieces) ends.push_back(piece.end);
  std::vector<StatePart> parts = kv::parts_of(head.owner, head.identity, head.tokens, ends);
  std::size_t at = 0;
  std::erase_if(parts, [&](const StatePart&) { return head.pieces[at++].bytes > 0; });
  return parts;
}

// The file of a part has its tokens only. Its name, a hash of those before it, too, stands behind the identity, so that no
// other part can take its place.
std::string part_identity(std::string_view identity, std::string_view name) {
  return std::format("{}|part {}", identity, name);
}

SnapshotView view_of_part(std::string_view identity, const Snapshot& snapshot, const SnapshotPiece& piece) {
  const auto begin = static_cast<std::size_t>(piece.begin);
  const auto count = static_cast<std::size_t>(piece.end - piece.begin);
  return {identity, std::span(snapshot.tokens).subspan(begin, count), {{0, piece.end - piece.begin, piece.bytes}}};
}

// Its size; nullopt, and errno: there is no such regular file (ENOENT), or it cannot be looked at.
std::optional<std::uint64_t> size_of_file(const std::string& path) {
  struct stat facts{};
  if (::lstat(path.c_str(), &facts) != 0) return std::nullopt;
  if (S_ISREG(facts.st_mode)) return static_cast<std::uint64_t>(facts.st_size);
  errno = ENOENT;
  return std::nullopt;
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
  UMA_CHECK(is_name(name) || is_part_name(name));
  return std::format("{}/{}{}", folder_, name, is_name(name) ? kStateEnd : kPartEnd);
}

std::vector<ColdPart> ColdFiles::parts_of(const StateOwner& owner, const Snapshot& snapshot) const {
  std::vector<ColdPart> parts;
  for (StatePart& part : kv::parts_of(owner, snapshot.identity, snapshot.tokens, ends_of(snapshot))) {
    const SnapshotPiece& piece = snapshot.pieces[parts.size()];
    const std::string identity = part_identity(snapshot.identity, part.name);
    const std::uint64_t head_bytes = state_head_bytes(part_owner(owner), view_of_part(identity, snapshot, piece));
    const std::uint64_t bytes = piece.bytes.empty() ? 0 : head_bytes + in_blocks(piece.bytes.size());
    parts.push_back({.name = std::move(part.name), .bytes = bytes});
  }
  return parts;
}

Expected<std::uint64_t> ColdFiles::write_piece(const std::string& name, const StateOwner& owner, const Snapshot& snapshot,
                                               const SnapshotPiece& piece) {
  const std::string identity = part_identity(snapshot.identity, name);
  const auto written = write_file(name, part_owner(owner), view_of_part(identity, snapshot, piece));
  if (!written) return std::unexpected(written.error());
  return written->bytes;
}

Expected<ColdPart> ColdFiles::write_part(const StateOwner& owner, const Snapshot& snapshot, const StatePart& part) {
  const auto piece = std::ranges::find(snapshot.pieces, part.begin, &SnapshotPiece::begin);
  UMA_CHECK(piece != snapshot.pieces.end() && piece->end == part.end);
  const auto written = write_piece(part.name, owner, snapshot, *piece);
  if (!written) return std::unexpected(written.error());
  return ColdPart{.name = part.name, .bytes = *written};
}

Expected<ColdHead> ColdFiles::write(const StateOwner& owner, const Snapshot& snapshot) {
  ColdHead stored{.name = state_name(owner, snapshot.identity, snapshot.tokens),
                  .owner = owner,
                  .identity = snapshot.identity,
                  .tokens = snapshot.tokens,
                  .parts = parts_of(owner, snapshot)};
  SnapshotView rest(snapshot);
  for (std::size_t i = 0; i < stored.parts.size(); ++i) {
    ColdPart& part = stored.parts[i];
    rest.pieces[i].bytes = {};
    const bool has_bytes = part.bytes > 0;
    const auto there = size_of_file(path_of(part.name));
    if (there && (has_bytes ? *there == part.bytes : *there > 0)) {
      part.bytes = *there;
      continue;
    }
    if (!has_bytes) return state_refused(path_of(part.name), "a part of a state that is written is gone");
    const auto written = write_piece(part.name, owner, snapshot, snapshot.pieces[i]);
    if (!written) return std::unexpected(written.error());
    part.bytes = *written;
  }
  const auto written = write_file(stored.name, owner, rest);
  if (!written) return std::unexpected(written.error());
  stored.bytes = written->bytes;
  stored.last_used_s = written->at_s;
  // Some file systems cannot sync a folder and return EINVAL.
  if (::fsync(opened_.get()) != 0 && errno != EINVAL) {
    auto failure = io_failure(folder_, errno);
    ::unlink(path_of(stored.name).c_str());
    return failure;
  }
  return stored;
}

std::vector<std::string> ColdFiles::lost(std::span<const ColdPart> parts) const {
  std::vector<std::string> names;
  for (const ColdPart& part : parts) {
    const auto there = size_of_file(path_of(part.name));
    // A file that cannot be looked at now may be there.
    if (there ? *there != part.bytes : errno == ENOENT) names.push_back(part.name);
  }
  return names;
}

Expected<ColdFiles::Written> ColdFiles::write_file(const std::string& name, const StateOwner& owner,
                                                   const SnapshotView& snapshot) {
  const Bytes head = encode_state_head(owner, snapshot, checksum_of(snapshot));
  const std::string path = path_of(name);
  NewFile file(path, path + std::string(kTemporaryEnd));
  if (file.problem() != 0) return io_failure(path, file.problem());
  const WrittenState written = write_state_file(file.fd(), head, snapshot);
  written_bytes_ += written.bytes;
  file.note(written.problem);
  struct stat facts{};
  if (file.problem() == 0) file.note(sync_file_bytes(file.fd()));
  if (file.problem() == 0 && ::fstat(file.fd(), &facts) != 0) file.note(errno);
  if (const int problem = file.publish(); problem != 0) return io_failure(path, problem);
  return Written{.bytes = written.bytes, .at_s = modified_at(facts).tv_sec};
}

Expected<Snapshot> ColdFiles::read(const std::string& name, const StateOwner& owner, BytePool& pool) {
  const std::string path = path_of(name);
  auto state = open_state_file(path, name, true);
  if (state && state->head.owner != owner) return state_refused(path, "it belongs to another owner");
  const std::vector<StatePart> parts = state ? parts_of_head(state->head) : std::vector<StatePart>();
  auto snapshot = state ? read_state_file(*state, path, pool) : std::unexpected(std::move(state.error()));
  if (!snapshot && snapshot.error().code == ErrorCode::runtime_decode) {
    set_aside(name);
    prune_damaged();
  }
  for (const StatePart& part : snapshot ? parts : std::vector<StatePart>()) {
    auto bytes = read_part(part, part_owner(owner), *snapshot, pool);
    if (!bytes) {
      recycle(std::move(*snapshot), pool);
      return std::unexpected(bytes.error());
    }
    std::ranges::find(snapshot->pieces, part.begin, &SnapshotPiece::begin)->bytes = std::move(*bytes);
  }
  return snapshot;
}

// The bytes of a part of the state `of`.
Expected<Bytes> ColdFiles::read_part(const StatePart& part, const StateOwner& owner, const Snapshot& of, BytePool& pool) {
  const std::string path = path_of(part.name);
  auto state = open_state_file(path, {}, true);
  if (state) {
    const auto begin = static_cast<std::size_t>(part.begin);
    const auto tokens = std::span(of.tokens).subspan(begin, static_cast<std::size_t>(part.end - part.begin));
    const StateHead& head = state->head;
    const bool is_right = head.owner == owner && head.identity == part_identity(of.identity, part.name) &&
                          std::ranges::equal(head.tokens, tokens) && head.pieces.size() == 1;
    if (!is_right) state = state_refused(path, "it is not the part that it should be");
  }
  auto snapshot = state ? read_state_file(*state, path, pool) : std::unexpected(std::move(state.error()));
  if (snapshot) return std::move(snapshot->pieces.front().bytes);
  if (snapshot.error().code == ErrorCode::runtime_decode) {
    set_aside(part.name);
    prune_damaged();
  }
  return std::unexpected(snapshot.error());
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
  heads.reserve(found->states.size());
  std::set<std::string> needed;
  std::size_t refused_count = 0;
  std::size_t older_count = 0;
  bool is_known = found->is_complete;  // Which parts the states need.
  for (std::string& name : found->states) {
    auto state = open_state_file(path_of(name), name, false);
    std::vector<ColdPart> parts;
    for (StatePart& part : state ? parts_of_head(state->head) : std::vector<StatePart>()) {
      const auto known = found->parts.find(part.name);
      if (known == found->parts.end()) {
        state = io_failure(path_of(part.name), ENOENT);
        if (found->is_complete) (void)remove(name);  // Somebody has removed its part.
        break;
      }
      parts.push_back({.name = std::move(part.name), .bytes = known->second});
    }
    if (state) {
      for (const ColdPart& part : parts) needed.insert(part.name);
      heads.push_back({.name = std::move(name),
                       .owner = std::move(state->head.owner),
                       .identity = std::move(state->head.identity),
                       .tokens = std::move(state->head.tokens),
                       .bytes = state->head.file_bytes,
                       .parts = std::move(parts),
                       .last_used_s = state->last_used_s});
      continue;
    }
    if (is_older_file(path_of(name))) {
      if (const auto removed = remove(name); !removed) log_warning("{}", removed.error().message);
      ++older_count;
      continue;
    }
    if (++refused_count <= kLogLinesMax) log_warning("a stored state is ignored: {}", state.error().message);
    if (state.error().code == ErrorCode::runtime_decode) {
      set_aside(name);
    } else if (size_of_file(path_of(name))) {
      is_known = false;  // The disk may give it at the next start.
    }
  }
  for (const auto& [name, bytes] : found->parts) {
    if (needed.contains(name) || !is_known) continue;
    if (const auto removed = remove(name); !removed) log_debug("{}", removed.error().message);
  }
  if (older_count > 0) {
    log_info("{}: removed {} states of an older umad; their tokens are computed again when needed", folder_, older_count);
  }
  if (refused_count > kLogLinesMax) log_warning("{}: {} more stored states are ignored", folder_, refused_count - kLogLinesMax);
  if (refused_count > 0) prune_damaged();
  return heads;
}

Expected<ColdFiles::Names> ColdFiles::names() {
  Names found;
  std::error_code problem;
  for (fs::directory_iterator at(folder_, problem); !problem && at != fs::directory_iterator(); at.increment(problem)) {
    const std::string file = at->path().filename();
    if (!name_in(file, kTemporaryEnd).empty()) ::unlink(at->path().c_str());
    const auto name = name_in(file, "");
    if (name.empty()) continue;
    if (is_name(name)) {
      found.states.emplace_back(name);
      continue;
    }
    if (const auto bytes = size_of_file(at->path()); bytes == 0) {
      ::unlink(at->path().c_str());
    } else if (bytes) {
      found.parts.emplace(name, *bytes);
    } else if (errno != ENOENT) {
      found.is_complete = false;
    }
  }
  if (problem) return io_failure(folder_, problem.value());
  return found;
}

void ColdFiles::set_aside(const std::string& name) {
  const std::string path = path_of(name);
  const std::string aside = path + std::string(kDamagedEnd);
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
