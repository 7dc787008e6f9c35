#include "grammar/json_pattern.h"

#include <algorithm>
#include <format>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "grammar/json_schema_numbers.h"
#include "grammar/json_schema_values.h"

namespace uma::grammar {
namespace {

// Generated strings without an upper bound of their own may be longer.
constexpr std::int64_t kTextLengthMax = 4096;
constexpr std::size_t kInlineBytesMax = 48;
constexpr std::size_t kChainMax = 40;  // States that are written in one rule.
constexpr std::size_t kNamesStatesMax = 2500;
constexpr std::size_t kRulesKept = 1000;  // For the rest of the schema.

bool is_plain_character(std::uint32_t code_point) {
  return (code_point >= '0' && code_point <= '9') || (code_point >= 'a' && code_point <= 'z') ||
         (code_point >= 'A' && code_point <= 'Z') || code_point == '_' || code_point == ' ' || code_point == '.';
}

void append_code_point(std::string& out, std::uint32_t code_point) {
  if (is_plain_character(code_point)) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x100) {
    out += std::format("\\x{:02x}", code_point);
  } else if (code_point < 0x10000) {
    out += std::format("\\u{:04x}", code_point);
  } else {
    out += std::format("\\U{:08x}", code_point);
  }
}

std::string gbnf_class(const CharacterSet& set) {
  std::string out = "[";
  for (CodeRange range : set) {
    // Surrogates are no characters.
    if (range.low >= 0xD800 && range.low <= 0xDFFF) range.low = 0xE000;
    if (range.high >= 0xD800 && range.high <= 0xDFFF) range.high = 0xD7FF;
    if (range.low > range.high) continue;
    append_code_point(out, range.low);
    if (range.low == range.high) continue;
    out += '-';
    append_code_point(out, range.high);
  }
  return out + "]";
}

// One character of the set in a JSON string, spelled in one way.
std::string json_class(const CharacterSet& set) {
  CharacterSet raw;  // Without the characters that JSON escapes.
  for (CodeRange range : set) {
    range.low = std::max(range.low, 0x20u);
    for (const std::uint32_t escaped : {std::uint32_t{'"'}, std::uint32_t{'\\'}}) {
      if (range.low > escaped || range.high < escaped) continue;
      if (range.low < escaped) raw.push_back({range.low, escaped - 1});
      range.low = escaped + 1;
    }
    if (range.low <= range.high) raw.push_back(range);
  }
  std::string escapes;
  if (contains(set, '"')) escapes += R"( | "\\\"")";
  if (contains(set, '\\')) escapes += R"( | "\\\\")";
  for (std::uint32_t control = 0; control < 0x20; ++control) {
    if (!contains(set, control)) continue;
    switch (control) {
      case '\n':
        escapes += R"( | "\\n")";
        break;
      case '\r':
        escapes += R"( | "\\r")";
        break;
      case '\t':
        escapes += R"( | "\\t")";
        break;
      default:
        escapes += std::format(R"( | "\\u{:04x}")", control);
    }
  }
  return escapes.empty() ? gbnf_class(raw) : std::format("({}{})", gbnf_class(raw), escapes);
}

bool is_any_character(const Pattern& pattern) {
  return pattern.kind == Pattern::Kind::characters && pattern.characters == CharacterSet{{0, kLastCodePoint}};
}

bool has_assertions(const Pattern& pattern) {
  return pattern.kind > Pattern::Kind::repetition || std::ranges::any_of(pattern.children, has_assertions);
}

// About the number of states that the expression needs.
std::size_t weight_of(const Pattern& pattern) {
  constexpr std::size_t kMax = 1u << 20;
  if (pattern.kind == Pattern::Kind::characters) {
    return pattern.characters.empty() || pattern.characters.back().high < 0x80 || is_any_character(pattern) ? 1 : 4;
  }
  std::size_t weight = 1;
  for (const Pattern& child : pattern.children) weight += weight_of(child);
  if (pattern.kind == Pattern::Kind::repetition)
    weight *= static_cast<std::size_t>(std::max<std::int64_t>(pattern.max.value_or(pattern.min + 1), 1));
  return std::min(weight, kMax);
}

Pattern any_text() {
  Pattern whole{.kind = Pattern::Kind::repetition, .min = 0, .max = std::nullopt};
  whole.children.push_back({.kind = Pattern::Kind::characters, .characters = {{0, kLastCodePoint}}});
  return whole;
}

// The parts of an alternative of the whole expression, with what may stand before and behind them; nullopt: it has assertions
// inside.
std::optional<std::vector<Pattern>> parts_of(const Pattern& alternative) {
  std::span<const Pattern> inner = alternative.children;
  const bool from_begin = !inner.empty() && inner.front().kind == Pattern::Kind::begin;
  if (from_begin) inner = inner.subspan(1);
  const bool to_end = !inner.empty() && inner.back().kind == Pattern::Kind::end;
  if (to_end) inner = inner.first(inner.size() - 1);
  if (std::ranges::any_of(inner, has_assertions)) return std::nullopt;
  std::vector<Pattern> parts;
  if (!from_begin) parts.push_back(any_text());
  parts.insert(parts.end(), inner.begin(), inner.end());
  if (!to_end) parts.push_back(any_text());
  return parts;
}

// Writes the bound of the length into the one part without a bound, if the others take at most a quarter of it.
bool shorten(std::vector<Pattern>& parts, std::int64_t max) {
  const auto is_unlimited = [](const Pattern& part) { return !length_of(part).max; };
  const auto part = std::ranges::find_if(parts, is_unlimited);
  if (part == parts.end() || std::ranges::count_if(parts, is_unlimited) != 1 || part->kind != Pattern::Kind::repetition)
    return false;
  std::int64_t others = 0;
  for (const Pattern& each : parts) others += length_of(each).max.value_or(0);
  const PatternLength once = length_of(part->children.front());
  if (once.min == 0 || once.min != once.max || others > max / 4) return false;
  part->max = std::min((max - others) / once.min, kRepetitionsMax);
  return *part->max >= part->min;
}

// Writes the bounds of the length into the one part that varies. Returns false where no text is left, and nullopt where that
// cannot be done: several parts vary, or the one is no repetition of parts of one length.
std::optional<bool> limit(std::vector<Pattern>& parts, std::int64_t min, std::optional<std::int64_t> max) {
  const Pattern all{.kind = Pattern::Kind::sequence, .children = parts};
  const PatternLength whole = length_of(all);
  if ((max && whole.min > *max) || (whole.max && *whole.max < min)) return false;
  if (whole.min >= min && (!max || (whole.max && *whole.max <= *max))) return true;
  const auto varies = [](const Pattern& part) { return length_of(part).min != length_of(part).max; };
  const auto part = std::ranges::find_if(parts, varies);
  if (part == parts.end() || std::ranges::count_if(parts, varies) != 1 || part->kind != Pattern::Kind::repetition)
    return std::nullopt;
  const PatternLength once = length_of(part->children.front());
  if (once.min == 0 || once.min != once.max) return std::nullopt;
  const std::int64_t others = whole.min - once.min * part->min;
  part->min = std::max(part->min, (std::max<std::int64_t>(min - others, 0) + once.min - 1) / once.min);
  if (max) part->max = std::min(part->max.value_or(*max), (*max - others) / once.min);
  if (part->max) part->max = std::min(*part->max, std::max(part->min, kRepetitionsMax));
  if (part->max && *part->max < part->min) return false;
  if (part->min > kRepetitionsMax) return std::nullopt;
  return true;
}

}  // namespace

std::string TextRules::character_rule() {
  return rules_.shared(
      "character", R"([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} | )"
                   R"([dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2})))");
}

bool TextRules::take_weight(std::size_t weight) {
  if (weight > weight_left_) return false;
  weight_left_ -= weight;
  return true;
}

std::optional<std::string> TextRules::add(const TextLanguage& language, Spelling spelling) {
  if (language.max && *language.max < language.min) return joined({});
  const bool is_plain = language.none.empty() && !language.divisor;
  if (is_plain && language.all.empty()) return of_length(language.min, language.max);
  const bool is_one = is_plain && language.all.size() == 1;
  if (is_one) {
    if (auto text = simple(language, spelling, false)) return text;
  }
  // Lists of names have a state for each character.
  const std::size_t states_max = language.none.empty() ? budget_.states_max : kNamesStatesMax;
  AutomatonBudget budget{.states_max = std::min(states_max, automaton_rules_left_), .work_left = budget_.work_left};
  const auto automaton = make_automaton(language, budget);
  budget_.work_left = budget.work_left;
  if (!automaton) return is_one ? simple(language, spelling, true) : std::nullopt;
  auto place = rules_.place();
  auto text = automaton_rules(*automaton, spelling);
  if (!text) rules_.take_back(std::move(place));
  return text;
}

std::optional<std::string> TextRules::of_length(std::int64_t min, std::optional<std::int64_t> max) {
  if (min > kTextLengthMax) return std::nullopt;
  if (!max) {
    if (min == 0) return character_rule() + "*";
    return take_weight(static_cast<std::size_t>(min)) ? std::optional(std::format("{}{{{},}}", character_rule(), min))
                                                      : std::nullopt;
  }
  const std::int64_t most = std::min(*max, kTextLengthMax);
  const std::string name = std::format("text-{}-{}", min, most);
  if (!rules_.has_shared(name) && !take_weight(static_cast<std::size_t>(most))) return std::nullopt;
  return rules_.shared(name, std::format("{}{{{},{}}}", character_rule(), min, most));
}

std::optional<std::string> TextRules::simple(const TextLanguage& language, Spelling spelling, bool may_shorten) {
  const Pattern& pattern = language.all.front();
  std::vector<Pattern> alternatives = pattern.children;
  if (pattern.kind != Pattern::Kind::alternatives) alternatives = {pattern};
  std::vector<std::string> texts;
  std::size_t weight = 0;
  for (const Pattern& alternative : alternatives) {
    auto parts = parts_of(alternative);
    if (!parts) return std::nullopt;
    auto has_texts = limit(*parts, language.min, language.max);
    const bool has_min = length_of({.kind = Pattern::Kind::sequence, .children = *parts}).min >= language.min;
    if (!has_texts && may_shorten && has_min && language.max && shorten(*parts, *language.max)) has_texts = true;
    if (!has_texts) return std::nullopt;
    if (!*has_texts) continue;
    const Pattern whole{.kind = Pattern::Kind::sequence, .children = *std::move(parts)};
    weight += weight_of(whole);
    if (weight > weight_left_) return std::nullopt;
    texts.push_back(part(whole, spelling));
  }
  return take_weight(weight) ? std::optional(joined(texts)) : std::nullopt;
}

std::string TextRules::part(const Pattern& pattern, Spelling spelling) {
  switch (pattern.kind) {
    case Pattern::Kind::characters:
      if (is_any_character(pattern) && spelling == Spelling::json) return character_rule();
      return one_of(pattern.characters, spelling);
    case Pattern::Kind::sequence: {
      std::string text;
      for (const Pattern& child : pattern.children) text += (text.empty() ? "" : " ") + part(child, spelling);
      return text.empty() ? "\"\"" : text;
    }
    case Pattern::Kind::alternatives: {
      std::vector<std::string> texts;
      for (const Pattern& child : pattern.children) texts.push_back(part(child, spelling));
      return joined(texts);
    }
    default: {
      const std::string repeated = part(pattern.children.front(), spelling);
      return pattern.max ? std::format("({}){{{},{}}}", repeated, pattern.min, *pattern.max)
                         : std::format("({}){{{},}}", repeated, pattern.min);
    }
  }
}

std::string TextRules::one_of(const CharacterSet& set, Spelling spelling) {
  std::string text = spelling == Spelling::json ? json_class(set) : gbnf_class(set);
  if (text.size() <= kInlineBytesMax) return text;
  const auto& [body, name] = *classes_.try_emplace(std::move(text), std::format("class-{}", classes_.size())).first;
  return rules_.shared(name, body);
}

std::optional<std::string> TextRules::automaton_rules(const TextAutomaton& automaton, Spelling spelling) {
  if (automaton.states.empty()) return joined({});
  std::vector<std::size_t> callers(automaton.states.size(), 0);
  for (const TextAutomaton::State& state : automaton.states) {
    for (const TextAutomaton::Step& step : state.steps) ++callers[step.to];
  }
  ++callers[0];
  // A state with one way in and one way on is written where it is reached.
  const auto is_written_inside = [&](std::uint32_t to) {
    return callers[to] == 1 && automaton.states[to].steps.size() + (automaton.states[to].is_final ? 1 : 0) == 1;
  };
  std::map<std::uint32_t, std::string> names{{0, rules_.new_rule()}};
  std::vector<std::uint32_t> open{0};
  for (std::size_t i = 0; i < open.size(); ++i) {
    std::vector<std::string> alternatives;
    if (automaton.states[open[i]].is_final) alternatives.emplace_back("\"\"");
    for (const TextAutomaton::Step& step : automaton.states[open[i]].steps) {
      std::string text = one_of(step.characters, spelling);
      std::uint32_t to = step.to;
      for (std::size_t chain = 0; chain < kChainMax && is_written_inside(to) && !automaton.states[to].is_final; ++chain) {
        text += " " + one_of(automaton.states[to].steps.front().characters, spelling);
        to = automaton.states[to].steps.front().to;
      }
      const bool ends = automaton.states[to].steps.empty();
      if (!ends && !names.contains(to)) {
        if (automaton_rules_left_ == 0 || rules_.rules_left() < kRulesKept) return std::nullopt;
        --automaton_rules_left_;
        names[to] = rules_.new_rule();
        open.push_back(to);
      }
      alternatives.push_back(ends ? text : text + " " + names[to]);
    }
    const std::string body = joined(alternatives);
    if (body.size() + 16 > automaton_bytes_left_) return std::nullopt;
    automaton_bytes_left_ -= body.size() + 16;
    rules_.define(names[open[i]], body);
  }
  return names[0];
}

Expected<std::string> pattern_gbnf(std::string_view pattern) {
  auto read = read_pattern(pattern);
  if (!read) return std::unexpected(read.error());
  Pattern whole{.kind = Pattern::Kind::sequence};
  whole.children.push_back({.kind = Pattern::Kind::begin});
  whole.children.push_back(*std::move(read));
  whole.children.push_back({.kind = Pattern::Kind::end});
  RuleWriter rules;
  TextRules texts(rules);
  try {
    const auto root = texts.add({.all = {std::move(whole)}}, Spelling::plain);
    if (root) return std::format("root ::= {}\n{}", *root, rules.gbnf());
  } catch (const Refusal&) {
    // It has too many rules.
  }
  return fail(ErrorCode::proto_field, "the pattern is too complex for a grammar: make its repetitions shorter");
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
