#include "llm/sampling/text_finder.h"

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
    nodes_[state].ends_text = true;
  }
  // Breadth first, so that the fallbacks of shorter states are known.
  std::vector<State> queue{kStart};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const State from = queue[i];
    for (const auto& [byte, next] : nodes_[from].next) {
      queue.push_back(next);
      if (from == kStart) continue;
      State fallback = nodes_[from].fallback;
      while (fallback != kStart && next_of(fallback, byte) == kStart) fallback = nodes_[fallback].fallback;
      nodes_[next].fallback = fallback == kStart ? first_[byte] : next_of(fallback, byte);
      nodes_[next].ends_text = nodes_[next].ends_text || nodes_[nodes_[next].fallback].ends_text;
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
    for (; state != kStart && next == kStart; state = nodes_[state].fallback) next = next_of(state, byte);
    state = next == kStart ? first_[byte] : next;
    is_found = is_found || nodes_[state].ends_text;
  }
  return is_found;
}

}  // namespace uma::llm
