// Finds texts in a stream of bytes, whatever their number, in one pass: Aho, Corasick, "Efficient String Matching: An Aid to
// Bibliographic Search" (1975). It is for `dry_sequence_breakers`, whose limits keep it small. Immutable: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace uma::llm {

class TextFinder {
 public:
  // The longest beginning of a text that the stream ends with.
  using State = std::uint16_t;
  static constexpr State kStart = 0;

  // Requires: texts that are not empty, of at most 65,535 bytes together.
  explicit TextFinder(std::span<const std::string> texts);

  // Moves `state` behind further bytes. True: a text ends in them.
  [[nodiscard]] bool read(State& state, std::string_view bytes) const;
  // Whether `text` has one of the texts.
  [[nodiscard]] bool is_in(std::string_view text) const {
    State state = kStart;
    return read(state, text);
  }

 private:
  struct Node {
    std::vector<std::pair<unsigned char, State>> next;
    State fallback = kStart;  // The longest other state that this one ends with.
    bool ends_text = false;   // A text ends here.
  };

  [[nodiscard]] State next_of(State state, unsigned char byte) const;

  std::array<State, 256> first_{};  // The states of one byte; kStart: no text begins with it.
  std::vector<Node> nodes_;
};

}  // namespace uma::llm
