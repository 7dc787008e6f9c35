// Writes a model with random weights as a GGUF file: any shape, the same bytes from the same spec. Such a model generates
// nonsense, at exactly the speed of a trained model of its shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <vector>

#include <ggml.h>

namespace uma {

// The architectures differ in what they keep of earlier tokens.
enum class Architecture : std::uint8_t {
  llama,     // Attention over all tokens.
  qwen2vl,   // Attention as in llama, with positions of several dimensions for images (M-RoPE).
  qwen3,     // Attention as in llama, with normalized queries and keys.
  qwen3moe,  // A mixture of experts in place of qwen3's feed-forward block.
  gpt_oss,   // A mixture of experts with attention sinks; every second layer looks at a window of the last tokens only.
  gemma3,    // Five of six layers look at a window of the last tokens only.
  mamba,     // One state of fixed size instead of tokens.
  jamba,     // Every second layer attends to all tokens, the others are mamba's.
  bert,      // Nothing: every token sees the whole text, and the result is a vector or a score.
};

enum class Tokenizer : std::uint8_t { sentence_pieces, word_pieces };

enum class Weights : std::uint8_t {
  random,
  shift_register,  // shift_register.h
};

// ChatML with its control tokens; `tools` also writes tools, tool calls and their results.
enum class ChatTemplate : std::uint8_t { none, plain, tools };

// How a model reduces a text to one vector or score; the values are those of llama_pooling_type.
enum class PooledBy : std::uint32_t { none = 0, mean = 1, last = 3, rank = 4 };

struct ModelSpec {
  std::string name;
  Architecture architecture = Architecture::llama;
  // Type of the matrices: F16, Q8_0 or Q4_0. MXFP4: the type of experts; the other matrices are Q8_0.
  ggml_type type = GGML_TYPE_Q8_0;
  std::uint32_t layers = 0;
  std::uint32_t width = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_size = 0;     // Columns of a head; 0: width / heads. Not for llama, qwen2vl, jamba and bert.
  std::uint32_t feed_forward = 0;  // Inner width of the feed-forward block, or of one expert.
  std::uint32_t experts = 0;       // Experts of a layer; mixtures only.
  std::uint32_t experts_used = 0;  // Experts that compute one token.
  std::uint32_t n_ctx = 0;         // Training context length that the file declares.
  std::uint32_t vocabulary_size = 0;
  bool has_output = true;    // False: the embeddings of the tokens also compute the logits; qwen3 only.
  std::uint32_t window = 0;  // Tokens that a layer with a window sees, the current one included; gemma3 and gpt_oss only.
  PooledBy pooled_by = PooledBy::none;  // Bert: mean or rank.
  ChatTemplate chat_template = ChatTemplate::none;
  std::string chat_template_text = {};           // Written instead of `chat_template`, unless empty; adds no control tokens.
  std::vector<std::string> control_tokens = {};  // Further ones, the last of the vocabulary; not for word pieces.
  bool image_markers = false;                    // Control tokens around an image, for a model with a projector.
  bool gap_markers = false;                      // Control tokens around the parts of a text with a gap.
  Tokenizer tokenizer = Tokenizer::sentence_pieces;  // Word pieces: bert only.
  Weights weights = Weights::random;
  std::uint64_t seed = 1;
  // The output of the last `quiet_layers` layers is multiplied by `quiet_gain`. All other weights are those of the model
  // without these layers. With 0, both models generate the same text at different costs: a pair for speculative decoding.
  std::uint32_t quiet_layers = 0;
  float quiet_gain = 0;
};

// The file is complete or does not exist (gguf_writer.h). The error names an impossible value of the spec, or has the file
// system's message.
[[nodiscard]] std::expected<void, std::string> write_model(const ModelSpec& spec, const std::filesystem::path& path);

// Writes a LoRA adapter with random weights for the attention and the feed-forward blocks of a model with this spec, which they
// change a lot. `rank`: 1 to 256. Errors: as write_model().
[[nodiscard]] std::expected<void, std::string> write_adapter(const ModelSpec& spec, std::uint32_t rank,
                                                             const std::filesystem::path& path);

}  // namespace uma
