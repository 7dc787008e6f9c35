// Property: any KV in a session file is refused with a message, or it is the state that the file declares: it has this identity
// and these tokens, has several pieces only if the context supports them, is written again with the same bytes, and an
// independent parser of the library's format finds every key and value finite.
// The input has two bytes with the length of the head without padding (12 bits) and four flags, then the head, then the
// payload, one piece after another without padding. Magic, version, lengths, padding and checksums are corrected; a flag keeps
// the checksum of the payload unchanged.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_reader.h"
#include "base/check.h"
#include "kv/disk/portable_state.h"
#include "kv/disk/state_file.h"
#include "llm/file/state_values.h"

namespace {

using namespace uma;

constexpr std::uint64_t kFileBytesMax = 1 << 18;
constexpr std::size_t kChecksumAt = kv::kStatePrefixBytes;  // Position of the payload's checksum in a head.

// --- the independent parser

float as_float(std::uint16_t half) {
  const int exponent = half >> 10 & 0x1f;
  const auto fraction = static_cast<float>(half & 0x3ff);
  if (exponent == 0x1f) return fraction == 0 ? HUGE_VALF : NAN;
  const float size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -size : size;
}

template <class Number>
Number number_at(std::span<const std::byte> bytes, std::size_t at) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

// ggml's quantized types: blocks of 32 numbers with a scale and maybe a least number, both f16, and 4, 5 or 8 bits for each
// number.
struct Block {
  std::size_t bytes;
  bool has_least;
};
const std::map<std::int32_t, Block> kBlocks = {
    {2, {18, false}}, {3, {20, true}}, {6, {22, false}}, {7, {24, true}}, {8, {34, false}},
};

bool are_numbers_finite(std::span<const std::byte> bytes, std::int32_t type) {
  for (std::size_t at = 0; at < bytes.size();) {
    float number = 0;
    if (type == 0) {
      number = number_at<float>(bytes, at);
      at += 4;
    } else if (type == 1) {
      number = as_float(number_at<std::uint16_t>(bytes, at));
      at += 2;
    } else if (type == 30) {
      const std::uint32_t bits = std::uint32_t{number_at<std::uint16_t>(bytes, at)} << 16;
      std::memcpy(&number, &bits, sizeof number);
      at += 2;
    } else if (const auto block = kBlocks.find(type); block != kBlocks.end()) {
      number = as_float(number_at<std::uint16_t>(bytes, at));
      if (block->second.has_least && !std::isfinite(as_float(number_at<std::uint16_t>(bytes, at + 2)))) return false;
      at += block->second.bytes;
    } else {
      return false;
    }
    if (!std::isfinite(number)) return false;
  }
  return true;
}

// Requires: check_state_values() accepted the state.
bool is_state_finite(std::span<const std::byte> state) {
  ByteReader in(state);
  (void)in.take(8);
  for (auto streams = in.take_number<std::uint32_t>(); streams > 0; --streams) {
    const auto cells = in.take_number<std::uint32_t>();
    if (cells == 0) continue;
    (void)in.take(std::uint64_t{12} * cells);
    const bool is_transposed = in.take_number<std::uint32_t>() != 0;
    const auto layers = in.take_number<std::uint32_t>();
    (void)in.take(8);
    for (std::uint32_t tensor = 0; tensor < 2 * layers; ++tensor) {
      const auto type = in.take_number<std::int32_t>();
      std::uint64_t cell_bytes = 0;
      if (is_transposed && tensor >= layers) {
        cell_bytes = in.take_number<std::uint32_t>();
        cell_bytes *= in.take_number<std::uint32_t>();
      } else {
        cell_bytes = in.take_number<std::uint64_t>();
      }
      if (!are_numbers_finite(in.take(cell_bytes * cells), type)) return false;
    }
  }
  return !in.is_short() && in.is_at_end();
}

void check_values(std::span<const std::byte> state) {
  (void)llm::check_state_values(state, true);  // With a table of images behind it.
  const auto checked = llm::check_state_values(state);
  if (checked) {
    UMA_CHECK(is_state_finite(state));
  } else {
    UMA_CHECK(checked.error().code == ErrorCode::runtime_decode && !checked.error().message.empty());
  }
}

// --- the file

Bytes whole_head(std::span<const std::byte> input) {
  Bytes head(input.begin(), input.end());
  head.resize(std::max(kv::in_blocks(input.size() + sizeof(kv::Checksum)), std::uint64_t{kv::kStateBlockBytes}), std::byte{0});
  std::memcpy(head.data(), "umastate", 8);
  std::memcpy(head.data() + 8, &kv::kStateFileVersion, 4);
  const auto head_bytes = static_cast<std::uint32_t>(head.size());
  std::memcpy(head.data() + 12, &head_bytes, 4);
  return head;
}

void put_checksum(Bytes& head) {
  const kv::Checksum hash = kv::hash_of(std::span(head).first(head.size() - sizeof(kv::Checksum)));
  std::memcpy(head.data() + head.size() - sizeof hash, &hash, sizeof hash);
}

void check_file(const Bytes& file, const std::string& identity, bool knows_pieces, std::span<const Token> chain) {
  const PortableFile portable{.parts = {file}, .owner = nullptr};
  PortableReader in(portable);
  kv::BytePool pool(0);
  pool.limit(2 * kFileBytesMax);
  const auto snapshot =
      kv::read_state(in, identity, knows_pieces, chain, pool, [&pool](std::uint64_t bytes) { return pool.reserve(bytes); });
  if (!snapshot) {
    UMA_CHECK(!snapshot.error().message.empty());
    return;
  }
  UMA_CHECK(snapshot->identity == identity && !snapshot->tokens.empty() && snapshot->tokens.size() <= chain.size());
  UMA_CHECK(std::ranges::equal(snapshot->tokens, chain.first(snapshot->tokens.size())));
  UMA_CHECK(knows_pieces || snapshot->pieces.size() == 1);
  UMA_CHECK(kv::check_fits(*snapshot, identity).has_value());
  Bytes again;
  for (const auto part : kv::state_parts(kv::portable_head(*snapshot), *snapshot))
    again.insert(again.end(), part.begin(), part.end());
  UMA_CHECK(std::ranges::equal(again, file));
  for (const kv::SnapshotPiece& piece : snapshot->pieces) check_values(piece.bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t word = data[0] | std::size_t{data[1]} << 8;
  const auto input = std::as_bytes(std::span(data, size).subspan(2));
  const auto head_input = input.first(std::min<std::size_t>(word & 0xfff, input.size()));
  auto payload = input.subspan(head_input.size());
  const bool keeps_checksum = (word & 0x1000) != 0;
  const bool knows_pieces = (word & 0x2000) == 0;
  const bool has_more_tokens = (word & 0x4000) != 0;
  const bool is_of_other = (word & 0x8000) != 0;
  check_values(payload);

  Bytes head = whole_head(head_input);
  put_checksum(head);
  const auto decoded = kv::decode_state_head(head);
  if (!decoded || decoded->file_bytes > kFileBytesMax) {
    if (!decoded) UMA_CHECK(!decoded.error().message.empty());
    check_file(head, "", knows_pieces, {});
    return 0;
  }
  kv::Snapshot snapshot{.identity = decoded->identity, .tokens = decoded->tokens, .pieces = {}};
  std::int32_t begin = 0;
  Bytes pieces;
  for (const kv::StatePieceEntry& entry : decoded->pieces) {
    kv::SnapshotPiece& piece = snapshot.pieces.emplace_back(begin, entry.end, Bytes());
    const auto given = payload.first(std::min<std::size_t>(entry.bytes, payload.size()));
    payload = payload.subspan(given.size());
    piece.bytes.assign(given.begin(), given.end());
    piece.bytes.resize(entry.bytes, std::byte{0});
    pieces.insert(pieces.end(), piece.bytes.begin(), piece.bytes.end());
    pieces.resize(kv::in_blocks(pieces.size()), std::byte{0});
    begin = entry.end;
  }
  if (!keeps_checksum) {
    const kv::Checksum checksum = kv::checksum_of(snapshot);
    std::memcpy(head.data() + kChecksumAt, &checksum, sizeof checksum);
    put_checksum(head);
  }
  Bytes file = std::move(head);
  file.insert(file.end(), pieces.begin(), pieces.end());
  std::vector<Token> chain = decoded->tokens;
  if (has_more_tokens) chain.push_back(1);
  check_file(file, is_of_other ? decoded->identity + "x" : decoded->identity, knows_pieces, chain);
  // Truncated, or with additional bytes.
  file.pop_back();
  check_file(file, decoded->identity, knows_pieces, chain);
  return 0;
}
