#include "grammar/pattern_syntax.h"

#include <algorithm>
#include <charconv>
#include <format>
#include <string>
#include <utility>

namespace uma::grammar {
namespace {

constexpr int kGroupDepthMax = 16;
constexpr std::size_t kBytesMax = 16'384;
constexpr std::size_t kRangesMax = 50'000;  // Ranges of all classes.
constexpr std::size_t kOnlyTextMax = 64;    // Characters.

const CharacterSet kDigitSet = {{'0', '9'}};
const CharacterSet kWordSet = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharacterSet kSpaceSet = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharacterSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Appends the only text that the part matches. False: there are others, or the text is long.
bool append_only_text(const Pattern& part, std::u32string& text) {
  if (text.size() > kOnlyTextMax) return false;
  switch (part.kind) {
    case Pattern::Kind::characters:
      if (part.characters.size() != 1 || part.characters.front().low != part.characters.front().high) return false;
      text += static_cast<char32_t>(part.characters.front().low);
      return true;
    case Pattern::Kind::sequence:
      return std::ranges::all_of(part.children, [&](const Pattern& child) { return append_only_text(child, text); });
    case Pattern::Kind::alternatives:
      return part.children.size() == 1 && append_only_text(part.children.front(), text);
    default:
      return false;
  }
}

Pattern of_text(const std::u32string& text) {
  Pattern whole{.kind = Pattern::Kind::sequence};
  for (const char32_t c : text)
    whole.children.push_back({.kind = Pattern::Kind::characters, .characters = {{std::uint32_t{c}, std::uint32_t{c}}}});
  return whole;
}

class Reader {
 public:
  explicit Reader(std::string_view pattern) : pattern_(pattern) {}

  Expected<Pattern> read() {
    if (pattern_.size() > kBytesMax) refuse(std::format("it has more than {} bytes", kBytesMax));
    Pattern whole = alternatives(0);
    if (!problem_ && at_ < pattern_.size()) refuse("\")\" has no \"(\"");
    if (problem_) return fail(ErrorCode::proto_field, *problem_);
    return whole;
  }

 private:
  // A group that has taken part and can have only one text.
  struct OnlyText {
    int number = 0;
    std::string name;
    std::u32string text;
  };

  void refuse(std::string_view what) {
    if (!problem_) problem_ = std::format("{}, at character {}", what, at_);
  }
  [[nodiscard]] char peek(std::size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  [[nodiscard]] bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  Pattern alternatives(int depth) {
    Pattern whole{.kind = Pattern::Kind::alternatives};
    if (depth > kGroupDepthMax) refuse("groups are nested too deep");
    const std::size_t known = known_.size();
    while (!problem_) {
      whole.children.push_back(sequence(depth));
      if (peek() != '|' && whole.children.size() == 1) break;  // The groups of the only alternative take part.
      known_.resize(known);
      if (!take("|")) break;
    }
    return whole;
  }

  Pattern sequence(int depth) {
    Pattern whole{.kind = Pattern::Kind::sequence};
    while (!problem_ && at_ < pattern_.size() && peek() != '|' && peek() != ')') {
      const std::size_t known = known_.size();
      Pattern part = atom(depth);
      if (problem_) break;
      if (is_repeated()) {
        known_.resize(known);  // The group may not take part.
        part = repeated(std::move(part));
      }
      whole.children.push_back(std::move(part));
    }
    return whole;
  }

  // Whether a number of repetitions follows: "{" without counts is a character.
  [[nodiscard]] bool is_repeated() const {
    if (peek() != '{') return peek() == '*' || peek() == '+' || peek() == '?';
    return is_digit(peek(1));
  }

  Pattern repeated(Pattern part) {
    Pattern whole{.kind = Pattern::Kind::repetition};
    if (take("*")) {
      whole.min = 0;
      whole.max.reset();
    } else if (take("+")) {
      whole.max.reset();
    } else if (take("?")) {
      whole.min = 0;
    } else {
      read_counts(whole);
    }
    (void)take("?");  // Lazy: matches the same texts.
    if (is_repeated()) refuse("nothing to repeat");
    whole.children.push_back(std::move(part));
    return whole;
  }

  void read_counts(Pattern& repetition) {
    ++at_;
    repetition.min = read_count();
    repetition.max = repetition.min;
    if (take(",")) {
      repetition.max.reset();
      if (peek() != '}') repetition.max = read_count();
    }
    if (!take("}")) refuse("a repetition is not closed");
    if (repetition.max && *repetition.max < repetition.min) refuse("the minimum of a repetition is larger than its maximum");
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

  Pattern atom(int depth) {
    switch (peek()) {
      case '(':
        return group(depth);
      case '[':
        return one_of(read_class());
      case '.':
        ++at_;
        return one_of(complement(kLineEnds));
      case '^':
        ++at_;
        return {.kind = Pattern::Kind::begin};
      case '$':
        ++at_;
        return {.kind = Pattern::Kind::end};
      case '*':
      case '+':
      case '?':
        refuse("nothing to repeat");
        return {};
      default:
        break;
    }
    if (take("\\b")) return {.kind = Pattern::Kind::edge};
    if (take("\\B")) return {.kind = Pattern::Kind::no_edge};
    if (peek() == '\\' && ((peek(1) >= '1' && peek(1) <= '9') || peek(1) == 'k')) return back_reference();
    return one_of(character(false));
  }

  Pattern group(int depth) {
    ++at_;
    using Assertion = std::pair<std::string_view, Pattern::Kind>;
    for (const auto& [mark, kind] : {Assertion{"?=", Pattern::Kind::ahead}, Assertion{"?!", Pattern::Kind::not_ahead},
                                     Assertion{"?<=", Pattern::Kind::behind}, Assertion{"?<!", Pattern::Kind::not_behind}}) {
      if (!take(mark)) continue;
      const std::size_t known = known_.size();
      Pattern assertion{.kind = kind};
      assertion.children.push_back(closed_group(depth));
      known_.resize(known);
      return assertion;
    }
    if (take("?:")) return closed_group(depth);
    std::string name;
    if (take("?<") || take("?P<")) {
      const std::size_t end = std::min(pattern_.find('>', at_), pattern_.size());
      name = pattern_.substr(at_, end - at_);
      at_ = std::min(end + 1, pattern_.size());
    } else if (peek() == '?') {
      refuse("a group of another dialect");
      return {};
    }
    const int number = ++groups_;
    Pattern whole = closed_group(depth);
    if (std::u32string text; append_only_text(whole, text)) {
      known_.push_back({.number = number, .name = std::move(name), .text = std::move(text)});
    }
    return whole;
  }

  Pattern closed_group(int depth) {
    Pattern inner = alternatives(depth + 1);
    if (!take(")")) refuse("\")\" is missing");
    return inner;
  }

  Pattern back_reference() {
    ++at_;
    auto group = known_.end();
    if (take("k<")) {
      const std::size_t end = std::min(pattern_.find('>', at_), pattern_.size());
      group = std::ranges::find(known_, pattern_.substr(at_, end - at_), &OnlyText::name);
      at_ = std::min(end + 1, pattern_.size());
    } else {
      int number = 0;
      const auto [end, error] = std::from_chars(pattern_.data() + at_, pattern_.data() + pattern_.size(), number);
      at_ = static_cast<std::size_t>(end - pattern_.data());
      if (error == std::errc()) group = std::ranges::find(known_, number, &OnlyText::number);
    }
    if (group == known_.end()) {
      refuse("a back reference to a group that may have several texts");
      return {};
    }
    return of_text(group->text);
  }

  Pattern one_of(CharacterSet set) {
    ranges_ += set.size();
    if (ranges_ > kRangesMax) refuse("the classes have too many characters");
    return {.kind = Pattern::Kind::characters, .characters = std::move(set)};
  }

  CharacterSet read_class() {
    ++at_;
    const bool is_negated = take("^");
    CharacterSet set;
    while (!problem_) {
      if (at_ >= pattern_.size()) {
        refuse("\"]\" is missing");
        break;
      }
      if (take("]")) break;
      CharacterSet first = character(true);
      if (peek() == '-' && peek(1) != ']' && peek(1) != '\0') {
        ++at_;
        const CharacterSet last = character(true);
        const bool are_single =
            first.size() == 1 && last.size() == 1 && first[0].low == first[0].high && last[0].low == last[0].high;
        if (!are_single || first[0].low > last[0].low) {
          refuse("invalid range");
          break;
        }
        first[0].high = last[0].high;
      }
      set.insert(set.end(), first.begin(), first.end());
      if (set.size() > kRangesMax) refuse("the classes have too many characters");
    }
    set = sorted_and_joined(std::move(set));
    return is_negated ? complement(set) : set;
  }

  // Reads a character, or an escape for one or several characters.
  CharacterSet character(bool in_class) {
    if (!take("\\")) {
      std::string_view rest = pattern_.substr(at_);
      const std::uint32_t code_point = take_code_point(rest);
      at_ = pattern_.size() - rest.size();
      return {{code_point, code_point}};
    }
    const char c = peek();
    ++at_;
    const auto one = [](std::uint32_t code_point) { return CharacterSet{{code_point, code_point}}; };
    switch (c) {
      case 'd':
        return kDigitSet;
      case 'D':
        return complement(kDigitSet);
      case 'w':
        return kWordSet;
      case 'W':
        return complement(kWordSet);
      case 's':
        return kSpaceSet;
      case 'S':
        return complement(kSpaceSet);
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
      case '0':
        if (!is_digit(peek())) return one(0);
        break;
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'x':
        return one(read_hex(2));
      case 'u':
        return one(unicode_escape());
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

  CharacterSet property(bool is_negated) {
    const std::size_t end = pattern_.find('}', at_);
    if (peek() != '{' || end == std::string_view::npos) {
      refuse("an escape is not complete");
      return {};
    }
    const std::string_view name = pattern_.substr(at_ + 1, end - at_ - 1);
    const CharacterSet* set = property_set(name);
    if (set == nullptr) {
      refuse(std::format("\\p{{{}}} is not supported", name));
      return {};
    }
    at_ = end + 1;
    return is_negated ? complement(*set) : *set;
  }

  std::uint32_t unicode_escape() {
    if (take("{")) {
      const std::size_t end = std::min(pattern_.find('}', at_), pattern_.size());
      const std::uint32_t value = read_hex(end - at_);
      if (!take("}")) refuse("an escape is not complete");
      return value;
    }
    const std::uint32_t high = hex_digits(4);
    if (high < 0xD800 || high > 0xDFFF) return high;
    // Two halves of a character.
    if (high <= 0xDBFF && take("\\u")) {
      const std::uint32_t low = hex_digits(4);
      if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }
    refuse("an escape is half of a character");
    return 0;
  }

  std::uint32_t read_hex(std::size_t digits) {
    const std::uint32_t value = hex_digits(digits);
    if (value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF)) refuse("an escape is not a valid character");
    return value;
  }

  std::uint32_t hex_digits(std::size_t digits) {
    const std::string_view text = pattern_.substr(std::min(at_, pattern_.size()), digits);
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.empty() || text.size() != digits || error != std::errc() || end != text.data() + digits) {
      refuse("an escape needs hexadecimal digits");
      return 0;
    }
    at_ += digits;
    return value;
  }

  const std::string_view pattern_;
  std::size_t at_ = 0;
  std::size_t ranges_ = 0;
  int groups_ = 0;
  std::vector<OnlyText> known_;
  std::optional<std::string> problem_;
};

std::int64_t bounded(std::int64_t count) {
  return std::min<std::int64_t>(count, 1'000'000'000);
}

}  // namespace

Expected<Pattern> read_pattern(std::string_view pattern) {
  return Reader(pattern).read();
}

Pattern literal_pattern(std::string_view text) {
  Pattern whole{.kind = Pattern::Kind::sequence};
  whole.children.push_back({.kind = Pattern::Kind::begin});
  while (!text.empty()) {
    const std::uint32_t code_point = take_code_point(text);
    whole.children.push_back({.kind = Pattern::Kind::characters, .characters = {{code_point, code_point}}});
  }
  whole.children.push_back({.kind = Pattern::Kind::end});
  return whole;
}

Pattern narrowed(Pattern pattern, std::int64_t max) {
  if (pattern.kind == Pattern::Kind::not_ahead || pattern.kind == Pattern::Kind::not_behind) return pattern;
  if (pattern.max) pattern.max = std::min(*pattern.max, std::max(pattern.min, max));
  for (Pattern& child : pattern.children) child = narrowed(std::move(child), max);
  return pattern;
}

PatternLength length_of(const Pattern& pattern) {
  PatternLength whole;
  switch (pattern.kind) {
    case Pattern::Kind::characters:
      return {1, 1};
    case Pattern::Kind::sequence:
      for (const Pattern& child : pattern.children) {
        const PatternLength part = length_of(child);
        whole.min = bounded(whole.min + part.min);
        whole.max = whole.max && part.max ? std::optional(bounded(*whole.max + *part.max)) : std::nullopt;
      }
      return whole;
    case Pattern::Kind::alternatives:
      for (bool is_first = true; const Pattern& child : pattern.children) {
        const PatternLength part = length_of(child);
        whole.min = std::exchange(is_first, false) ? part.min : std::min(whole.min, part.min);
        whole.max = whole.max && part.max ? std::optional(std::max(*whole.max, *part.max)) : std::nullopt;
      }
      return whole;
    case Pattern::Kind::repetition: {
      const PatternLength part = length_of(pattern.children.front());
      whole.min = bounded(part.min * pattern.min);
      whole.max = pattern.max && part.max ? std::optional(bounded(*part.max * *pattern.max)) : std::nullopt;
      if (part.max == 0) whole.max = 0;
      return whole;
    }
    default:
      return {};
  }
}

}  // namespace uma::grammar
