#include "kv/disk/state_file_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <format>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/system/file_calls.h"
#include "kv/disk/read_streamed.h"

namespace uma::kv {
namespace {

constexpr std::size_t kTimedPartBytes = std::size_t{16} << 20;  // Between two questions whether it is late.
constexpr std::size_t kFirstReadBytes = 16'384;                 // The whole head of a state of about 4,000 tokens.

// Returns 0 or an errno.
int write_all(int file, std::span<const std::byte> bytes, const IsLate& is_late) {
  while (!bytes.empty()) {
    if (is_late && is_late()) return ETIMEDOUT;
    const ssize_t written = ::write(file, bytes.data(), is_late ? std::min(bytes.size(), kTimedPartBytes) : bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

// The error for a result of read_all() or read_streamed().
std::unexpected<Error> read_failure(const std::string& path, int problem) {
  return problem == ENODATA ? state_refused(path, "truncated while it was read") : io_failure(path, problem);
}

}  // namespace

std::unexpected<Error> io_failure(const std::string& path, int error_number) {
  const char* reason = error_number == ELOOP ? "is a symbolic link" : std::strerror(error_number);
  return fail(ErrorCode::io_failed, std::format("{}: {}", path, reason));
}

std::unexpected<Error> state_refused(const std::string& path, std::string_view reason) {
  return fail(ErrorCode::runtime_decode, std::format("{}: {}", path, reason));
}

Expected<OpenState> open_state_file(const std::string& path, std::string_view name, bool wants_payload) {
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
  if (!head_bytes) return state_refused(path, head_bytes.error().message);
  if (*head_bytes > file_bytes)
    return state_refused(path, std::format("truncated: it ends after {} bytes, inside its head", file_bytes));
  const std::size_t have = std::min(bytes.size(), *head_bytes);
  bytes.resize(*head_bytes);
  const int problem = read_all(state.file.get(), have, std::span(bytes).subspan(have));
  if (problem != 0) return read_failure(path, problem);

  auto head = decode_state_head(bytes);
  if (!head) return state_refused(path, head.error().message);
  if (head->file_bytes != file_bytes) {
    return state_refused(path, std::format("{}: it has {} of {} bytes", file_bytes < head->file_bytes ? "truncated" : "damaged",
                                           file_bytes, head->file_bytes));
  }
  if (!name.empty() && state_name(head->owner, head->identity, head->tokens) != name)
    return state_refused(path, "damaged: its name does not match its content");
  state.head = std::move(*head);
  state.head_bytes = *head_bytes;
  return state;
}

Expected<Snapshot> read_state_file(OpenState& state, const std::string& path, BytePool& pool, const IsLate& is_late) {
  std::uint64_t offset = state.head_bytes;
  return read_state_payload(std::move(state.head), path, pool,
                            [&](std::span<std::byte> into, const auto& take) -> Expected<Unit> {
                              while (!into.empty()) {
                                if (is_late && is_late()) return io_failure(path, ETIMEDOUT);
                                const auto part = into.first(is_late ? std::min(into.size(), kTimedPartBytes) : into.size());
                                const int problem = read_streamed(state.file.get(), offset, part, take);
                                if (problem != 0) return read_failure(path, problem);
                                offset += part.size();
                                into = into.subspan(part.size());
                              }
                              return Unit{};
                            });
}

Expected<Snapshot> read_state_payload(StateHead head, const std::string& from, BytePool& pool, const FillPayload& fill) {
  Snapshot snapshot{.identity = std::move(head.identity), .tokens = std::move(head.tokens), .room = {}, .pieces = {}};
  RunningChecksum checksum(snapshot.identity, snapshot.tokens, head.pieces.size());
  std::int32_t begin = 0;
  snapshot.pieces.reserve(head.pieces.size());
  for (const StatePieceEntry& entry : head.pieces) {
    SnapshotPiece& piece = snapshot.pieces.emplace_back(begin, entry.end, Bytes());
    if (entry.bytes > 0) piece.bytes = pool.take(in_blocks(entry.bytes) + kPieceSpareBytes);
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
    if (auto filled = fill(piece.bytes, add); !filled) return std::unexpected(filled.error());
    if (!is_padded) return state_refused(from, "damaged: there are bytes between its pieces");
    piece.bytes.resize(entry.bytes);
    begin = entry.end;
  }
  if (checksum.value() != head.checksum) return state_refused(from, "damaged: the checksum of the payload is wrong");
  return snapshot;
}

WrittenState write_state_file(int file, std::span<const std::byte> head, const SnapshotView& snapshot, const IsLate& is_late) {
  WrittenState written{.bytes = head.size(), .problem = write_all(file, head, is_late)};
  for (const SnapshotView::Piece& piece : snapshot.pieces) {
    const std::uint64_t padded = in_blocks(piece.bytes.size());
    written.bytes += padded;
    const auto padding = std::span(kBlockOfZeros).first(padded - piece.bytes.size());
    if (written.problem == 0) written.problem = write_all(file, piece.bytes, is_late);
    if (written.problem == 0) written.problem = write_all(file, padding, is_late);
  }
  return written;
}

}  // namespace uma::kv
