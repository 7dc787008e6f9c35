// The types of numbers in which a context keeps keys and values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace uma::llm {

enum class KvType : std::uint8_t { f16, q8_0, q5_1, q5_0, q4_1, q4_0 };

// The facts about a type. Its numbers are stored in blocks of kKvBlock.
inline constexpr std::int64_t kKvBlock = 32;
struct KvTypeFacts {
  KvType type = KvType::f16;
  std::string_view name{};
  std::int64_t block_bytes = 0;
};
inline constexpr std::array<KvTypeFacts, 6> kKvTypes{{
    {KvType::f16, "f16", 64},
    {KvType::q8_0, "q8_0", 34},
    {KvType::q5_1, "q5_1", 24},
    {KvType::q5_0, "q5_0", 22},
    {KvType::q4_1, "q4_1", 20},
    {KvType::q4_0, "q4_0", 18},
}};
[[nodiscard]] constexpr const KvTypeFacts& facts_of(KvType type) {
  return kKvTypes[static_cast<std::size_t>(type)];
}

// Quantized types need flash attention and a head size that is a multiple of kKvBlock.
struct KvTypes {
  KvType keys = KvType::f16;
  KvType values = KvType::f16;

  static constexpr KvTypes both(KvType type) { return {type, type}; }
  [[nodiscard]] constexpr bool is_quantized() const { return keys != KvType::f16 || values != KvType::f16; }
  bool operator==(const KvTypes&) const = default;
};

// "q8_0", or "q8_0/q4_0" if the values have another type.
[[nodiscard]] std::string kv_types_text(KvTypes types);
// The inverse; nullopt: the text is something else.
[[nodiscard]] std::optional<KvTypes> kv_types_of(std::string_view text);
// For messages about such a text: "f16, q8_0, …, or two of them as KEYS/VALUES".
[[nodiscard]] std::string kv_types_expected();

}  // namespace uma::llm
