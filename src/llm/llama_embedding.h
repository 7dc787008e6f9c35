// EmbeddingContext on libllama. Internal to llm: includes the library's header.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include <llama.h>

#include "llm/embedding.h"
#include "llm/footprint.h"
#include "llm/model.h"

namespace uma::llm {

// How the model's vectors are made; nothing: it is a model for text. Where the file names no way (or `none`), a model that
// sees a text in both directions is taken for one of mean vectors.
[[nodiscard]] std::optional<Pooling> pooling_of(const llama_model* model);

// What a context of a model that was loaded without its weights (no_alloc) would take. Some milliseconds. REQUIRES:
// pooling_of(model).
[[nodiscard]] Expected<ContextBytes> embedding_bytes(llama_model* model, const EmbeddingOptions& options);

// The model's own tokens around what is computed.
[[nodiscard]] TextFrame text_frame_of(const llama_vocab* vocab);

class LlamaEmbedding final : public EmbeddingContext {
 public:
  // `model` keeps the weights alive for as long as the context lives. REQUIRES: pooling_of(model).
  static Expected<std::unique_ptr<EmbeddingContext>> create(std::shared_ptr<llama_model> model,
                                                            const EmbeddingOptions& options);
  ~LlamaEmbedding() override;

  [[nodiscard]] const EmbeddingShape& shape() const override { return shape_; }
  [[nodiscard]] Expected<bool> compute(std::span<const std::span<const Token>> texts, CallMonitor* monitor,
                                       std::vector<float>& out) override;
  void set_threads(std::int32_t threads) override;

 private:
  LlamaEmbedding(std::shared_ptr<llama_model> model, llama_context* context, const EmbeddingShape& shape);

  std::shared_ptr<llama_model> model_;
  llama_context* context_;
  EmbeddingShape shape_;
  std::int32_t vocabulary_;
  llama_batch batch_;
  std::atomic<CallMonitor*> monitor_{nullptr};  // of the call that runs; read by the library's threads
};

}  // namespace uma::llm
