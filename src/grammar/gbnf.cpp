#include "grammar/gbnf.h"

#include <algorithm>
#include <charconv>
#include <format>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"

namespace uma::grammar::gbnf {
namespace {

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

// After the first error nothing more is read, so every loop checks for it.
class Reader {
 public:
  Reader(std::string_view text, std::span<const std::string_view> parts) : text_(text), parts_(parts) {}

  Expected<std::vector<Rule>> read_rules() {
    skip_space(true);
    while (!problem_ && at_ < text_.size()) {
      read_rule();
      skip_space(true);
    }
    for (std::size_t i = 0; i < rules_.size() && !problem_; ++i) {
      if (!is_defined_[i]) problem_ = std::format("rule \"{}\" is used but not defined", rules_[i].name);
    }
    if (problem_) return fail(ErrorCode::proto_field, *problem_);
    return std::move(rules_);
  }

 private:
  void refuse(std::string_view what) {
    if (problem_) return;
    const auto line = 1 + std::ranges::count(text_.substr(0, at_), '\n');
    problem_ = std::format("line {}: {}", line, what);
  }

  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  [[nodiscard]] bool take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }

  // Skips spaces, tabs and comments; with `over_lines` also line ends.
  void skip_space(bool over_lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\t' || (over_lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string_view read_name() {
    const std::size_t begin = at_;
    while (is_name_character(peek())) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  std::size_t rule_named(std::string_view name) {
    const auto [entry, is_new] = ids_.try_emplace(std::string(name), rules_.size());
    if (is_new) {
      if (rules_.size() == kRulesMax) refuse(std::format("there are more than {} rules", kRulesMax));
      rules_.push_back({std::string(name), {}});
      is_defined_.push_back(std::ranges::contains(parts_, name));
    }
    return entry->second;
  }

  void read_rule() {
    const std::string_view name = read_name();
    if (name.empty()) return refuse("expected the name of a rule");
    const std::size_t rule = rule_named(name);
    skip_space(true);
    if (!take("::=")) return refuse(std::format("expected \"::=\" after the name \"{}\"", name));
    if (is_defined_[rule]) return refuse(std::format("rule \"{}\" is defined twice", name));
    is_defined_[rule] = true;
    skip_space(true);
    Node body = read_alternatives(0);
    rules_[rule].body = std::move(body);
    if (!problem_ && at_ < text_.size() && peek() != '\n' && peek() != '\r') {
      refuse(std::format("unexpected \"{}\" in rule \"{}\"", peek(), name));
    }
  }

  Node read_alternatives(std::int32_t depth) {
    Node node{.kind = Node::Kind::alternatives, .children = {}, .ranges = {}};
    if (depth > kDepthMax) {
      refuse(std::format("groups are nested deeper than {} levels", kDepthMax));
      return node;
    }
    while (!problem_) {
      node.children.push_back(read_sequence(depth));
      // A line that begins with "|" continues the rule.
      const std::size_t end = at_;
      skip_space(true);
      if (take("|")) {
        skip_space(true);
        continue;
      }
      if (depth == 0) at_ = end;
      break;
    }
    return node;
  }

  Node read_sequence(std::int32_t depth) {
    Node node{.kind = Node::Kind::sequence, .children = {}, .ranges = {}};
    while (!problem_) {
      skip_space(depth > 0);
      const char c = peek();
      if (c == '"') {
        const std::size_t first = node.children.size();
        read_literal(node.children);
        // A repetition applies to the whole literal.
        if (std::string_view("*+?{").contains(peek_after_space(depth)) && node.children.size() - first != 1) {
          Node literal{.kind = Node::Kind::sequence, .children = {}, .ranges = {}};
          literal.children.assign(std::make_move_iterator(node.children.begin() + static_cast<std::ptrdiff_t>(first)),
                                  std::make_move_iterator(node.children.end()));
          node.children.resize(first);
          node.children.push_back(std::move(literal));
        }
      } else if (c == '[') {
        node.children.push_back(read_class());
      } else if (c == '.') {
        ++at_;
        node.children.push_back({.kind = Node::Kind::characters, .children = {}, .ranges = complement({})});
      } else if (c == '(') {
        ++at_;
        node.children.push_back(read_alternatives(depth + 1));
        if (!take(")")) refuse("expected \")\"");
      } else if (is_name_character(c)) {
        node.children.push_back({.kind = Node::Kind::rule, .children = {}, .ranges = {}, .rule = rule_named(read_name())});
      } else if (c == '<' || c == '!') {
        refuse("references to tokens are not supported: write the text");
      } else if (c == '*' || c == '+' || c == '?' || c == '{') {
        if (node.children.empty()) {
          refuse(std::format("\"{}\" has nothing to repeat", c));
        } else if (node.children.back().kind == Node::Kind::repetition) {
          refuse("a repetition is repeated: put it into parentheses");
        } else {
          read_repetition(node.children.back());
        }
      } else {
        break;
      }
    }
    return node;
  }

  char peek_after_space(std::int32_t depth) {
    skip_space(depth > 0);
    return peek();
  }

  void read_repetition(Node& repeated) {
    Node node{.kind = Node::Kind::repetition, .children = {}, .ranges = {}};
    const char c = text_[at_++];
    if (c == '{') {
      node.min = read_count();
      node.max = node.min;
      skip_space(false);
      if (take(",")) {
        skip_space(false);
        node.max = peek() == '}' ? -1 : read_count();
      }
      skip_space(false);
      if (!take("}")) return refuse("expected \"}\"");
      if (node.max >= 0 && node.max < node.min) return refuse("the minimum of a repetition is larger than its maximum");
    } else {
      node.min = c == '+' ? 1 : 0;
      node.max = c == '?' ? 1 : -1;
    }
    node.children.push_back(std::move(repeated));
    repeated = std::move(node);
  }

  std::int32_t read_count() {
    std::int32_t count = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), count);
    if (error != std::errc() || count < 0 || count > kRepetitionsMax) {
      refuse(std::format("the count of a repetition must be 0 to {}", kRepetitionsMax));
      return 0;
    }
    at_ = static_cast<std::size_t>(end - text_.data());
    return count;
  }

  void read_literal(std::vector<Node>& characters) {
    ++at_;
    while (!problem_) {
      if (at_ >= text_.size() || peek() == '\n') return refuse("a literal has no closing quote");
      if (take("\"")) return;
      const std::uint32_t code_point = read_character();
      characters.push_back({.kind = Node::Kind::characters, .children = {}, .ranges = {{code_point, code_point}}});
    }
  }

  Node read_class() {
    ++at_;
    Node node{.kind = Node::Kind::characters, .children = {}, .ranges = {}};
    const bool is_negated = take("^");
    while (!problem_) {
      if (at_ >= text_.size() || peek() == '\n') {
        refuse("a character class has no \"]\"");
        return node;
      }
      if (take("]")) break;
      Range range{};
      range.low = read_character();
      range.high = range.low;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        range.high = read_character();
        if (range.high < range.low) refuse("a character range ends before it begins");
      }
      node.ranges.push_back(range);
    }
    node.ranges = sorted_and_joined(std::move(node.ranges));
    if (is_negated) node.ranges = complement(node.ranges);
    return node;
  }

  // Reads one character of a literal or class, possibly escaped.
  std::uint32_t read_character() {
    if (at_ >= text_.size()) {
      refuse("the grammar ends too early");
      return 0;
    }
    if (!take("\\")) return read_code_point();
    const char c = peek();
    ++at_;
    switch (c) {
      case 'x':
        return read_hex(2);
      case 'u':
        return read_hex(4);
      case 'U':
        return read_hex(8);
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<unsigned char>(c);
      default:
        --at_;
        refuse(R"(an escape must be one of \n \r \t \" \\ \[ \] \- \^ \xNN \uNNNN \UNNNNNNNN)");
        return 0;
    }
  }

  std::uint32_t read_hex(std::size_t digits) {
    const std::string_view text = text_.substr(std::min(at_, text_.size()), digits);
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() != digits || error != std::errc() || end != text.data() + text.size() || value > kLastCodePoint ||
        (value >= 0xD800 && value <= 0xDFFF)) {
      refuse(std::format("an escape needs {} hexadecimal digits of a valid character", digits));
      return 0;
    }
    at_ += digits;
    return value;
  }

  // Requires: valid UTF-8.
  std::uint32_t read_code_point() {
    std::string_view rest = text_.substr(at_);
    const std::uint32_t code_point = take_code_point(rest);
    at_ = text_.size() - rest.size();
    return code_point;
  }

  std::string_view text_;
  const std::span<const std::string_view> parts_;
  std::size_t at_ = 0;
  std::vector<Rule> rules_;
  std::vector<bool> is_defined_;
  std::unordered_map<std::string, std::size_t> ids_;
  std::optional<std::string> problem_;
};

}  // namespace

Expected<std::vector<Rule>> read(std::string_view text, std::span<const std::string_view> parts) {
  if (text.size() > kBytesMax) {
    return fail(ErrorCode::proto_field, std::format("the grammar has {} bytes; the limit is {}", text.size(), kBytesMax));
  }
  if (!is_utf8(text)) return fail(ErrorCode::proto_field, "the grammar is not valid UTF-8");
  return Reader(text, parts).read_rules();
}

}  // namespace uma::grammar::gbnf
