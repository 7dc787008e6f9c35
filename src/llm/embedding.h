// The interface for vectors and scores of whole texts, and of texts with images. Implementations: llama_embedding.h, and
// testing/fake_embedding.h for tests.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "llm/device/device_bytes.h"
#include "llm/media/image_rows.h"
#include "llm/rope.h"

namespace uma::llm {

class CallMonitor;

// The rule that makes one vector or score from the outputs of a text's tokens.
enum class Pooling : std::uint8_t {
  mean,
  cls,   // The output of the first token.
  last,  // The output of the last token.
  rank,  // A score: the output of the first or last token through a classifier.
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

// The pooling with this name in models.yaml; nullopt: no pooling for vectors.
constexpr std::optional<Pooling> parse_vector_pooling(std::string_view name) {
  for (const Pooling pooling : {Pooling::mean, Pooling::cls, Pooling::last}) {
    if (pooling_name(pooling) == name) return pooling;
  }
  return std::nullopt;
}

inline constexpr std::int32_t kTextTokensMax = 2048;  // The longest text, unless the options ask for more.

struct EmbeddingOptions {
  std::int32_t text_tokens_max = 0;  // The longest text; 0: the model's limit, at most kTextTokensMax.
  std::int32_t threads = 1;          // Compute threads until set_threads().
  // Flash attention is several times as fast on a CPU, but it sums in 16 bits: the other texts of a call change a vector in the
  // fourth digit.
  bool has_flash_attention = false;
  std::optional<Pooling> pooling{};  // Nullopt: as the file says.
  RopeOptions rope{};
};

struct EmbeddingShape {
  std::int32_t text_tokens_max = 0;
  std::int32_t batch_rows_max = 0;   // Tokens of one call; at least text_tokens_max.
  std::int32_t batch_texts_max = 0;  // Texts of one call.
  std::int32_t dimensions = 0;       // Numbers of one output.
  Pooling pooling = Pooling::mean;
  // Whether texts may contain rows of images: the vector is that of the last token, and tokens attend backwards only.
  bool reads_images = false;
  std::int32_t image_rows_max = 0;  // Rows of an image that attend to each other.
  std::uint64_t memory_bytes = 0;   // Memory of the context.
  DeviceBytes on_devices{};         // Part of memory_bytes.
};

// A context that keeps no KV between calls. Owned by one lane: one thread at a time.
class EmbeddingContext {
 public:
  virtual ~EmbeddingContext() = default;
  [[nodiscard]] virtual const EmbeddingShape& shape() const = 0;
  // A device of the model is lost: the context computes no more. Any thread.
  [[nodiscard]] virtual bool is_lost() const { return false; }
  // The loss as a text for people. Requires: is_lost().
  [[nodiscard]] virtual std::string loss() const { return "a device of the model has failed"; }
  // Writes the outputs of the texts into `out`, one after the other. The other texts of the call change an output by at most
  // 1e-4 of its length. False: `monitor`, which may be null, ended the computation, and `out` has no results. Requires: the
  // bounds of shape(); no text is empty. Errors: E_RUNTIME_001.
  [[nodiscard]] virtual Expected<bool> compute(std::span<const std::span<const Token>> texts, CallMonitor* monitor,
                                               std::vector<float>& out) = 0;
  // Writes the output of one text into `out`. `images` are the places of the text with rows of images, in order, without
  // overlaps; `position` is their place in the text, and `sequence` is not used. False: as compute(). Requires:
  // shape().reads_images, and the bounds of shape(). Errors: E_RUNTIME_001.
  [[nodiscard]] virtual Expected<bool> compute_with_images(std::span<const Token> text, std::span<const ImageRows> images,
                                                           CallMonitor* monitor, std::vector<float>& out) = 0;
  // Sets the compute threads of later calls.
  virtual void set_threads(std::int32_t threads) = 0;
};

}  // namespace uma::llm
