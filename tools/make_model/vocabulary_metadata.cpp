#include "make_model/vocabulary_metadata.h"

#include <vector>

namespace uma {

void set_tokens(gguf_context* gguf, const char* tokenizer, const Vocabulary& vocabulary) {
  std::vector<const char*> texts;
  texts.reserve(vocabulary.size());
  for (const std::string& text : vocabulary.texts) texts.push_back(text.c_str());
  gguf_set_val_str(gguf, "tokenizer.ggml.model", tokenizer);
  gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", texts.data(), texts.size());
  gguf_set_arr_data(gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, vocabulary.scores.data(), vocabulary.size());
  gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, vocabulary.types.data(), vocabulary.size());
}

void set_sentence_pieces(gguf_context* gguf, const SentencePieces& pieces) {
  gguf_set_val_u32(gguf, "tokenizer.ggml.unknown_token_id", kTokenUnknown);
  gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", kTokenBos);
  gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", kTokenEos);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", true);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_eos_token", pieces.ends_texts);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_space_prefix", pieces.adds_space);
}

}  // namespace uma
