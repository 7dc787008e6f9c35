// EmbeddingContext on libllama. Internal to llm, because it includes the library's header.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include <llama.h>

#include "llm/device/device_timer.h"
#include "llm/device/llama_rpc.h"
#include "llm/device/lost_devices.h"
#include "llm/embedding.h"
#include "llm/footprint.h"
#include "llm/library_memory.h"
#include "llm/media/position_map.h"
#include "llm/model.h"

namespace uma::llm {

// The pooling of an embedding model: the given one, else the file's; nothing for a chat model. If the file names no pooling (or
// `none`), a model with attention in both directions gets mean pooling.
[[nodiscard]] std::optional<Pooling> pooling_of(const llama_model* model, std::optional<Pooling> given = std::nullopt);

// The memory of a context, measured on a model that was loaded without its weights (no_alloc).
struct EmbeddingMeasured {
  ContextBytes bytes;
  std::optional<LibraryMemory> memory{};  // With the weights' part.
};
// Takes some milliseconds. Requires: pooling_of(model, options.pooling).
[[nodiscard]] Expected<EmbeddingMeasured> measure_embedding(llama_model* model, const EmbeddingOptions& options);

// The model's special tokens around a text.
[[nodiscard]] TextFrame text_frame_of(const llama_vocab* vocab);

class LlamaEmbedding final : public EmbeddingContext {
 public:
  // `model` keeps the weights alive while the context exists. Requires: pooling_of(model, options.pooling).
  static Expected<std::unique_ptr<EmbeddingContext>> create(const std::shared_ptr<llama_model>& model,
                                                            const EmbeddingOptions& options, RpcServers rpc_servers = {});
  ~LlamaEmbedding() override;

  [[nodiscard]] const EmbeddingShape& shape() const override { return shape_; }
  [[nodiscard]] bool is_lost() const override;
  [[nodiscard]] std::string loss() const override;
  [[nodiscard]] Expected<bool> compute(std::span<const std::span<const Token>> texts, CallMonitor* monitor,
                                       std::vector<float>& out) override;
  [[nodiscard]] Expected<bool> compute_with_images(std::span<const Token> text, std::span<const ImageRows> images,
                                                   CallMonitor* monitor, std::vector<float>& out) override;
  void set_threads(std::int32_t threads) override;

 private:
  LlamaEmbedding(std::shared_ptr<llama_model> model, llama_context* context, const EmbeddingShape& shape,
                 RpcServers rpc_servers);

  void add_row(Token token, std::int32_t position, std::int32_t sequence);
  // `sees_ahead`: every row attends to the whole batch. False: the monitor ended the call.
  [[nodiscard]] Expected<bool> run(const llama_batch& batch, CallMonitor* monitor, bool sees_ahead);
  [[nodiscard]] Expected<bool> run_image(const ImageRows& image, PositionMap& map, CallMonitor* monitor);
  [[nodiscard]] Expected<Unit> append_output(std::int32_t sequence, std::vector<float>& out) const;
  // Removes the first sequences.
  void forget(std::size_t sequences);

  const RpcServers rpc_servers_;  // Freed after the model.
  std::shared_ptr<llama_model> model_;
  DeviceList devices_;  // The model's devices.
  const DeviceTimer timer_;
  llama_context* context_;
  EmbeddingShape shape_;
  bool has_grids_;  // Positions have several dimensions (M-RoPE).
  std::int32_t vocabulary_;
  std::vector<llama_pos> image_positions_;  // Positions of the rows of the running call for an image.
  llama_batch batch_;
  std::atomic<CallMonitor*> monitor_{nullptr};  // Monitor of the running call; read by the library's threads.
};

}  // namespace uma::llm
