// EmbeddingContext on libllama. Internal to llm, because it includes the library's header.
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

// The pooling of an embedding model; nothing for a chat model. If the file names no pooling (or `none`), a model with attention
// in both directions gets mean pooling.
[[nodiscard]] std::optional<Pooling> pooling_of(const llama_model* model);

// The memory of a context, measured on a model that was loaded without its weights (no_alloc). Takes some milliseconds.
// Requires: pooling_of(model).
[[nodiscard]] Expected<ContextBytes> embedding_bytes(llama_model* model, const EmbeddingOptions& options);

// The model's special tokens around a text.
[[nodiscard]] TextFrame text_frame_of(const llama_vocab* vocab);

class LlamaEmbedding final : public EmbeddingContext {
 public:
  // `model` keeps the weights alive while the context exists. Requires: pooling_of(model).
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
  std::atomic<CallMonitor*> monitor_{nullptr};  // Monitor of the running call; read by the library's threads.
};

}  // namespace uma::llm
