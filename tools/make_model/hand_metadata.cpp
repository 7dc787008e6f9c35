#include "make_model/hand_metadata.h"

#include <format>

#include <ggml.h>
#include <llama.h>

#include "make_model/hand_layer.h"
#include "make_model/vocabulary_metadata.h"

namespace uma {

void set_hand_metadata(gguf_context* gguf, const HandModel& model, const Vocabulary& vocabulary) {
  gguf_set_val_str(gguf, "general.architecture", "llama");
  gguf_set_val_str(gguf, "general.name", model.name.c_str());
  gguf_set_val_u32(gguf, "general.file_type", LLAMA_FTYPE_MOSTLY_F16);
  gguf_set_val_u32(gguf, "general.quantization_version", GGML_QNT_VERSION);
  const auto set_u32 = [&](const char* key, std::uint32_t value) {
    gguf_set_val_u32(gguf, std::format("llama.{}", key).c_str(), value);
  };
  set_u32("context_length", kHandContextTokens);
  set_u32("embedding_length", kHandWidth);
  set_u32("block_count", model.layers);
  set_u32("feed_forward_length", model.feed_forward);
  set_u32("attention.head_count", 1);
  set_u32("attention.head_count_kv", 1);
  set_u32("rope.dimension_count", kHandWidth);
  set_u32("vocab_size", static_cast<std::uint32_t>(vocabulary.size()));
  gguf_set_val_f32(gguf, "llama.rope.freq_base", 1);  // rotary_angles.h
  gguf_set_val_f32(gguf, "llama.attention.layer_norm_rms_epsilon", 1e-5F);

  set_tokens(gguf, "llama", vocabulary);
  set_sentence_pieces(gguf, {});
  gguf_set_val_str(gguf, "tokenizer.chat_template", model.chat_template.c_str());
}

}  // namespace uma
