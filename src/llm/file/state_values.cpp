#include "llm/file/state_values.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "base/byte_reader.h"
#include "llm/kv_types.h"
#include "llm/media/position_map.h"

namespace uma::llm {
namespace {

// Numbers of ggml's types (ggml.h), which are equal in every version.
enum class GgmlType : std::int32_t { f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, bf16 = 30 };

// Whether no number has the exponent of infinity and NaN. `stride` is the distance of two numbers in bytes.
template <class Bits>
bool are_finite(std::span<const std::byte> bytes, std::size_t stride, Bits exponent) {
  Bits found = 0;
  for (std::size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += stride) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + at, sizeof bits);
    found |= static_cast<Bits>((bits & exponent) == exponent);
  }
  return found == 0;
}

// The blocks of a quantized type, which begin with a scale, and maybe the least number, as f16.
struct Blocks {
  std::size_t bytes = 0;
  bool has_least = false;
};

std::optional<Blocks> blocks_of(std::int32_t type) {
  const auto bytes = [](KvType of) { return static_cast<std::size_t>(facts_of(of).block_bytes); };
  switch (static_cast<GgmlType>(type)) {
    case GgmlType::q8_0:
      return Blocks{bytes(KvType::q8_0)};
    case GgmlType::q5_1:
      return Blocks{bytes(KvType::q5_1), true};
    case GgmlType::q5_0:
      return Blocks{bytes(KvType::q5_0)};
    case GgmlType::q4_1:
      return Blocks{bytes(KvType::q4_1), true};
    case GgmlType::q4_0:
      return Blocks{bytes(KvType::q4_0)};
    default:
      return std::nullopt;
  }
}

std::unexpected<Error> cannot_be_checked() {
  return fail(ErrorCode::runtime_decode, "the keys and values of the state cannot be checked");
}

std::unexpected<Error> not_finite() {
  return fail(ErrorCode::runtime_decode, "a key or value of the state is not finite");
}

// Checks the rows of a tensor: all `bytes` must belong to finite numbers.
Expected<Unit> check_rows(std::span<const std::byte> bytes, std::int32_t type) {
  constexpr std::uint16_t kHalfExponent = 0x7c00;
  bool is_finite = false;
  if (const auto blocks = blocks_of(type)) {
    if (bytes.size() % blocks->bytes != 0) return cannot_be_checked();
    is_finite = are_finite<std::uint16_t>(bytes, blocks->bytes, kHalfExponent);
    if (blocks->has_least && !bytes.empty())
      is_finite = is_finite && are_finite<std::uint16_t>(bytes.subspan(sizeof(std::uint16_t)), blocks->bytes, kHalfExponent);
    if (!is_finite) return not_finite();
    return Unit{};
  }
  switch (static_cast<GgmlType>(type)) {
    case GgmlType::f32:
      if (bytes.size() % sizeof(float) != 0) return cannot_be_checked();
      is_finite = are_finite<std::uint32_t>(bytes, sizeof(float), 0x7f800000);
      break;
    case GgmlType::f16:
      if (bytes.size() % sizeof(std::uint16_t) != 0) return cannot_be_checked();
      is_finite = are_finite<std::uint16_t>(bytes, sizeof(std::uint16_t), kHalfExponent);
      break;
    case GgmlType::bf16:
      if (bytes.size() % sizeof(std::uint16_t) != 0) return cannot_be_checked();
      is_finite = are_finite<std::uint16_t>(bytes, sizeof(std::uint16_t), 0x7f80);
      break;
    default:
      return cannot_be_checked();
  }
  if (!is_finite) return not_finite();
  return Unit{};
}

}  // namespace

Expected<Unit> check_state_values(std::span<const std::byte> state, bool has_grids) {
  constexpr std::uint32_t kStreamsMax = 1024;
  constexpr std::uint32_t kStateLayersMax = 4096;
  constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 32;  // Limit of a row, so that products stay within 64 bits.
  if (has_grids) {
    const auto parts = split_images(state, 0, std::numeric_limits<std::int32_t>::max());
    if (!parts) return cannot_be_checked();
    state = parts->library;
  }
  const std::uint64_t cell_words = has_grids ? 6 : 3;  // Position, one sequence; column, line and token with grids; its number.
  ByteReader in(state);
  (void)in.take(2 * sizeof(std::uint32_t));  // A magic number and the sequence.
  const auto streams = in.take_number<std::uint32_t>();
  if (streams > kStreamsMax) return cannot_be_checked();
  for (std::uint32_t stream = 0; stream < streams && !in.is_short(); ++stream) {
    const auto cells = in.take_number<std::uint32_t>();
    if (cells == 0) continue;
    (void)in.take(cells * cell_words * sizeof(std::uint32_t));
    const bool is_transposed = in.take_number<std::uint32_t>() != 0;
    const auto layers = in.take_number<std::uint32_t>();
    (void)in.take(2 * sizeof(std::uint32_t));  // The rotation of keys and values, if they are quantized.
    if (in.is_short() || layers > kStateLayersMax) return cannot_be_checked();
    const auto check_tensor = [&]() -> Expected<Unit> {
      const auto type = in.take_number<std::int32_t>();
      const auto row_bytes = in.take_number<std::uint64_t>();
      if (in.is_short() || row_bytes > kBytesMax) return cannot_be_checked();
      return check_rows(in.take(row_bytes * cells), type);
    };
    // Without flash attention the values are transposed: each of the `width` numbers has the values of all cells.
    const auto check_transposed = [&]() -> Expected<Unit> {
      const auto type = in.take_number<std::int32_t>();
      const auto number_bytes = in.take_number<std::uint32_t>();
      const auto width = in.take_number<std::uint32_t>();
      if (in.is_short() || number_bytes > sizeof(float)) return cannot_be_checked();
      return check_rows(in.take(std::uint64_t{number_bytes} * width * cells), type);
    };
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      if (auto checked = check_tensor(); !checked) return checked;
    }
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      if (auto checked = is_transposed ? check_transposed() : check_tensor(); !checked) return checked;
    }
  }
  if (in.is_short() || !in.is_at_end()) return cannot_be_checked();
  return Unit{};
}

}  // namespace uma::llm
