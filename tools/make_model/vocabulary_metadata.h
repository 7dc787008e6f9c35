// The metadata of a vocabulary.
#pragma once

#include <gguf.h>

#include "make_model/vocabulary.h"

namespace uma {

// `tokenizer`: the library's name for it, such as "llama".
void set_tokens(gguf_context* gguf, const char* tokenizer, const Vocabulary& vocabulary);

struct SentencePieces {
  bool ends_texts = false;  // A text has </s> behind it.
  bool adds_space = false;  // A text begins with a space.
};

// The marks of a vocabulary for SentencePiece. A text begins with <s>.
void set_sentence_pieces(gguf_context* gguf, const SentencePieces& pieces);

}  // namespace uma
