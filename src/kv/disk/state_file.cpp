#include "kv/disk/state_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <format>

#include "base/check.h"

namespace uma::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian and is copied as it is");

constexpr std::array<char, 8> kStateMagic = {'u', 'm', 'a', 's', 't', 'a', 't', 'e'};
// Flags.
constexpr std::uint32_t kPublic = 1;
constexpr std::uint32_t kPrivate = 2;
constexpr std::size_t kFixedBytes = 56;
constexpr std::size_t kPieceEntryBytes = 12;
constexpr std::size_t kStateChecksumBytes = 16;
constexpr std::uint64_t kFileBytesMax = 1ull << 48;  // Far enough from overflow for sums of lengths.

class Writer {
 public:
  explicit Writer(std::size_t bytes_count) { bytes_.reserve(bytes_count); }
  void add(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  template <class Number>
  void add_number(Number number) {
    add(std::as_bytes(std::span(&number, 1)));
  }
  [[nodiscard]] Bytes& bytes() { return bytes_; }

 private:
  Bytes bytes_;
};

// Requires: the caller knows that the bytes exist.
class HeadReader {
 public:
  explicit HeadReader(std::span<const std::byte> bytes) : left_(bytes) {}
  std::span<const std::byte> take(std::size_t count) {
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  template <class Number>
  Number take_number() {
    Number number;
    std::memcpy(&number, take(sizeof number).data(), sizeof number);
    return number;
  }
  std::string take_text(std::size_t count) {
    std::string text(count, '\0');
    std::ranges::transform(take(count), text.begin(), [](std::byte byte) { return static_cast<char>(byte); });
    return text;
  }

 private:
  std::span<const std::byte> left_;
};

// Every part includes its length, as in RunningChecksum.
void add_text(Writer& out, std::string_view text) {
  out.add_number(std::uint64_t{text.size()});
  out.add(std::as_bytes(std::span(text)));
}

std::unexpected<Error> damaged(std::string_view what) {
  return fail(ErrorCode::runtime_decode, std::format("damaged: {}", what));
}

std::uint32_t flags_of(const StateOwner& owner) {
  return (owner.is_public ? kPublic : 0) | (owner.is_private ? kPrivate : 0);
}

// The first bytes of those that a state's name is a hash of; its tokens follow.
Bytes name_begin(const StateOwner& owner, std::string_view identity) {
  Writer out(identity.size() + 256);
  out.add_number(flags_of(owner));
  add_text(out, owner.tenant.value);
  add_text(out, owner.session.value);
  add_text(out, identity);
  return std::move(out.bytes());
}

std::string name_of(const Checksum& hash) {
  return std::format("{:016x}{:016x}", hash.high, hash.low);
}

// Whether there are parts among these pieces.
bool any_part(const auto& pieces, const auto& is_empty) {
  return !pieces.empty() && std::any_of(pieces.begin(), pieces.end() - 1, is_empty);
}

bool cover_all_tokens(const SnapshotView& snapshot) {
  std::int32_t covered = 0;
  for (const SnapshotView::Piece& piece : snapshot.pieces) {
    if (piece.begin != covered || piece.end <= piece.begin) return false;
    covered = piece.end;
  }
  return static_cast<std::size_t>(covered) == snapshot.tokens.size();
}

}  // namespace

bool StateHead::has_parts() const {
  return any_part(pieces, [](const StatePieceEntry& piece) { return piece.bytes == 0; });
}

std::string state_name(const StateOwner& owner, std::string_view identity, std::span<const Token> tokens) {
  RunningHash hash;
  hash.add(name_begin(owner, identity));
  hash.add(std::as_bytes(tokens));
  return name_of(hash.value());
}

StateOwner part_owner(const StateOwner& owner) {
  return {.tenant = owner.tenant, .session = owner.is_private ? owner.session : SessionId(), .is_private = owner.is_private};
}

std::vector<StatePart> parts_of(const StateOwner& owner, std::string_view identity, std::span<const Token> tokens,
                                std::span<const std::int32_t> ends) {
  std::vector<StatePart> parts;
  if (ends.size() < 2) return parts;
  RunningHash hash;
  hash.add(name_begin(part_owner(owner), identity));
  std::int32_t begin = 0;
  for (const std::int32_t end : ends.first(ends.size() - 1)) {
    hash.add(std::as_bytes(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))));
    parts.push_back({.begin = begin, .end = end, .name = std::format("{}-{}", name_of(hash.value()), begin)});
    begin = end;
  }
  return parts;
}

std::size_t state_head_bytes(const StateOwner& owner, const SnapshotView& snapshot) {
  return in_blocks(kFixedBytes + owner.tenant.value.size() + owner.session.value.size() + snapshot.identity.size() +
                   snapshot.tokens.size() * sizeof(Token) + snapshot.pieces.size() * kPieceEntryBytes + kStateChecksumBytes);
}

Bytes encode_state_head(const StateOwner& owner, const SnapshotView& snapshot, const Checksum& checksum) {
  UMA_CHECK(cover_all_tokens(snapshot));
  const std::string& tenant = owner.tenant.value;
  const std::string& session = owner.session.value;
  const std::size_t head_bytes = state_head_bytes(owner, snapshot);
  UMA_CHECK(head_bytes <= kStateHeadBytesMax);
  const auto as_u32 = [](std::size_t size) { return static_cast<std::uint32_t>(size); };
  Writer out(head_bytes);
  out.add(std::as_bytes(std::span(kStateMagic)));
  const bool has_parts = any_part(snapshot.pieces, [](const SnapshotView::Piece& piece) { return piece.bytes.empty(); });
  out.add_number(has_parts ? kPartsFileVersion : kStateFileVersion);
  out.add_number(as_u32(head_bytes));
  out.add_number(checksum.low);
  out.add_number(checksum.high);
  out.add_number(flags_of(owner));
  out.add_number(as_u32(tenant.size()));
  out.add_number(as_u32(session.size()));
  out.add_number(as_u32(snapshot.identity.size()));
  out.add_number(as_u32(snapshot.tokens.size()));
  out.add_number(as_u32(snapshot.pieces.size()));
  for (const std::string_view text : {std::string_view(tenant), std::string_view(session), snapshot.identity}) {
    out.add(std::as_bytes(std::span(text)));
  }
  out.add(std::as_bytes(snapshot.tokens));
  for (const SnapshotView::Piece& piece : snapshot.pieces) {
    out.add_number(piece.end);
    out.add_number(std::uint64_t{piece.bytes.size()});
  }
  out.bytes().resize(head_bytes - kStateChecksumBytes, std::byte{0});
  const Checksum hash = hash_of(out.bytes());
  out.add_number(hash.low);
  out.add_number(hash.high);
  return std::move(out.bytes());
}

Expected<std::size_t> state_head_bytes(std::span<const std::byte> prefix) {
  if (prefix.size() < kStatePrefixBytes) return damaged("truncated");
  HeadReader in(prefix);
  if (!std::ranges::equal(in.take(kStateMagic.size()), std::as_bytes(std::span(kStateMagic)))) {
    return fail(ErrorCode::runtime_decode, "not a state file");
  }
  const auto version = in.take_number<std::uint32_t>();
  if (version != kStateFileVersion && version != kPartsFileVersion) {
    return fail(ErrorCode::runtime_decode,
                std::format("its format is version {}, but this umad uses version {}", version, kPartsFileVersion));
  }
  const auto head_bytes = in.take_number<std::uint32_t>();
  if (head_bytes == 0 || head_bytes > kStateHeadBytesMax || head_bytes % kStateBlockBytes != 0) {
    return damaged("invalid length of the head");
  }
  return head_bytes;
}

bool is_older_state(std::span<const std::byte> prefix) {
  if (prefix.size() < kStatePrefixBytes) return false;
  HeadReader in(prefix);
  if (!std::ranges::equal(in.take(kStateMagic.size()), std::as_bytes(std::span(kStateMagic)))) return false;
  const auto version = in.take_number<std::uint32_t>();
  return version > 0 && version < kStateFileVersion;
}

Expected<StateHead> decode_state_head(std::span<const std::byte> bytes) {
  const auto head_bytes = state_head_bytes(bytes);
  if (!head_bytes) return std::unexpected(head_bytes.error());
  if (*head_bytes != bytes.size()) return damaged(std::format("the head has {} of {} bytes", bytes.size(), *head_bytes));

  HeadReader end(bytes.last(kStateChecksumBytes));
  const Checksum stored{.low = end.take_number<std::uint64_t>(), .high = end.take_number<std::uint64_t>()};
  if (stored != hash_of(bytes.first(bytes.size() - kStateChecksumBytes))) return damaged("the checksum of the head is wrong");

  HeadReader in(bytes.subspan(kStatePrefixBytes));
  StateHead head;
  head.checksum.low = in.take_number<std::uint64_t>();
  head.checksum.high = in.take_number<std::uint64_t>();
  const auto flags = in.take_number<std::uint32_t>();
  const auto tenant_bytes = in.take_number<std::uint32_t>();
  const auto session_bytes = in.take_number<std::uint32_t>();
  const auto identity_bytes = in.take_number<std::uint32_t>();
  const auto tokens_count = in.take_number<std::uint32_t>();
  const auto pieces_count = in.take_number<std::uint32_t>();
  // Sums of 32-bit numbers cannot overflow here, and the sum bounds every part.
  const std::uint64_t needed = std::uint64_t{kFixedBytes} + tenant_bytes + session_bytes + identity_bytes +
                               std::uint64_t{tokens_count} * sizeof(Token) + std::uint64_t{pieces_count} * kPieceEntryBytes +
                               kStateChecksumBytes;
  if (in_blocks(needed) != bytes.size()) return damaged("the lengths in the head are inconsistent");
  const auto padding = bytes.first(bytes.size() - kStateChecksumBytes).last(bytes.size() - needed);
  if (std::ranges::any_of(padding, [](std::byte byte) { return byte != std::byte{0}; })) return damaged("bytes after the head");
  if ((flags & ~(kPublic | kPrivate)) != 0) return damaged("unknown flags");

  head.owner.is_public = (flags & kPublic) != 0;
  head.owner.is_private = (flags & kPrivate) != 0;
  head.owner.tenant.value = in.take_text(tenant_bytes);
  head.owner.session.value = in.take_text(session_bytes);
  head.identity = in.take_text(identity_bytes);
  head.tokens.resize(tokens_count);
  std::ranges::copy(in.take(tokens_count * sizeof(Token)), std::as_writable_bytes(std::span(head.tokens)).begin());
  head.file_bytes = bytes.size();
  head.pieces.reserve(pieces_count);
  std::int32_t covered = 0;
  for (std::uint32_t i = 0; i < pieces_count; ++i) {
    const StatePieceEntry piece{.end = in.take_number<std::int32_t>(), .bytes = in.take_number<std::uint64_t>()};
    if (piece.end <= covered) return damaged("a piece is empty");
    if (piece.bytes > kFileBytesMax - head.file_bytes) return damaged("invalid length of a piece");
    covered = piece.end;
    head.file_bytes += in_blocks(piece.bytes);
    head.pieces.push_back(piece);
  }
  if (static_cast<std::size_t>(covered) != head.tokens.size()) return damaged("the pieces do not cover the tokens");
  HeadReader version(bytes.subspan(kStateMagic.size()));
  if (head.has_parts() != (version.take_number<std::uint32_t>() == kPartsFileVersion)) return damaged("unexpected parts");
  return head;
}

}  // namespace uma::kv
