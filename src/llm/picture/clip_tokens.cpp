#include "llm/picture/clip_tokens.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utf8proc.h>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "llm/picture/clip_merges.h"

namespace uma::llm {
namespace {

constexpr std::int32_t kBytes = 256;  // Tokens of single bytes; as many follow for bytes that end a word.
constexpr std::string_view kWordEnd = "</w>";

// The first tokens are the bytes in this order: printable characters of Latin-1, then all others.
bool is_printable(std::int32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}
std::array<std::int32_t, kBytes> tokens_of_bytes() {
  std::array<std::int32_t, kBytes> tokens{};
  std::int32_t next = 0;
  for (const bool wants_printable : {true, false}) {
    for (std::int32_t byte = 0; byte < kBytes; ++byte) {
      if (is_printable(byte) == wants_printable) tokens[static_cast<std::size_t>(byte)] = next++;
    }
  }
  return tokens;
}

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

enum class Kind : std::uint8_t { blank, letter, number, other };

Kind kind_of(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return Kind::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return Kind::number;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return Kind::blank;
    default:
      return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F) || c == 0x85 ? Kind::blank : Kind::other;
  }
}

std::u32string lower(std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  std::u32string out;
  const auto* next = reinterpret_cast<const utf8proc_uint8_t*>(valid.data());
  for (auto left = static_cast<utf8proc_ssize_t>(valid.size()); left > 0;) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t bytes = utf8proc_iterate(next, left, &c);
    UMA_CHECK(bytes > 0);
    constexpr utf8proc_int32_t kDottedCapital = 0x130;  // The only letter that becomes two.
    if (c == kDottedCapital) {
      out += U"i\u0307";
    } else {
      out += static_cast<char32_t>(utf8proc_tolower(c));
    }
    next += bytes;
    left -= bytes;
  }
  return out;
}

// The length of the word that the text begins with: an English ending such as 's, letters, one digit, or other characters.
std::size_t word_length(std::u32string_view text) {
  for (const std::u32string_view ending : {U"'s", U"'t", U"'re", U"'ve", U"'m", U"'ll", U"'d"}) {
    if (text.starts_with(ending)) return ending.size();
  }
  const Kind kind = kind_of(text.front());
  if (kind == Kind::number) return 1;
  std::size_t length = 1;
  while (length < text.size() && kind_of(text[length]) == kind) ++length;
  return length;
}

}  // namespace

const ClipTokens& ClipTokens::shared() {
  static const ClipTokens tokens;
  return tokens;
}

ClipTokens::ClipTokens() {
  // The texts of the merges write each byte as a character: a printable one as itself, the others from U+0100 on.
  std::unordered_map<std::string, std::int32_t> by_text;
  const auto of_bytes = tokens_of_bytes();
  char32_t unprintable = kBytes;
  for (std::int32_t byte = 0; byte < kBytes; ++byte) {
    std::string text;
    append_utf8(text, is_printable(byte) ? static_cast<char32_t>(byte) : unprintable++);
    by_text[text] = of_bytes[static_cast<std::size_t>(byte)];
    by_text[text.append(kWordEnd)] = kBytes + of_bytes[static_cast<std::size_t>(byte)];
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::string_view left = clip_merges(); !left.empty();) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    const std::size_t blank = line.find(' ');
    pairs.emplace_back(line.substr(0, blank), line.substr(blank + 1));
    by_text[pairs.back().first + pairs.back().second] = 2 * kBytes + static_cast<std::int32_t>(pairs.size()) - 1;
  }
  UMA_CHECK(2 * kBytes + static_cast<std::int32_t>(pairs.size()) == kClipStart);
  merges_.reserve(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [first, second] = pairs[i];
    merges_.try_emplace(pair_of(by_text.at(first), by_text.at(second)),
                        Merge{.rank = static_cast<std::int32_t>(i), .token = by_text.at(first + second)});
  }
}

std::vector<std::int32_t> ClipTokens::encode(std::string_view text) const {
  const std::u32string all = lower(text);
  std::vector<std::int32_t> tokens;
  for (std::u32string_view left = all; !left.empty();) {
    if (kind_of(left.front()) == Kind::blank) {
      left.remove_prefix(1);
      continue;
    }
    const std::size_t length = word_length(left);
    std::string word;
    for (const char32_t c : left.substr(0, length)) append_utf8(word, c);
    add_word(word, tokens);
    left.remove_prefix(length);
  }
  return tokens;
}

void ClipTokens::add_word(std::string_view word, std::vector<std::int32_t>& tokens) const {
  static const auto of_bytes = tokens_of_bytes();
  std::vector<std::int32_t> parts;
  for (const char byte : word) parts.push_back(of_bytes[static_cast<std::uint8_t>(byte)]);
  parts.back() += kBytes;
  while (parts.size() > 1) {
    const Merge* best = nullptr;
    std::uint64_t best_pair = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::uint64_t pair = pair_of(parts[i], parts[i + 1]);
      const auto found = merges_.find(pair);
      if (found == merges_.end() || (best != nullptr && found->second.rank >= best->rank)) continue;
      best = &found->second;
      best_pair = pair;
    }
    if (best == nullptr) break;
    std::vector<std::int32_t> merged;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool is_pair = i + 1 < parts.size() && pair_of(parts[i], parts[i + 1]) == best_pair;
      merged.push_back(is_pair ? best->token : parts[i]);
      i += is_pair ? 1 : 0;
    }
    parts = std::move(merged);
  }
  tokens.insert(tokens.end(), parts.begin(), parts.end());
}

}  // namespace uma::llm
