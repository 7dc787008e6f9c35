#include "grammar/json_pattern.h"

#include <algorithm>
#include <charconv>
#include <format>
#include <utility>
#include <vector>

namespace uma::grammar {
namespace {

constexpr std::uint32_t kLastCodePoint = 0x10FFFF;
constexpr std::int64_t kRepetitionsMax = 4096;
constexpr int kGroupDepthMax = 16;

struct Range {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
};
using Set = std::vector<Range>;

Set complement(Set set) {
  std::ranges::sort(set, {}, &Range::low);
  Set rest;
  std::uint32_t next = 0;
  for (const Range& range : set) {
    if (range.low > next) rest.push_back({next, range.low - 1});
    next = std::max(next, range.high + 1);
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return rest;
}

bool contains(const Set& set, std::uint32_t code_point) {
  return std::ranges::any_of(set, [&](const Range& range) { return range.low <= code_point && code_point <= range.high; });
}

// The grammar of one character of the set in a JSON string.
std::string gbnf_of(const Set& set) {
  Set raw;  // Without the characters that JSON escapes.
  for (Range range : set) {
    range.low = std::max(range.low, 0x20u);
    for (const std::uint32_t escaped : {std::uint32_t{'"'}, std::uint32_t{'\\'}}) {
      if (range.low > escaped || range.high < escaped) continue;
      if (range.low < escaped) raw.push_back({range.low, escaped - 1});
      range.low = escaped + 1;
    }
    if (range.low <= range.high) raw.push_back(range);
  }
  std::string out = "([";
  for (const Range& range : raw) out += std::format("\\U{:08x}-\\U{:08x}", range.low, range.high);
  out += "]";
  if (contains(set, '"')) out += R"( | "\\\"")";
  if (contains(set, '\\')) out += R"( | "\\\\")";
  for (std::uint32_t control = 0; control < 0x20; ++control) {
    if (!contains(set, control)) continue;
    switch (control) {
      case '\n':
        out += R"( | "\\n")";
        break;
      case '\r':
        out += R"( | "\\r")";
        break;
      case '\t':
        out += R"( | "\\t")";
        break;
      default:
        out += std::format(R"( | "\\u{:04x}")", control);
    }
  }
  return out + ")";
}

// The grammar of one character of the set in a plain text. NUL is part of no text.
std::string plain_gbnf_of(const Set& set) {
  std::string out = "[";
  for (const Range& range : set) {
    if (range.high > 0) out += std::format("\\U{:08x}-\\U{:08x}", std::max(range.low, 1u), range.high);
  }
  return out + "]";
}

const Set kDigits = {{'0', '9'}};
const Set kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Set kSpace = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const Set kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

// A part of the pattern, with its possible numbers of characters.
struct Part {
  std::string gbnf;
  std::int64_t min = 0;
  std::optional<std::int64_t> max = 0;
};

std::int64_t bounded(std::int64_t count) {
  return std::min<std::int64_t>(count, 1'000'000'000);
}

class Compiler {
 public:
  // Without `any_character`: of plain texts, which the pattern matches whole.
  Compiler(std::string_view pattern, std::string_view any_character) : pattern_(pattern), any_character_(any_character) {}

  Expected<JsonPattern> compile() {
    Part whole = alternatives(0);
    if (!problem_ && at_ < pattern_.size()) refuse("\")\" has no \"(\"");
    if (problem_) return fail(ErrorCode::proto_field, *problem_);
    return JsonPattern{.gbnf = std::move(whole.gbnf), .characters_min = whole.min, .characters_max = whole.max};
  }

 private:
  void refuse(std::string_view what) {
    if (!problem_) problem_ = std::format("pattern: {}, at character {}", what, at_);
  }
  [[nodiscard]] char peek(std::size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  [[nodiscard]] bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  Part alternatives(int depth) {
    Part whole{.gbnf = "(", .min = kRepetitionsMax * kRepetitionsMax, .max = 0};
    if (depth > kGroupDepthMax) refuse("groups are nested too deep");
    for (bool is_first = true; !problem_; is_first = false) {
      const Part part = sequence(depth);
      if (!is_first) whole.gbnf += " | ";
      whole.gbnf += part.gbnf;
      whole.min = std::min(whole.min, part.min);
      whole.max = whole.max && part.max ? std::optional(std::max(*whole.max, *part.max)) : std::nullopt;
      if (!take("|")) break;
    }
    whole.gbnf += ")";
    return whole;
  }

  Part sequence(int depth) {
    const bool is_top = depth == 0;
    Part whole{.gbnf = "\"\"", .min = 0, .max = 0};
    const bool from_begin = is_top && take("^");
    if (is_top && !from_begin && !is_plain()) add(whole, {std::format("{}*", any_character_), 0, std::nullopt});
    bool to_end = false;
    while (!problem_ && at_ < pattern_.size() && peek() != '|' && peek() != ')') {
      if (is_top && peek() == '$' && (peek(1) == '|' || at_ + 1 == pattern_.size())) {
        ++at_;
        to_end = true;
        break;
      }
      add(whole, repeated(atom(depth)));
    }
    if (is_top && !to_end && !is_plain()) add(whole, {std::format("{}*", any_character_), 0, std::nullopt});
    return whole;
  }

  static void add(Part& whole, const Part& part) {
    whole.gbnf += " " + part.gbnf;
    whole.min = bounded(whole.min + part.min);
    whole.max = whole.max && part.max ? std::optional(bounded(*whole.max + *part.max)) : std::nullopt;
  }

  Part repeated(Part part) {
    if (problem_) return part;
    std::int64_t min = 1;
    std::optional<std::int64_t> max = 1;
    if (take("*")) {
      min = 0;
      max.reset();
    } else if (take("+")) {
      max.reset();
    } else if (take("?")) {
      min = 0;
    } else if (peek() == '{') {
      if (!read_counts(min, max)) return part;
    } else {
      return part;
    }
    (void)take("?");  // Lazy: matches the same texts.
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') refuse("nothing to repeat");
    part.gbnf = max ? std::format("({}){{{},{}}}", part.gbnf, min, *max) : std::format("({}){{{},}}", part.gbnf, min);
    part.max = max && part.max ? std::optional(bounded(*part.max * *max)) : std::nullopt;
    part.min = bounded(part.min * min);
    return part;
  }

  bool read_counts(std::int64_t& min, std::optional<std::int64_t>& max) {
    ++at_;
    min = read_count();
    max = min;
    if (take(",")) {
      max.reset();
      if (peek() != '}') max = read_count();
    }
    if (!take("}")) refuse("a repetition is not closed");
    if (max && *max < min) refuse("the minimum of a repetition is larger than its maximum");
    return !problem_;
  }

  std::int64_t read_count() {
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(pattern_.data() + at_, pattern_.data() + pattern_.size(), count);
    if (error != std::errc() || count < 0 || count > kRepetitionsMax) {
      refuse(std::format("the count of a repetition must be 0 to {}", kRepetitionsMax));
      return 0;
    }
    at_ = static_cast<std::size_t>(end - pattern_.data());
    return count;
  }

  Part atom(int depth) {
    switch (peek()) {
      case '(':
        ++at_;
        if (take("?:") || peek() != '?') {
          Part group = alternatives(depth + 1);
          if (!take(")")) refuse("\")\" is missing");
          return group;
        }
        if (peek(1) == '<' && peek(2) != '=' && peek(2) != '!') {  // A named group.
          at_ = std::min(pattern_.find('>', at_), pattern_.size() - 1) + 1;
          Part group = alternatives(depth + 1);
          if (!take(")")) refuse("\")\" is missing");
          return group;
        }
        refuse("look-arounds are not supported");
        return {};
      case '[':
        return one_of(read_class());
      case '.':
        ++at_;
        return one_of(complement(kLineEnds));
      case '^':
      case '$':
        refuse("^ and $ are supported at the ends only");
        return {};
      case '*':
      case '+':
      case '?':
        refuse("nothing to repeat");
        return {};
      default:
        return one_of(character(false));
    }
  }

  [[nodiscard]] bool is_plain() const { return any_character_.empty(); }
  [[nodiscard]] Part one_of(const Set& set) const { return {is_plain() ? plain_gbnf_of(set) : gbnf_of(set), 1, 1}; }

  Set read_class() {
    ++at_;
    const bool is_negated = take("^");
    Set set;
    while (!problem_) {
      if (at_ >= pattern_.size()) {
        refuse("\"]\" is missing");
        break;
      }
      if (take("]")) break;
      Set first = character(true);
      if (peek() == '-' && peek(1) != ']' && peek(1) != '\0') {
        ++at_;
        const Set last = character(true);
        const bool are_single =
            first.size() == 1 && last.size() == 1 && first[0].low == first[0].high && last[0].low == last[0].high;
        if (!are_single || first[0].low > last[0].low) {
          refuse("invalid range");
          break;
        }
        first[0].high = last[0].high;
      }
      set.insert(set.end(), first.begin(), first.end());
    }
    return is_negated ? complement(std::move(set)) : complement(complement(std::move(set)));  // Sorted and disjoint.
  }

  // Reads a character, or an escape for one or several characters.
  Set character(bool in_class) {
    if (!take("\\")) {
      const std::uint32_t code_point = read_code_point();
      return {{code_point, code_point}};
    }
    const char c = peek();
    ++at_;
    const auto one = [](std::uint32_t code_point) { return Set{{code_point, code_point}}; };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kSpace);
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(read_hex(2));
      case 'u':
        return one(read_hex(4));
      case 'b':
        if (in_class) return one('\b');
        break;
      default:
        if (std::string_view("^$\\.*+?()[]{}|/-\"'#%&,:;<=>@_`~! ").contains(c)) return one(static_cast<unsigned char>(c));
    }
    --at_;
    refuse(at_ + 1 > pattern_.size() ? "an escape is not complete" : std::format("\\{} is not supported", c));
    return {};
  }

  std::uint32_t read_hex(std::size_t digits) {
    const std::string_view text = pattern_.substr(std::min(at_, pattern_.size()), digits);
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() != digits || error != std::errc() || end != text.data() + digits || (value >= 0xD800 && value <= 0xDFFF)) {
      refuse(std::format("an escape needs {} hexadecimal digits of a valid character", digits));
      return 0;
    }
    at_ += digits;
    return value;
  }

  // Requires: valid UTF-8.
  std::uint32_t read_code_point() {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(peek(i))); };
    const std::uint32_t first = byte(0);
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    std::uint32_t value = length == 1 ? first : first & (0xFFu >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) value = value << 6 | (byte(i) & 0x3F);
    at_ += length;
    return value;
  }

  const std::string_view pattern_;
  const std::string_view any_character_;
  std::size_t at_ = 0;
  std::optional<std::string> problem_;
};

}  // namespace

Expected<JsonPattern> compile_pattern(std::string_view pattern, std::string_view any_character) {
  return Compiler(pattern, any_character).compile();
}

Expected<std::string> pattern_gbnf(std::string_view pattern) {
  const auto compiled = Compiler(pattern, "").compile();
  if (!compiled) return std::unexpected(compiled.error());
  return "root ::= " + compiled->gbnf;
}

std::string gbnf_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += std::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace uma::grammar
