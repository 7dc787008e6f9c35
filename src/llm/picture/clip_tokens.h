// The tokens of CLIP's text encoders: byte pairs that were merged in a fixed order, which ends a word with a token of its own
// kind (Radford et al., "Learning transferable visual models from natural language supervision", 2021). Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace uma::llm {

inline constexpr std::int32_t kClipTokens = 49'408;
inline constexpr std::int32_t kClipStart = 49'406;
inline constexpr std::int32_t kClipEnd = 49'407;

class ClipTokens {
 public:
  // Made at the first use, in tens of milliseconds. Any thread.
  [[nodiscard]] static const ClipTokens& shared();

  // The tokens of a text, without a start and an end. Letters are lower-cased; bytes that are no UTF-8 are read as U+FFFD.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;

 private:
  ClipTokens();
  void add_word(std::string_view word, std::vector<std::int32_t>& tokens) const;

  struct Merge {
    std::int32_t rank;  // Priority: of two possible merges, the one with the smaller rank is done.
    std::int32_t token;
  };
  std::unordered_map<std::uint64_t, Merge> merges_;  // By two tokens: the first one in the upper half.
};

}  // namespace uma::llm
