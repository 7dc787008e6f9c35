#include "grammar/text_automaton.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <utility>

namespace uma::grammar {
namespace {

constexpr std::size_t kInstructionsMax = 20'000;  // Instructions of one expression, with repetitions written out.
constexpr std::size_t kClausesMax = 512;
constexpr std::size_t kClassesMax = 4096;
constexpr std::int64_t kDivisorMax = 1000;  // In units of the smallest decimal.

// Thrown where a bound is reached, and caught in this file.
struct TooLarge {};

class Work {
 public:
  explicit Work(std::uint64_t& left) : left_(left) {}
  void charge(std::size_t units) {
    if (units > left_) {
      left_ = 0;
      throw TooLarge{};
    }
    left_ -= units;
  }

 private:
  std::uint64_t& left_;
};

// A boolean formula over instructions in disjunctive normal form: each clause is a sorted list of literals, and no clause
// contains another one. No clause: false. An empty clause: true.
using Literal = std::uint32_t;  // Twice the instruction; plus one: not.
using Clause = std::vector<Literal>;
using Formula = std::vector<Clause>;

const Formula kFalse{};
const Formula kTrue{{}};

Formula either(Formula a, const Formula& b, Work& work) {
  work.charge(a.size() + b.size() + 1);
  a.insert(a.end(), b.begin(), b.end());
  std::ranges::sort(a, [](const Clause& x, const Clause& y) { return x.size() != y.size() ? x.size() < y.size() : x < y; });
  const auto repeated = std::ranges::unique(a);
  a.erase(repeated.begin(), repeated.end());
  if (!a.empty() && a.front().empty()) return kTrue;
  if (a.size() > 1 && a.back().size() > 1) {
    Formula kept;
    for (Clause& clause : a) {
      const bool is_implied = std::ranges::any_of(kept, [&](const Clause& shorter) {
        work.charge(shorter.size() + 1);
        return std::ranges::includes(clause, shorter);
      });
      if (!is_implied) kept.push_back(std::move(clause));
    }
    a = std::move(kept);
  }
  if (a.size() > kClausesMax) throw TooLarge{};
  return a;
}

Formula both(const Formula& a, const Formula& b, Work& work) {
  if (a == kTrue) return b;
  if (b == kTrue) return a;
  if (a.size() * b.size() > 16 * kClausesMax) throw TooLarge{};
  Formula all;
  for (const Clause& left : a) {
    for (const Clause& right : b) {
      work.charge(left.size() + right.size() + 1);
      Clause clause;
      std::ranges::set_union(left, right, std::back_inserter(clause));
      const auto opposites = std::ranges::adjacent_find(clause, [](Literal x, Literal y) { return (x ^ 1) == y; });
      if (opposites == clause.end()) all.push_back(std::move(clause));
    }
  }
  return either({}, all, work);
}

Formula opposite(const Formula& formula, Work& work) {
  Formula all = kTrue;
  for (const Clause& clause : formula) {
    Formula any;
    for (const Literal literal : clause) any.push_back({literal ^ 1});
    all = both(all, either({}, any, work), work);
  }
  return all;
}

// A character, for an expression: the sets that have it.
struct Letter {
  const std::vector<bool>* in_sets = nullptr;  // By the number of the set; null: the end of the text.
  bool is_word = false;
  bool is_disputed = false;  // No character of ASCII.
};

// One expression as an alternating automaton: its state is a formula over instructions.
class Expression {
 public:
  // Adds its sets to `sets`, where each has a number.
  Expression(const Pattern& pattern, std::vector<CharacterSet>& sets, Work& work) : sets_(sets), work_(work) {
    const std::uint32_t rest = add({.kind = Kind::anything});
    const std::uint32_t loop = add({.kind = Kind::either});
    instructions_[loop].next = {add({.kind = Kind::characters, .next = {loop}, .set = number_of({{0, kLastCodePoint}})}),
                                compile(pattern, rest)};
    State begin{.formula = {{2 * loop}}};
    for (const std::uint32_t place : behinds_) begin.behinds.push_back({{2 * place}});
    (void)intern(std::move(begin));
  }

  using StateNumber = std::uint32_t;  // 0: the beginning of the text.

  [[nodiscard]] StateNumber next(StateNumber from, std::size_t letter_number, const Letter& letter) {
    const auto [known, is_new] = steps_.try_emplace({from, letter_number}, 0);
    if (!is_new) return known->second;
    const State state = states_[from];
    // The letter before counts only where an edge is looked for.
    State to{.before = !has_edges_          ? Before::other
                       : letter.is_disputed ? Before::disputed
                       : letter.is_word     ? Before::word
                                            : Before::other};
    to.formula = value_of(state.formula, state, letter);
    for (std::size_t i = 0; i < state.behinds.size(); ++i) {
      to.behinds.push_back(either(value_of(state.behinds[i], state, letter), {{2 * behinds_[i]}}, work_));
    }
    return steps_[{from, letter_number}] = intern(std::move(to));
  }
  [[nodiscard]] bool is_final(StateNumber number) {
    const State state = states_[number];
    return value_of(state.formula, state, {}) == kTrue;
  }
  // Whether no text, or every text, ends well from here.
  [[nodiscard]] bool is_false(StateNumber number) const { return states_[number].formula == kFalse; }
  [[nodiscard]] bool is_true(StateNumber number) const { return states_[number].formula == kTrue; }

 private:
  enum class Kind : std::uint8_t { characters, either, ahead, begin, end, edge, behind, found, anything };
  struct Instruction {
    Kind kind = Kind::either;
    bool is_negated = false;            // For ahead, edge and behind.
    std::vector<std::uint32_t> next{};  // For ahead: what must match here, and what goes on.
    std::size_t set = 0;                // For characters: its number. For behind: the number of the assertion.
  };
  enum class Before : std::uint8_t { nothing, word, other, disputed };
  struct State {
    Formula formula{};
    Before before = Before::nothing;
    std::vector<Formula> behinds{};  // For each assertion about the text before: the states of its own automaton.
    auto operator<=>(const State&) const = default;
  };

  std::uint32_t add(Instruction instruction) {
    if (instructions_.size() >= kInstructionsMax) throw TooLarge{};
    work_.charge(1);
    instructions_.push_back(std::move(instruction));
    return static_cast<std::uint32_t>(instructions_.size() - 1);
  }

  std::size_t number_of(const CharacterSet& set) {
    work_.charge(sets_.size() + set.size());
    const auto known = std::ranges::find(sets_, set);
    const auto number = static_cast<std::size_t>(known - sets_.begin());
    if (known == sets_.end()) sets_.push_back(set);
    return number;
  }

  // Returns the instruction that matches the pattern and goes on at `next`.
  std::uint32_t compile(const Pattern& pattern, std::uint32_t next) {
    switch (pattern.kind) {
      case Pattern::Kind::characters:
        return add({.kind = Kind::characters, .next = {next}, .set = number_of(pattern.characters)});
      case Pattern::Kind::sequence:
        for (auto child = pattern.children.rbegin(); child != pattern.children.rend(); ++child) next = compile(*child, next);
        return next;
      case Pattern::Kind::alternatives: {
        Instruction any{.kind = Kind::either};
        for (const Pattern& child : pattern.children) any.next.push_back(compile(child, next));
        return any.next.size() == 1 ? any.next.front() : add(std::move(any));
      }
      case Pattern::Kind::repetition:
        return compile_repetition(pattern, next);
      case Pattern::Kind::begin:
        return add({.kind = Kind::begin, .next = {next}});
      case Pattern::Kind::end:
        return add({.kind = Kind::end, .next = {next}});
      case Pattern::Kind::edge:
      case Pattern::Kind::no_edge:
        has_edges_ = true;
        return add({.kind = Kind::edge, .is_negated = pattern.kind == Pattern::Kind::no_edge, .next = {next}});
      case Pattern::Kind::ahead:
      case Pattern::Kind::not_ahead: {
        if (is_behind_) throw TooLarge{};  // It would look beyond the place where the outer assertion ends.
        const std::uint32_t rest = add({.kind = Kind::anything});
        const std::uint32_t asserted = compile(pattern.children.front(), rest);
        return add({.kind = Kind::ahead, .is_negated = pattern.kind == Pattern::Kind::not_ahead, .next = {asserted, next}});
      }
      case Pattern::Kind::behind:
      case Pattern::Kind::not_behind: {
        const bool is_nested = std::exchange(is_behind_, true);
        const std::uint32_t asserted = compile(pattern.children.front(), add({.kind = Kind::found}));
        is_behind_ = is_nested;
        behinds_.push_back(asserted);
        return add({.kind = Kind::behind,
                    .is_negated = pattern.kind == Pattern::Kind::not_behind,
                    .next = {next},
                    .set = behinds_.size() - 1});
      }
    }
    return next;
  }

  std::uint32_t compile_repetition(const Pattern& repetition, std::uint32_t next) {
    const Pattern& repeated = repetition.children.front();
    std::uint32_t at = next;
    if (!repetition.max) {
      at = add({.kind = Kind::either});
      const std::uint32_t once = compile(repeated, at);
      instructions_[at].next = {once, next};
    } else {
      for (std::int64_t i = repetition.min; i < *repetition.max; ++i) {
        const std::uint32_t once = compile(repeated, at);
        if (once == at) break;  // It has no text.
        at = add({.kind = Kind::either, .next = {once, next}});
      }
    }
    for (std::int64_t i = 0; i < repetition.min; ++i) {
      const std::uint32_t once = compile(repeated, at);
      if (once == at) break;
      at = once;
    }
    return at;
  }

  StateNumber intern(State state) {
    const auto [known, is_new] = numbers_.try_emplace(std::move(state), static_cast<StateNumber>(states_.size()));
    if (is_new) states_.push_back(known->first);
    return known->second;
  }

  // The formula after the letter, or the value at the end of the text, which is true or false.
  Formula value_of(const Formula& formula, const State& state, const Letter& letter) {
    Formula any;
    for (const Clause& clause : formula) {
      Formula all = kTrue;
      for (const Literal literal : clause) {
        std::vector<std::uint32_t> seen, open;
        Formula value = step(literal / 2, state, letter, seen, open);
        if (literal % 2 == 1) value = opposite(value, work_);
        all = both(all, value, work_);
        if (all.empty()) break;
      }
      any = either(std::move(any), all, work_);
      if (any == kTrue) break;
    }
    return any;
  }

  // `seen` are the alternatives that are part of the result already; `open` those of them that are being read. An alternative
  // that comes again within itself adds nothing: its texts are those of the other alternatives, with more conditions.
  Formula step(std::uint32_t at, const State& state, const Letter& letter, std::vector<std::uint32_t>& seen,
               std::vector<std::uint32_t>& open) {
    work_.charge(1 + seen.size() / 8);
    const Instruction& instruction = instructions_[at];
    const bool is_end = letter.in_sets == nullptr;
    const auto go_on = [&](bool may) { return may ? step(instruction.next.front(), state, letter, seen, open) : kFalse; };
    switch (instruction.kind) {
      case Kind::characters:
        return !is_end && (*letter.in_sets)[instruction.set] ? Formula{{2 * instruction.next.front()}} : kFalse;
      case Kind::either: {
        if (std::ranges::contains(seen, at)) return kFalse;
        seen.push_back(at);
        open.push_back(at);
        Formula any;
        for (const std::uint32_t next : instruction.next)
          any = either(std::move(any), step(next, state, letter, seen, open), work_);
        open.pop_back();
        return any;
      }
      case Kind::ahead: {
        std::vector<std::uint32_t> seen_ahead, open_ahead;
        Formula asserted = step(instruction.next[0], state, letter, seen_ahead, open_ahead);
        if (instruction.is_negated) asserted = opposite(asserted, work_);
        if (asserted.empty()) return kFalse;
        std::vector<std::uint32_t> seen_behind = open;
        return both(asserted, step(instruction.next[1], state, letter, seen_behind, open), work_);
      }
      case Kind::begin:
        return go_on(state.before == Before::nothing);
      case Kind::end:
        return go_on(is_end);
      case Kind::edge: {
        // Dialects differ in whether other letters than those of ASCII make words.
        if (state.before == Before::disputed || (!is_end && letter.is_disputed)) return kFalse;
        const bool is_edge = (state.before == Before::word) != (!is_end && letter.is_word);
        return go_on(is_edge != instruction.is_negated);
      }
      case Kind::behind:
        return go_on(finds(state.behinds[instruction.set], state, letter) != instruction.is_negated);
      case Kind::found:
        return is_found_ ? kTrue : kFalse;
      case Kind::anything:
        return kTrue;
    }
    return kFalse;
  }

  // Whether an assertion about the text before has matched up to this place.
  bool finds(const Formula& formula, const State& state, const Letter& letter) {
    // Nothing but its end counts: characters go beyond this place.
    const std::vector<bool> none(sets_.size(), false);
    const Letter here{
        .in_sets = letter.in_sets == nullptr ? nullptr : &none, .is_word = letter.is_word, .is_disputed = letter.is_disputed};
    const bool before = std::exchange(is_found_, true);
    const bool is_found = value_of(formula, state, here) == kTrue;
    is_found_ = before;
    return is_found;
  }

  std::vector<CharacterSet>& sets_;
  Work& work_;
  std::vector<Instruction> instructions_;
  std::vector<std::uint32_t> behinds_;  // Their first instructions.
  std::vector<State> states_;
  std::map<State, StateNumber> numbers_;
  std::map<std::pair<StateNumber, std::size_t>, StateNumber> steps_;
  bool has_edges_ = false;
  bool is_behind_ = false;  // While the text of an assertion about the text before is compiled.
  bool is_found_ = false;   // Whether such a text may end here.
};

// The code points, divided by the sets that have them.
struct Classes {
  struct Interval {
    CodeRange range;
    std::size_t number = 0;
  };
  std::vector<Interval> intervals;         // In order; without surrogates.
  std::vector<std::vector<bool>> in_sets;  // By the number of the class.
  std::vector<bool> are_words;
  std::vector<CharacterSet> characters;
};

Classes classes_of(const std::vector<CharacterSet>& sets, Work& work) {
  const CharacterSet word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  std::vector<std::uint32_t> borders = {0, 0xD800, 0xE000, kLastCodePoint + 1};
  const auto add = [&](const CharacterSet& set) {
    work.charge(2 * set.size());
    for (const CodeRange& range : set) {
      borders.push_back(range.low);
      borders.push_back(range.high + 1);
    }
  };
  for (const CharacterSet& set : sets) add(set);
  add(word);
  add({{0, 0x7F}});
  std::ranges::sort(borders);
  const auto repeated = std::ranges::unique(borders);
  borders.erase(repeated.begin(), repeated.end());
  Classes classes;
  std::map<std::vector<bool>, std::size_t> numbers;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    if (borders[i] == 0xD800) continue;
    work.charge(sets.size() + 1);
    std::vector<bool> in_sets;
    for (const CharacterSet& set : sets) in_sets.push_back(contains(set, borders[i]));
    std::vector<bool> key = in_sets;
    const bool is_word = contains(word, borders[i]);
    key.push_back(is_word);
    key.push_back(borders[i] < 0x80);
    const auto [known, is_new] = numbers.try_emplace(std::move(key), classes.in_sets.size());
    if (is_new) {
      if (classes.in_sets.size() >= kClassesMax) throw TooLarge{};
      classes.in_sets.push_back(std::move(in_sets));
      classes.are_words.push_back(is_word);
      classes.characters.emplace_back();
    }
    const CodeRange range{borders[i], borders[i + 1] - 1};
    classes.intervals.push_back({range, known->second});
    classes.characters[known->second].push_back(range);
  }
  return classes;
}

// The remainder of a number's digits so far.
class Division {
 public:
  explicit Division(const Divisor& divisor) : divisor_(divisor) {
    if (divisor.units < 1 || divisor.units > kDivisorMax || divisor.decimals < 0 || divisor.decimals > kDecimalsMax)
      throw TooLarge{};
  }
  static constexpr std::string_view kCharacters = "0123456789.-";

  // The state has the remainder, and how many decimals were read, counted from 1 behind the point. Nullopt: no multiple.
  [[nodiscard]] std::optional<std::uint32_t> next(std::uint32_t state, std::uint32_t character) const {
    const auto units = static_cast<std::uint32_t>(divisor_.units);
    const std::uint32_t remainder = state % units;
    const std::uint32_t place = state / units;
    if (character == '-') return state;
    if (character == '.') return place == 0 ? std::optional(units + remainder) : std::nullopt;
    if (character < '0' || character > '9') return std::nullopt;
    if (place == static_cast<std::uint32_t>(divisor_.decimals) + 1)
      return character == '0' ? std::optional(state) : std::nullopt;
    return (place == 0 ? 0 : place + 1) * units + (remainder * 10 + (character - '0')) % units;
  }
  [[nodiscard]] bool is_final(std::uint32_t state) const {
    const auto units = static_cast<std::uint32_t>(divisor_.units);
    std::uint32_t remainder = state % units;
    const std::uint32_t place = state / units;
    for (int read = place == 0 ? 0 : static_cast<int>(place) - 1; read < divisor_.decimals; ++read) {
      remainder = remainder * 10 % units;
    }
    return remainder == 0;
  }

 private:
  static constexpr int kDecimalsMax = 9;
  const Divisor divisor_;
};

// All conditions at once. A state has those of the expressions, the number of characters, and the remainder.
class Product {
 public:
  using State = std::vector<std::uint32_t>;

  Product(const TextLanguage& language, Work& work) : language_(language) {
    if (language.divisor) {
      division_.emplace(*language.divisor);
      for (const char c : Division::kCharacters)
        sets_.push_back({{static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(c)}});
    }
    for (const Pattern& pattern : language.all) expressions_.emplace_back(pattern, sets_, work);
    for (const Pattern& pattern : language.none) expressions_.emplace_back(pattern, sets_, work);
    classes_ = classes_of(sets_, work);
  }

  [[nodiscard]] const Classes& classes() const { return classes_; }
  [[nodiscard]] State begin() const { return State(expressions_.size() + 2, 0); }

  // Nullopt: no text goes on like this.
  [[nodiscard]] std::optional<State> next(const State& from, std::size_t number) {
    State to = from;
    const Letter letter{.in_sets = &classes_.in_sets[number],
                        .is_word = classes_.are_words[number],
                        .is_disputed = classes_.characters[number].front().low >= 0x80};
    for (std::size_t i = 0; i < expressions_.size(); ++i) {
      to[i] = expressions_[i].next(from[i], number, letter);
      const bool is_dead = i < language_.all.size() ? expressions_[i].is_false(to[i]) : expressions_[i].is_true(to[i]);
      if (is_dead) return std::nullopt;
    }
    std::uint32_t& count = to[expressions_.size()];
    if (language_.max && count >= *language_.max) return std::nullopt;
    if (language_.max || count < language_.min) ++count;
    if (division_) {
      const auto divided = division_->next(to.back(), classes_.characters[number].front().low);
      if (!divided) return std::nullopt;
      to.back() = *divided;
    }
    return to;
  }

  [[nodiscard]] bool is_final(const State& state) {
    for (std::size_t i = 0; i < expressions_.size(); ++i) {
      if (expressions_[i].is_final(state[i]) != (i < language_.all.size())) return false;
    }
    return state[expressions_.size()] >= language_.min && (!division_ || division_->is_final(state.back()));
  }

 private:
  const TextLanguage& language_;
  std::vector<CharacterSet> sets_;
  std::deque<Expression> expressions_;
  std::optional<Division> division_;
  Classes classes_;
};

// The states that have been reached, each with its state behind every class.
struct Table {
  static constexpr std::uint32_t kNone = UINT32_MAX;
  std::vector<std::vector<std::uint32_t>> next;
  std::vector<bool> are_final;
};

Table explore(Product& product, Work& work) {
  constexpr std::size_t kStatesMax = 6000;
  Table table;
  std::map<Product::State, std::uint32_t> numbers{{product.begin(), 0}};
  std::vector<Product::State> states{product.begin()};
  for (std::size_t i = 0; i < states.size(); ++i) {
    const Product::State state = states[i];
    table.are_final.push_back(product.is_final(state));
    std::vector<std::uint32_t> row(product.classes().in_sets.size(), Table::kNone);
    for (std::size_t number = 0; number < row.size(); ++number) {
      work.charge(state.size());
      auto to = product.next(state, number);
      if (!to) continue;
      const auto [known, is_new] = numbers.try_emplace(std::move(*to), static_cast<std::uint32_t>(states.size()));
      if (is_new) states.push_back(known->first);
      row[number] = known->second;
    }
    if (states.size() > kStatesMax) throw TooLarge{};
    table.next.push_back(std::move(row));
  }
  return table;
}

// Removes the steps to states from which no end can be reached.
void remove_dead_ends(Table& table) {
  std::vector<std::vector<std::uint32_t>> before(table.next.size());
  std::vector<bool> can_end = table.are_final;
  std::vector<std::uint32_t> open;
  for (std::uint32_t state = 0; state < table.next.size(); ++state) {
    if (can_end[state]) open.push_back(state);
    for (const std::uint32_t to : table.next[state]) {
      if (to != Table::kNone && (before[to].empty() || before[to].back() != state)) before[to].push_back(state);
    }
  }
  while (!open.empty()) {
    const std::uint32_t state = open.back();
    open.pop_back();
    for (const std::uint32_t from : before[state]) {
      if (can_end[from]) continue;
      can_end[from] = true;
      open.push_back(from);
    }
  }
  for (auto& row : table.next) {
    for (std::uint32_t& to : row) {
      if (to != Table::kNone && !can_end[to]) to = Table::kNone;
    }
  }
}

// The group of equal states to which each state belongs (Moore's algorithm).
std::vector<std::uint32_t> equal_states(const Table& table, Work& work) {
  std::vector<std::uint32_t> groups(table.next.size(), 0);
  for (std::size_t count = 1;;) {
    std::map<std::vector<std::uint32_t>, std::uint32_t> numbers;
    std::vector<std::uint32_t> finer;
    for (std::size_t state = 0; state < table.next.size(); ++state) {
      std::vector<std::uint32_t> key{groups[state], table.are_final[state] ? 1u : 0u};
      for (const std::uint32_t to : table.next[state]) key.push_back(to == Table::kNone ? Table::kNone : groups[to]);
      work.charge(key.size());
      finer.push_back(numbers.try_emplace(std::move(key), static_cast<std::uint32_t>(numbers.size())).first->second);
    }
    groups = std::move(finer);
    if (numbers.size() == count) return groups;
    count = numbers.size();
  }
}

// The groups of equal states in an automaton whose texts are bounded: equal states are known as soon as those behind them are.
std::vector<std::uint32_t> equal_states_of_bounded(const Table& table, Work& work) {
  std::vector<std::uint32_t> groups(table.next.size(), 0);
  std::map<std::vector<std::uint32_t>, std::uint32_t> numbers;
  for (std::size_t state = table.next.size(); state-- > 0;) {
    std::vector<std::uint32_t> key{table.are_final[state] ? 1u : 0u};
    for (const std::uint32_t to : table.next[state]) key.push_back(to == Table::kNone ? Table::kNone : groups[to]);
    work.charge(key.size());
    groups[state] = numbers.try_emplace(std::move(key), static_cast<std::uint32_t>(numbers.size())).first->second;
  }
  return groups;
}

TextAutomaton build(const TextLanguage& language, std::size_t states_max, Work& work) {
  Product product(language, work);
  Table table = explore(product, work);
  remove_dead_ends(table);
  // With a maximum each state is found before those behind it.
  const std::vector<std::uint32_t> groups = language.max ? equal_states_of_bounded(table, work) : equal_states(table, work);
  TextAutomaton made;
  std::vector<std::uint32_t> open{0};  // A state of each group that is reached, in the order of their numbers.
  std::map<std::uint32_t, std::uint32_t> numbers{{groups[0], 0}};
  for (std::size_t i = 0; i < open.size(); ++i) {
    TextAutomaton::State& state = made.states.emplace_back();
    state.is_final = table.are_final[open[i]];
    std::map<std::uint32_t, CharacterSet> to_sets;
    for (std::size_t number = 0; number < table.next[open[i]].size(); ++number) {
      const std::uint32_t to = table.next[open[i]][number];
      if (to == Table::kNone) continue;
      const auto [known, is_new] = numbers.try_emplace(groups[to], static_cast<std::uint32_t>(open.size()));
      if (is_new) open.push_back(to);
      const CharacterSet& characters = product.classes().characters[number];
      work.charge(characters.size());
      CharacterSet& set = to_sets[known->second];
      set.insert(set.end(), characters.begin(), characters.end());
    }
    for (auto& [to, set] : to_sets) made.states[i].steps.push_back({sorted_and_joined(std::move(set)), to});
    if (open.size() > states_max) throw TooLarge{};
  }
  if (made.states.size() == 1 && made.states.front().steps.empty() && !made.states.front().is_final) made.states.clear();
  return made;
}

}  // namespace

std::optional<TextAutomaton> make_automaton(const TextLanguage& language, AutomatonBudget& budget) {
  Work work(budget.work_left);
  try {
    return build(language, budget.states_max, work);
  } catch (const TooLarge&) {
    return std::nullopt;
  }
}

std::optional<bool> matches(const TextLanguage& language, std::string_view text, AutomatonBudget& budget) {
  Work work(budget.work_left);
  try {
    Product product(language, work);
    Product::State state = product.begin();
    while (!text.empty()) {
      const std::uint32_t code_point = take_code_point(text);
      const auto& intervals = product.classes().intervals;
      const auto after = std::ranges::upper_bound(intervals, code_point, {}, [](const auto& each) { return each.range.low; });
      work.charge(state.size());
      auto next = product.next(state, std::prev(after)->number);
      if (!next) return false;
      state = std::move(*next);
    }
    return product.is_final(state);
  } catch (const TooLarge&) {
    return std::nullopt;
  }
}

}  // namespace uma::grammar
