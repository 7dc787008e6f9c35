// The metadata of models whose weights are set by hand (hand_layer.h).
#pragma once

#include <cstdint>
#include <string>

#include <gguf.h>

#include "make_model/vocabulary.h"

namespace uma {

inline constexpr int kHandContextTokens = 131072;

struct HandModel {
  std::string name{};
  std::uint32_t layers = 0;
  std::uint32_t feed_forward = 0;
  std::string chat_template{};
};

// `vocabulary` is one for SentencePiece, without the leading space.
void set_hand_metadata(gguf_context* gguf, const HandModel& model, const Vocabulary& vocabulary);

}  // namespace uma
