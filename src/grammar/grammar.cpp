#include "grammar/grammar.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <format>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "grammar/gbnf.h"
#include "grammar/grammar_parts.h"

namespace uma::grammar {

// Compiles rules to automata, first with empty steps (Thompson's construction), then without.
class GrammarBuilder {
 public:
  // A rule of `parts` has an empty body here.
  GrammarBuilder(std::span<const gbnf::Rule> rules, std::span<const GrammarPart> parts) : rules_(rules), parts_(parts) {}

  Expected<std::shared_ptr<const Grammar>> build() {
    const auto root = std::ranges::find(rules_, "root", &gbnf::Rule::name);
    if (root == rules_.end()) return fail(ErrorCode::proto_field, "the grammar has no rule \"root\"");
    for (const gbnf::Rule& rule : rules_) {
      begins_.push_back(new_state());
      const State end = compile(rule.body, begins_.back());
      if (is_too_large_) return too_large();
      drafts_[end].is_final = true;
    }
    remove_empty_steps();
    if (is_too_large_) return too_large();
    remove_dead_ends();
    if (has_crowded_place()) {
      return fail(ErrorCode::proto_field, std::format("the grammar is too large: a place of it goes on with more than {} rules",
                                                      GrammarReader::kItemsMax));
    }
    const State begin = index_[begins_[static_cast<std::size_t>(root - rules_.begin())]];
    if (!can_end_[begin]) return fail(ErrorCode::proto_field, "the rule \"root\" has no finite text");
    return flatten(begin);
  }

 private:
  using State = Grammar::State;
  struct RuleCall {
    std::size_t rule = 0;
    State to = 0;
    auto operator<=>(const RuleCall&) const = default;
  };
  struct Draft {
    std::vector<Grammar::ByteStep> bytes;
    std::vector<RuleCall> calls;
    std::vector<State> empty;
    bool is_final = false;
  };
  static constexpr std::size_t kDraftsMax = 4 * Grammar::kStatesMax;
  // Limit for the nodes and bytes of expanded repetitions, including those that make no state.
  static constexpr std::size_t kWorkMax = 4 * Grammar::kStepsMax;
  static constexpr std::uint32_t kNoIndex = UINT32_MAX;

  static std::unexpected<Error> too_large() {
    return fail(ErrorCode::proto_field,
                std::format("the grammar is too large: with expanded repetitions it needs more than {} states or {} steps",
                            Grammar::kStatesMax, Grammar::kStepsMax));
  }

  State new_state() {
    if (drafts_.size() >= kDraftsMax) {
      is_too_large_ = true;
      return 0;
    }
    drafts_.emplace_back();
    return static_cast<State>(drafts_.size() - 1);
  }
  void join(State from, State to) { drafts_[from].empty.push_back(to); }
  void note_work() {
    if (++work_ > kWorkMax) is_too_large_ = true;
  }

  // Compiles `node` from the state `from`, and returns its last state.
  State compile(const gbnf::Node& node, State from) {
    note_work();
    if (is_too_large_) return from;
    switch (node.kind) {
      case gbnf::Node::Kind::sequence:
        for (const gbnf::Node& child : node.children) {
          if (is_too_large_) break;
          from = compile(child, from);
        }
        return from;
      case gbnf::Node::Kind::alternatives: {
        if (node.children.size() == 1) return compile(node.children.front(), from);
        const State end = new_state();
        Tree tree;
        for (const gbnf::Node& child : node.children) {
          if (is_too_large_) break;
          join(is_literal(child) ? compile_literal(child, from, tree) : compile(child, from), end);
        }
        return end;
      }
      case gbnf::Node::Kind::characters: {
        const State end = new_state();
        tails_.clear();
        for (const gbnf::Range& range : node.ranges) {
          if (is_too_large_) break;
          add_code_points(range, from, end);
        }
        return end;
      }
      case gbnf::Node::Kind::rule: {
        const State end = new_state();
        drafts_[from].calls.push_back({node.rule, end});
        return end;
      }
      case gbnf::Node::Kind::repetition:
        break;
    }
    return compile_repetition(node, from);
  }

  // --- literals among alternatives: common beginnings share their states, so that a place has few of them

  using Tree = std::map<std::pair<State, std::uint8_t>, State>;

  static bool is_literal(const gbnf::Node& node) {
    if (node.kind == gbnf::Node::Kind::characters) return node.ranges.size() == 1 && node.ranges[0].low == node.ranges[0].high;
    return node.kind == gbnf::Node::Kind::sequence && std::ranges::all_of(node.children, is_literal);
  }

  State compile_literal(const gbnf::Node& node, State from, Tree& tree) {
    note_work();
    if (node.kind == gbnf::Node::Kind::sequence) {
      for (const gbnf::Node& child : node.children) {
        if (is_too_large_) break;
        from = compile_literal(child, from, tree);
      }
      return from;
    }
    std::string bytes;
    append_utf8(bytes, node.ranges.front().low);
    for (const char byte : bytes) {
      const auto value = static_cast<std::uint8_t>(byte);
      const auto [known, is_new] = tree.try_emplace({from, value}, 0);
      if (is_new) {
        known->second = new_state();
        drafts_[from].bytes.push_back({value, value, known->second});
      }
      from = known->second;
    }
    return from;
  }

  State compile_repetition(const gbnf::Node& node, State from) {
    const gbnf::Node& repeated = node.children.front();
    for (std::int32_t i = 0; i < node.min && !is_too_large_; ++i) {
      const State next = compile(repeated, from);
      if (next == from) return from;  // The node has no text, so repeating it changes nothing.
      from = next;
    }
    const State end = new_state();
    if (node.max < 0) {
      const State loop = new_state();
      join(from, loop);
      join(compile(repeated, loop), loop);
      join(loop, end);
      return end;
    }
    join(from, end);
    for (std::int32_t i = node.min; i < node.max && !is_too_large_; ++i) {
      from = compile(repeated, from);
      join(from, end);
    }
    return end;
  }

  // --- characters as UTF-8

  void add_code_points(gbnf::Range range, State from, State to) {
    constexpr std::array<gbnf::Range, 5> kEqualLengths = {
        {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}}};  // Surrogates are left out.
    for (const gbnf::Range& lengths : kEqualLengths) {
      const gbnf::Range part{std::max(range.low, lengths.low), std::min(range.high, lengths.high)};
      if (part.low <= part.high) add_equally_long(part, from, to);
    }
  }

  // Splits a range into ranges in which each byte has an independent range: after the first byte that varies, all bytes are
  // free.
  void add_equally_long(gbnf::Range range, State from, State to) {
    const int following = range.low < 0x80 ? 0 : range.low < 0x800 ? 1 : range.low < 0x10000 ? 2 : 3;
    for (int i = 1; i <= following; ++i) {
      const std::uint32_t free = (1u << (6 * i)) - 1;
      if ((range.low & ~free) == (range.high & ~free)) continue;
      if ((range.low & free) != 0) {
        add_equally_long({range.low, range.low | free}, from, to);
        return add_equally_long({(range.low | free) + 1, range.high}, from, to);
      }
      if ((range.high & free) != free) {
        add_equally_long({range.low, (range.high & ~free) - 1}, from, to);
        return add_equally_long({range.high & ~free, range.high}, from, to);
      }
    }
    constexpr std::array<std::uint32_t, 4> kLeads = {0x00, 0xC0, 0xE0, 0xF0};
    const auto byte_at = [&](std::uint32_t code_point, int i) {
      const std::uint32_t bits = code_point >> (6 * (following - i));
      return static_cast<std::uint8_t>(i == 0 ? kLeads[static_cast<std::size_t>(following)] | bits : 0x80 | (bits & 0x3F));
    };
    for (int i = following; i >= 0 && !is_too_large_; --i) {
      note_work();
      const std::uint8_t low = byte_at(range.low, i);
      const std::uint8_t high = byte_at(range.high, i);
      if (i == 0) {
        drafts_[from].bytes.push_back({low, high, to});
        return;
      }
      // Characters of one class share their last bytes.
      const auto [tail, is_new] = tails_.try_emplace({low, high, to}, 0);
      if (is_new) {
        tail->second = new_state();
        drafts_[tail->second].bytes.push_back({low, high, to});
      }
      to = tail->second;
    }
  }

  // --- without empty steps

  void remove_empty_steps() {
    index_.assign(drafts_.size(), kNoIndex);
    std::vector<State> wanted;
    const auto want = [&](State state) {
      if (index_[state] != kNoIndex) return;
      index_[state] = static_cast<std::uint32_t>(wanted.size());
      wanted.push_back(state);
    };
    for (const State begin : begins_) want(begin);
    std::vector<std::uint32_t> seen(drafts_.size(), kNoIndex);
    std::vector<State> open;
    std::size_t steps = 0;
    std::size_t visits = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      Draft& made = states_.emplace_back();
      open.assign(1, wanted[i]);
      seen[wanted[i]] = static_cast<std::uint32_t>(i);
      while (!open.empty()) {
        const Draft& draft = drafts_[open.back()];
        open.pop_back();
        made.is_final |= draft.is_final;
        made.bytes.insert(made.bytes.end(), draft.bytes.begin(), draft.bytes.end());
        made.calls.insert(made.calls.end(), draft.calls.begin(), draft.calls.end());
        for (const State next : draft.empty) {
          if (std::exchange(seen[next], static_cast<std::uint32_t>(i)) != i) open.push_back(next);
        }
        visits += 1 + draft.empty.size();
      }
      for (Grammar::ByteStep& step : made.bytes) {
        want(step.to);
        step.to = index_[step.to];
      }
      for (RuleCall& call : made.calls) {
        want(call.to);
        call.to = index_[call.to];
      }
      std::ranges::sort(made.calls);
      const auto repeated = std::ranges::unique(made.calls);
      made.calls.erase(repeated.begin(), repeated.end());
      steps += made.bytes.size() + made.calls.size();
      if (steps > Grammar::kStepsMax || wanted.size() > Grammar::kStatesMax || visits > 16 * kDraftsMax) {
        is_too_large_ = true;
        return;
      }
    }
  }

  // Finds the states that can reach an end, backwards from the ends, and removes the steps to all others.
  void remove_dead_ends() {
    struct Before {
      State state = 0;
      std::optional<std::size_t> called;  // The called rule, which must also reach its end.
    };
    std::vector<std::vector<Before>> before(states_.size());
    for (State state = 0; state < states_.size(); ++state) {
      for (const Grammar::ByteStep& step : states_[state].bytes) before[step.to].push_back({state, std::nullopt});
      for (const RuleCall& call : states_[state].calls) before[call.to].push_back({state, call.rule});
    }
    can_end_.assign(states_.size(), false);
    std::vector<State> open;
    const auto mark = [&](State state) {
      if (can_end_[state]) return;
      can_end_[state] = true;
      open.push_back(state);
    };
    // The first states are the beginnings of the rules, in order.
    std::vector<std::vector<State>> waiting(rules_.size());  // Waiting for the rule to reach its end.
    for (State state = 0; state < states_.size(); ++state) {
      if (states_[state].is_final) mark(state);
    }
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      for (const Before& step : before[state]) {
        if (!step.called || can_end_[*step.called]) {
          mark(step.state);
        } else {
          waiting[*step.called].push_back(step.state);
        }
      }
      if (state < waiting.size()) {
        for (const State waits : std::exchange(waiting[state], {})) mark(waits);
      }
    }
    for (Draft& state : states_) {
      std::erase_if(state.bytes, [&](const Grammar::ByteStep& step) { return !can_end_[step.to]; });
      std::erase_if(state.calls, [&](const RuleCall& call) { return !can_end_[call.to] || !can_end_[call.rule]; });
    }
  }

  // Whether a state calls more rules, and these at their beginnings, than a reader keeps for a place.
  [[nodiscard]] bool has_crowded_place() const {
    constexpr std::size_t kFew = 64;
    std::vector<std::uint32_t> seen(rules_.size(), kNoIndex);
    std::size_t visits = 0;
    for (State state = 0; state < states_.size(); ++state) {
      if (states_[state].calls.size() < kFew) continue;
      std::vector<State> open{state};
      for (std::size_t i = 0; i < open.size(); ++i) {
        for (const RuleCall& call : states_[open[i]].calls) {
          // The first states are the beginnings of the rules, in order.
          if (std::exchange(seen[call.rule], state) != state) open.push_back(static_cast<State>(call.rule));
        }
        visits += states_[open[i]].calls.size();
      }
      if (visits > 16 * kDraftsMax) return true;
      if (open.size() > GrammarReader::kItemsMax) return true;
    }
    return false;
  }

  std::shared_ptr<const Grammar> flatten(State root) {
    const std::shared_ptr<Grammar> made(new Grammar());
    made->root_ = root;
    // The states of the parts follow the others.
    std::vector<State> part_begins;
    std::size_t states_count = states_.size();
    for (const GrammarPart& part : parts_) {
      part_begins.push_back(static_cast<State>(states_count) + part.grammar.root_);
      states_count += part.grammar.states_.size();
    }
    const auto begin_of = [&](std::size_t rule) {
      const auto part = std::ranges::find(parts_, rules_[rule].name, &GrammarPart::rule);
      return part == parts_.end() ? static_cast<State>(rule) : part_begins[static_cast<std::size_t>(part - parts_.begin())];
    };
    for (const Draft& state : states_) {
      made->states_.push_back({.steps_begin = static_cast<std::uint32_t>(made->byte_steps_.size()),
                               .steps_count = static_cast<std::uint32_t>(state.bytes.size()),
                               .calls_begin = static_cast<std::uint32_t>(made->calls_.size()),
                               .calls_count = static_cast<std::uint32_t>(state.calls.size()),
                               .is_final = state.is_final});
      made->byte_steps_.insert(made->byte_steps_.end(), state.bytes.begin(), state.bytes.end());
      for (const RuleCall& call : state.calls) {
        const Draft& to = states_[call.to];
        made->calls_.push_back(
            {.begin = begin_of(call.rule), .to = call.to, .is_last = to.is_final && to.bytes.empty() && to.calls.empty()});
      }
    }
    for (const GrammarPart& part : parts_) append(part.grammar, *made);
    return made;
  }

  static void append(const Grammar& part, Grammar& whole) {
    const auto states = static_cast<State>(whole.states_.size());
    const auto steps = static_cast<std::uint32_t>(whole.byte_steps_.size());
    const auto calls = static_cast<std::uint32_t>(whole.calls_.size());
    for (Grammar::StateEntry state : part.states_) {
      state.steps_begin += steps;
      state.calls_begin += calls;
      whole.states_.push_back(state);
    }
    for (Grammar::ByteStep step : part.byte_steps_) {
      step.to += states;
      whole.byte_steps_.push_back(step);
    }
    for (Grammar::Call call : part.calls_) {
      call.begin += states;
      call.to += states;
      whole.calls_.push_back(call);
    }
  }

  const std::span<const gbnf::Rule> rules_;
  const std::span<const GrammarPart> parts_;
  std::vector<Draft> drafts_;
  std::vector<State> begins_;                                             // First state of each rule.
  std::map<std::tuple<std::uint8_t, std::uint8_t, State>, State> tails_;  // Tails of the current class.
  std::size_t work_ = 0;
  bool is_too_large_ = false;
  // States without empty steps.
  std::vector<Draft> states_;
  std::vector<std::uint32_t> index_;  // The state of each draft.
  std::vector<bool> can_end_;
};

Expected<std::shared_ptr<const Grammar>> Grammar::parse(std::string_view gbnf) {
  return parse_with_parts(gbnf, {});
}

Expected<std::shared_ptr<const Grammar>> parse_with_parts(std::string_view gbnf, std::span<const GrammarPart> parts) {
  std::vector<std::string_view> names;
  for (const GrammarPart& part : parts) names.push_back(part.rule);
  const auto rules = gbnf::read(gbnf, names);
  if (!rules) return std::unexpected(rules.error());
  return GrammarBuilder(*rules, parts).build();
}

std::size_t Grammar::bytes() const {
  return states_.size() * sizeof(StateEntry) + byte_steps_.size() * sizeof(ByteStep) + calls_.size() * sizeof(Call);
}

// --- reading

GrammarReader::GrammarReader(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  places_.emplace_back().is_expanded = true;  // kNowhere
  frames_.emplace_back();
  UMA_CHECK(intern({{.state = grammar_->root(), .frame = 0}}) == kStart);
}

GrammarReader::Place GrammarReader::next(Place place, std::uint8_t byte) {
  if (!is_known(place)) return kNowhere;
  for (const Step& step : places_[place].steps) {
    if (byte <= step.high) return byte >= step.low ? step.to : kNowhere;
  }
  return kNowhere;
}

GrammarReader::Place GrammarReader::next(Place place, std::string_view bytes) {
  for (const char byte : bytes) {
    place = next(place, static_cast<std::uint8_t>(byte));
    if (place == kNowhere) break;
  }
  return place;
}

bool GrammarReader::can_end(Place place) {
  return is_known(place) && places_[place].can_end;
}

bool GrammarReader::can_go_on(Place place) {
  return is_known(place) && !places_[place].steps.empty();
}

std::optional<std::uint8_t> GrammarReader::only_next(Place place) {
  if (!is_known(place) || places_[place].can_end || places_[place].steps.size() != 1) return std::nullopt;
  const Step& step = places_[place].steps.front();
  return step.low == step.high ? std::optional(step.low) : std::nullopt;
}

std::size_t GrammarReader::ItemsHash::operator()(const Items& items) const {
  std::uint64_t hash = items.size();
  for (const Item& item : items) {
    hash ^= static_cast<std::uint64_t>(item.state) << 32 | item.frame;
    hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15ull;
  }
  return hash ^ (hash >> 29);
}

GrammarReader::Place GrammarReader::intern(Items kernel) {
  if (const auto known = place_of_.find(kernel); known != place_of_.end()) return known->second;
  kept_ += kernel.size() + 1;
  if (kept_ > kKeptMax || places_.size() >= kPlacesMax) return kNowhere;
  const auto place = static_cast<Place>(places_.size());
  place_of_.emplace(kernel, place);
  places_.push_back({.kernel = std::move(kernel), .steps = {}});
  return place;
}

bool GrammarReader::is_known(Place place) {
  if (!places_[place].is_expanded && work_ < work_until_) expand(place);
  return places_[place].is_expanded;
}

void GrammarReader::expand(Place place) {
  items_.clear();
  seen_.clear();
  seen_returns_.clear();
  new_frames_.clear();
  new_frame_of_.clear();
  bool can_end = false;
  std::vector<Step> steps;
  const std::uint64_t work_before = work_;
  const bool is_whole = add_all_items(places_[place].kernel, can_end);
  if (is_whole) steps = steps_of_items();
  kept_ += steps.size() + (work_ - work_before) / 16;  // Work without stored results also counts.
  PlaceEntry& entry = places_[place];
  entry.is_expanded = true;
  entry.can_end = is_whole && can_end;
  entry.steps = std::move(steps);
}

// Adds the kernel and all items that can be reached without a byte. False: too much work.
bool GrammarReader::add_all_items(std::span<const Item> kernel, bool& can_end) {
  for (const Item& item : kernel) {
    if (!add_item(item)) return false;
  }
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const Item item = items_[i];
    if (grammar_->is_final(item.state) && !return_from(item.frame, can_end)) return false;
    for (const Grammar::Call& called : grammar_->calls(item.state)) {
      ++work_;
      if (!call(called, item.frame)) return false;
    }
  }
  return true;
}

bool GrammarReader::add_item(Item item) {
  ++work_;
  if (!seen_.insert(static_cast<std::uint64_t>(item.state) << 32 | item.frame).second) return true;
  items_.push_back(item);
  return items_.size() <= kItemsMax;
}

bool GrammarReader::return_from(Frame frame, bool& can_end) {
  if (frame == 0) can_end = true;
  if (frame >= kNewFrame) {
    NewFrame& called = new_frames_[frame - kNewFrame];
    called.has_returned = true;
    return std::ranges::all_of(called.returns, [&](const Item& item) { return add_item(item); });
  }
  return std::ranges::all_of(frames_[frame], [&](const Item& item) { return add_item(item); });
}

bool GrammarReader::call(const Grammar::Call& called, Frame frame) {
  if (called.is_last) return add_item({called.begin, frame});
  const auto [entry, is_new] = new_frame_of_.try_emplace(called.begin, new_frames_.size());
  const auto new_frame = static_cast<Frame>(kNewFrame + entry->second);
  if (is_new) new_frames_.emplace_back();
  NewFrame& callee = new_frames_[entry->second];
  const Item after{called.to, frame};
  if (!seen_returns_.insert({.callee = entry->second, .after = after}).second) return true;
  callee.returns.push_back(after);
  if (callee.returns.size() > kItemsMax) return false;
  if (callee.has_returned && !add_item(after)) return false;
  return !is_new || add_item({called.begin, new_frame});
}

// Returns the equal frame in frames_. Frames in cycles (left recursion) are always new; each place is expanded only once.
GrammarReader::Frame GrammarReader::kept(Frame frame) {
  if (frame < kNewFrame) return frame;
  const std::size_t index = frame - kNewFrame;
  const auto add = [&] {
    frames_.emplace_back();
    return static_cast<Frame>(frames_.size() - 1);
  };
  if (new_frames_[index].keeping == NewFrame::Keeping::done) return new_frames_[index].kept;
  if (new_frames_[index].keeping == NewFrame::Keeping::under_way) {
    if (new_frames_[index].kept == 0) new_frames_[index].kept = add();
    return new_frames_[index].kept;
  }
  new_frames_[index].keeping = NewFrame::Keeping::under_way;
  Items returns = new_frames_[index].returns;
  work_ += returns.size() + 1;
  for (Item& item : returns) item.frame = kept(item.frame);
  std::ranges::sort(returns);
  NewFrame& done = new_frames_[index];
  done.keeping = NewFrame::Keeping::done;
  kept_ += returns.size() + 1;
  if (done.kept == 0) {
    const auto known = frame_of_.find(returns);
    if (known != frame_of_.end()) return done.kept = known->second;
    done.kept = add();
    frame_of_.emplace(returns, done.kept);
  }
  frames_[done.kept] = std::move(returns);
  return done.kept;
}

std::vector<GrammarReader::Step> GrammarReader::steps_of_items() {
  struct Move {
    Grammar::ByteStep step;
    Frame frame = 0;
  };
  std::vector<Move> moves;
  std::bitset<257> begins;
  for (const Item& item : items_) {
    for (const Grammar::ByteStep& step : grammar_->byte_steps(item.state)) {
      moves.push_back({step, item.frame});
      begins.set(step.low);
      begins.set(step.high + 1u);
    }
    if (moves.size() > kStepsMax) return {};
  }
  work_ += moves.size();
  // All bytes between two neighbours in `begins` lead to the same place.
  std::vector<std::uint32_t> borders;
  std::array<std::size_t, 257> part_of{};
  for (std::uint32_t byte = 0; byte <= 256; ++byte) {
    if (begins[byte]) borders.push_back(byte);
    part_of[byte] = borders.size();
  }
  std::vector<std::vector<Item>> kernels(borders.size() + 1);
  std::size_t parts = 0;
  for (const Move& move : moves) {
    parts += part_of[move.step.high] - part_of[move.step.low] + 1;
    if (parts > kStepsMax) return {};
  }
  work_ += parts;
  for (const Move& move : moves) {
    const Item item{move.step.to, kept(move.frame)};
    for (std::size_t part = part_of[move.step.low]; part <= part_of[move.step.high]; ++part) kernels[part].push_back(item);
  }
  std::vector<Step> steps;
  for (std::size_t part = 1; part < borders.size(); ++part) {
    std::vector<Item>& kernel = kernels[part];
    if (kernel.empty()) continue;
    std::ranges::sort(kernel);
    const auto repeated = std::ranges::unique(kernel);
    kernel.erase(repeated.begin(), repeated.end());
    const Place to = intern(std::move(kernel));
    const auto low = static_cast<std::uint8_t>(borders[part - 1]);
    const auto high = static_cast<std::uint8_t>(borders[part] - 1);
    if (to == kNowhere) continue;
    if (!steps.empty() && steps.back().to == to && steps.back().high + 1 == low) {
      steps.back().high = high;
    } else {
      steps.push_back({low, high, to});
    }
  }
  return steps;
}

}  // namespace uma::grammar
