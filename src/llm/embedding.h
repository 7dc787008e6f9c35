// Vectors and scores of whole texts, as the rest of the system sees them. llama_embedding.h makes the real context,
// testing/fake_embedding.h that of the tests.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/ids.h"

namespace uma::llm {

class CallMonitor;

// What becomes of the outputs of a text's tokens.
enum class Pooling : std::uint8_t {
  mean,
  cls,   // that of the first token
  last,  // that of the last token
  rank,  // of the first or the last one, through a classifier: scores instead of a vector
};

constexpr std::string_view pooling_name(Pooling pooling) {
  switch (pooling) {
    case Pooling::mean:
      return "mean";
    case Pooling::cls:
      return "cls";
    case Pooling::last:
      return "last";
    case Pooling::rank:
      break;
  }
  return "rank";
}

struct EmbeddingOptions {
  std::int32_t text_tokens_max = 0;  // of the longest text; 0: from the model, 2048 at most
  std::int32_t threads = 1;          // until set_threads()
  // Several times as fast on a CPU, but it sums in 16 bits: a text's vector depends on its company in the fourth digit.
  bool has_flash_attention = false;
};

struct EmbeddingShape {
  std::int32_t text_tokens_max = 0;
  std::int32_t batch_rows_max = 0;   // tokens of one call; at least text_tokens_max
  std::int32_t batch_texts_max = 0;  // of one call
  std::int32_t dimensions = 0;       // numbers of one output
  Pooling pooling = Pooling::mean;
  std::uint64_t memory_bytes = 0;  // that it takes
};

// A computation without a past. Owned by one lane: one thread at a time.
class EmbeddingContext {
 public:
  virtual ~EmbeddingContext() = default;
  [[nodiscard]] virtual const EmbeddingShape& shape() const = 0;
  // The outputs of the texts, one after the other, into `out`: a text's is the same whichever others are there, to 1e-4 of its
  // length. False: `monitor`, which may be null, has ended the computation, and nothing was computed. Within the bounds of
  // shape(); no text is empty. Errors: E_RUNTIME_001.
  [[nodiscard]] virtual Expected<bool> compute(std::span<const std::span<const Token>> texts, CallMonitor* monitor,
                                               std::vector<float>& out) = 0;
  // Compute threads of the calls from now on.
  virtual void set_threads(std::int32_t threads) = 0;
};

}  // namespace uma::llm
