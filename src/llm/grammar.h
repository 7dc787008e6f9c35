// A context-free grammar that a generation's text must follow. Compiled once from GBNF (gbnf.h); then a recogniser reads bytes.
//
// Compiled, each rule is an automaton over bytes whose steps may also be calls of rules. A place of the recogniser is a set of
// (state, frame); a frame says where a rule that was called returns to, and to whom: what generalised LL parsers call a graph-
// structured stack (Scott, Johnstone, "GLL Parsing", 2010), so left recursion and ambiguity cost no more than their places.
// Equal frames and places are made once: what a text has behind it does not matter, only what may follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/error.h"

namespace uma::llm {

// Immutable: any thread. Every state of it can reach an end.
class Grammar {
 public:
  static constexpr std::size_t kStatesMax = 65'536;
  static constexpr std::size_t kStepsMax = 262'144;

  using State = std::uint32_t;
  struct ByteStep {
    std::uint8_t low = 0;
    std::uint8_t high = 0;
    State to = 0;
  };
  struct Call {
    State begin = 0;       // of the rule
    State to = 0;          // where it goes on after the rule
    bool is_last = false;  // nothing comes after `to`: the rule returns for its caller
  };

  // The rule "root" is the whole text. Errors: E_PROTO_003, with the line or the rule, for what is no GBNF, for a grammar that
  // is too large, and for one whose root has no finite text.
  static Expected<std::shared_ptr<const Grammar>> parse(std::string_view gbnf);

  [[nodiscard]] State root() const { return root_; }
  [[nodiscard]] std::size_t bytes() const;  // of memory
  [[nodiscard]] bool is_final(State state) const { return states_[state].is_final; }
  [[nodiscard]] std::span<const ByteStep> byte_steps(State state) const {
    return std::span(byte_steps_).subspan(states_[state].steps_begin, states_[state].steps_count);
  }
  [[nodiscard]] std::span<const Call> calls(State state) const {
    return std::span(calls_).subspan(states_[state].calls_begin, states_[state].calls_count);
  }

 private:
  friend class GrammarBuilder;
  struct StateEntry {
    std::uint32_t steps_begin = 0;
    std::uint32_t steps_count = 0;
    std::uint32_t calls_begin = 0;
    std::uint32_t calls_count = 0;
    bool is_final = false;
  };

  Grammar() = default;

  std::vector<StateEntry> states_;
  std::vector<ByteStep> byte_steps_;
  std::vector<Call> calls_;
  State root_ = 0;
};

// Reads text along a grammar, byte by byte, from any place that it has seen. Keeps what it found out about places, so going
// the same way again costs a look-up. One per generation: not thread-safe.
class GrammarReader {
 public:
  using Place = std::uint32_t;
  static constexpr Place kNowhere = 0;
  static constexpr Place kStart = 1;
  // Bounds for grammars made to explode; where one is reached, nothing may follow.
  static constexpr std::size_t kPlacesMax = 1u << 17;
  static constexpr std::size_t kItemsMax = 2048;     // of one place
  static constexpr std::size_t kStepsMax = 65'536;   // of the items of one place, for each part of the bytes that they divide
  static constexpr std::size_t kKeptMax = 1u << 20;  // items, steps and returns of all places

  explicit GrammarReader(std::shared_ptr<const Grammar> grammar);

  // Until the next call no more than about so much is found out that is not known yet (a unit is an item, a call or a step):
  // nothing may follow a place of which that is too much. By default there is no limit but those above.
  void limit_work(std::uint64_t units) { work_until_ = work_ + units; }
  // What was found out so far, in the same units.
  [[nodiscard]] std::uint64_t work() const { return work_; }

  // The place after `byte`; kNowhere: it may not come here. Also from kNowhere.
  [[nodiscard]] Place next(Place place, std::uint8_t byte);
  [[nodiscard]] Place next(Place place, std::string_view bytes);
  [[nodiscard]] bool can_end(Place place);
  [[nodiscard]] bool can_go_on(Place place);

 private:
  using Frame = std::uint32_t;  // 0: of the root, which returns to nobody
  struct Item {
    Grammar::State state = 0;
    Frame frame = 0;
    auto operator<=>(const Item&) const = default;
  };
  struct Step {
    std::uint8_t low = 0;
    std::uint8_t high = 0;
    Place to = 0;
  };
  struct PlaceEntry {
    std::vector<Item> kernel;  // sorted
    std::vector<Step> steps;   // sorted, apart
    bool is_expanded = false;
    bool can_end = false;
  };
  // A rule that is called at the place that is being expanded. Its frame becomes one of frames_ afterwards.
  struct NewFrame {
    Grammar::State begin = 0;
    std::vector<Item> returns;
    bool has_returned = false;
    enum class Keeping : std::uint8_t { not_yet, under_way, done } keeping = Keeping::not_yet;
    Frame kept = 0;
  };
  static constexpr Frame kNewFrame = 1u << 31;  // + index in new_frames_

  // What a call of a rule at the place that is being expanded returns to.
  struct Return {
    std::size_t callee = 0;  // in new_frames_
    Item after;
    bool operator==(const Return&) const = default;
  };
  struct ReturnHash {
    std::size_t operator()(const Return& one) const {
      const std::uint64_t item = static_cast<std::uint64_t>(one.after.state) << 32 | one.after.frame;
      return std::hash<std::uint64_t>()(item * 0x9e3779b97f4a7c15ull ^ one.callee);
    }
  };

  // False: it would take more work than is left.
  [[nodiscard]] bool is_known(Place place);
  Place intern(std::vector<Item> kernel);
  void expand(Place place);
  [[nodiscard]] bool add_item(Item item);
  [[nodiscard]] bool return_from(Frame frame, bool& can_end);
  [[nodiscard]] bool call(const Grammar::Call& called, Frame frame);
  [[nodiscard]] bool add_all_items(std::span<const Item> kernel, bool& can_end);
  [[nodiscard]] Frame kept(Frame frame);
  [[nodiscard]] std::vector<Step> steps_of_items();

  const std::shared_ptr<const Grammar> grammar_;  // shared with other generations
  std::vector<PlaceEntry> places_;
  std::map<std::vector<Item>, Place> place_of_;
  std::vector<std::vector<Item>> frames_;  // where each returns to, and with which frame
  std::map<std::vector<Item>, Frame> frame_of_;
  std::size_t kept_ = 0;
  std::uint64_t work_ = 0;
  std::uint64_t work_until_ = UINT64_MAX;
  // Of the place that is being expanded.
  std::vector<Item> items_;
  std::unordered_set<std::uint64_t> seen_;
  std::unordered_set<Return, ReturnHash> seen_returns_;
  std::vector<NewFrame> new_frames_;
  std::unordered_map<Grammar::State, std::size_t> new_frame_of_;
};

}  // namespace uma::llm
