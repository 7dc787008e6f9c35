#include "llm/text_finder.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace uma::llm {

TextFinder::TextFinder(std::span<const std::string> texts) : nodes_(1) {
  for (const std::string& text : texts) {
    State state = kStart;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      State next = state == kStart ? first_[byte] : next_of(state, byte);
      if (next == kStart) {
        UMA_CHECK(nodes_.size() <= std::numeric_limits<State>::max());
        next = static_cast<State>(nodes_.size());
        nodes_.emplace_back();
        if (state == kStart) first_[byte] = next;
        nodes_[state].next.emplace_back(byte, next);
      }
      state = next;
    }
    nodes_[state].is_end = true;
  }
  // By length: a state is shorter than those that follow it.
  std::vector<State> open{kStart};
  for (std::size_t i = 0; i < open.size(); ++i) {
    for (const auto& [byte, next] : nodes_[open[i]].next) {
      open.push_back(next);
      if (open[i] == kStart) continue;
      State shorter = nodes_[open[i]].shorter;
      while (shorter != kStart && next_of(shorter, byte) == kStart) shorter = nodes_[shorter].shorter;
      nodes_[next].shorter = shorter == kStart ? first_[byte] : next_of(shorter, byte);
      nodes_[next].is_end = nodes_[next].is_end || nodes_[nodes_[next].shorter].is_end;
    }
  }
}

// kStart: there is no such state.
TextFinder::State TextFinder::next_of(State state, unsigned char byte) const {
  const auto& next = nodes_[state].next;
  const auto found = std::ranges::find(next, byte, &std::pair<unsigned char, State>::first);
  return found == next.end() ? kStart : found->second;
}

bool TextFinder::read(State& state, std::string_view bytes) const {
  bool is_found = false;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    State next = kStart;
    for (; state != kStart && next == kStart; state = nodes_[state].shorter) next = next_of(state, byte);
    state = next == kStart ? first_[byte] : next;
    is_found = is_found || nodes_[state].is_end;
  }
  return is_found;
}

}  // namespace uma::llm
