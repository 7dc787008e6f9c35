// A context-free grammar for the text of a generation. It is compiled once from GBNF (gbnf.h); a recogniser then reads bytes.
// Each compiled rule is an automaton over bytes whose steps may also call rules. A place of the recogniser is a set of (state,
// frame). A frame has the return points of a called rule; generalised LL parsers call this a graph-structured stack (Scott,
// Johnstone, "GLL Parsing", 2010), so left recursion and ambiguity cost no more than their places. Equal frames and places are
// shared: only the possible continuations matter, not the text before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/error.h"

namespace uma::grammar {

// Immutable: any thread. Every state can reach an end.
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
    State begin = 0;       // First state of the called rule.
    State to = 0;          // The state behind the call.
    bool is_last = false;  // Nothing follows `to`: the called rule returns to the caller's caller.
  };

  // The rule "root" matches the whole text. Errors: E_PROTO_003, with the line or the rule, for invalid GBNF, for a grammar
  // that is too large, and for a root without finite text.
  static Expected<std::shared_ptr<const Grammar>> parse(std::string_view gbnf);

  [[nodiscard]] State root() const { return root_; }
  [[nodiscard]] std::size_t bytes() const;  // Memory of the grammar.
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

// Matches text with a grammar, byte by byte, from any earlier place. Results for places are cached, so repeating a step costs
// one look-up. One per generation: not thread-safe.
class GrammarReader {
 public:
  using Place = std::uint32_t;
  static constexpr Place kNowhere = 0;
  static constexpr Place kStart = 1;
  // Bounds for grammars that are made to explode; where a bound is reached, nothing may follow.
  static constexpr std::size_t kPlacesMax = 1u << 17;
  static constexpr std::size_t kItemsMax = 2048;     // Items of one place.
  static constexpr std::size_t kStepsMax = 65'536;   // Steps of all items of a place, multiplied by the number of byte ranges.
  static constexpr std::size_t kKeptMax = 1u << 20;  // Items, steps and returns of all places.

  explicit GrammarReader(std::shared_ptr<const Grammar> grammar);

  // Limits the new work until the next call of this function (a unit is an item, a call or a step). Nothing may follow a place
  // that needs more work. By default there are only the limits above.
  void limit_work(std::uint64_t units) { work_until_ = work_ + units; }
  // The work so far, in the same units.
  [[nodiscard]] std::uint64_t work() const { return work_; }

  // The place after `byte`; kNowhere: the byte is not allowed. The place after kNowhere is kNowhere.
  [[nodiscard]] Place next(Place place, std::uint8_t byte);
  [[nodiscard]] Place next(Place place, std::string_view bytes);
  [[nodiscard]] bool can_end(Place place);
  [[nodiscard]] bool can_go_on(Place place);
  // The byte that must follow; nullopt: another one may, or the text may end.
  [[nodiscard]] std::optional<std::uint8_t> only_next(Place place);

 private:
  using Frame = std::uint32_t;  // 0: the frame of the root, which has no caller.
  struct Item {
    Grammar::State state = 0;
    Frame frame = 0;
    auto operator<=>(const Item&) const = default;
  };
  // Sorted and distinct. Looked up by hash, because long lists would be compared again at every level of a tree.
  using Items = std::vector<Item>;
  struct ItemsHash {
    std::size_t operator()(const Items& items) const;
  };
  struct Step {
    std::uint8_t low = 0;
    std::uint8_t high = 0;
    Place to = 0;
  };
  struct PlaceEntry {
    Items kernel;
    std::vector<Step> steps;  // Sorted and disjoint.
    bool is_expanded = false;
    bool can_end = false;
  };
  // A rule that is called at the current place. Its frame is added to frames_ afterwards.
  struct NewFrame {
    Grammar::State begin = 0;
    std::vector<Item> returns;
    bool has_returned = false;
    enum class Keeping : std::uint8_t { not_yet, under_way, done } keeping = Keeping::not_yet;
    Frame kept = 0;
  };
  static constexpr Frame kNewFrame = 1u << 31;  // Plus the index in new_frames_.

  // The return point of a call at the current place.
  struct Return {
    std::size_t callee = 0;  // Index in new_frames_.
    Item after;
    bool operator==(const Return&) const = default;
  };
  struct ReturnHash {
    std::size_t operator()(const Return& one) const {
      const std::uint64_t item = static_cast<std::uint64_t>(one.after.state) << 32 | one.after.frame;
      return std::hash<std::uint64_t>()(item * 0x9e3779b97f4a7c15ull ^ one.callee);
    }
  };

  // False: expanding the place needs more work than allowed.
  [[nodiscard]] bool is_known(Place place);
  Place intern(Items kernel);
  void expand(Place place);
  [[nodiscard]] bool add_item(Item item);
  [[nodiscard]] bool return_from(Frame frame, bool& can_end);
  [[nodiscard]] bool call(const Grammar::Call& called, Frame frame);
  [[nodiscard]] bool add_all_items(std::span<const Item> kernel, bool& can_end);
  [[nodiscard]] Frame kept(Frame frame);
  [[nodiscard]] std::vector<Step> steps_of_items();

  const std::shared_ptr<const Grammar> grammar_;  // Shared with other generations.
  std::vector<PlaceEntry> places_;
  std::unordered_map<Items, Place, ItemsHash> place_of_;
  std::vector<std::vector<Item>> frames_;  // The return points of each frame, with their frames.
  std::unordered_map<Items, Frame, ItemsHash> frame_of_;
  std::size_t kept_ = 0;
  std::uint64_t work_ = 0;
  std::uint64_t work_until_ = UINT64_MAX;
  // Items of the current place.
  std::vector<Item> items_;
  std::unordered_set<std::uint64_t> seen_;
  std::unordered_set<Return, ReturnHash> seen_returns_;
  std::vector<NewFrame> new_frames_;
  std::unordered_map<Grammar::State, std::size_t> new_frame_of_;
};

}  // namespace uma::grammar
