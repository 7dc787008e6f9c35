// Context on libllama. Internal to llm: includes the library's header.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <llama.h>

#include "llm/footprint.h"
#include "llm/model.h"

namespace uma::llm {

// Whether layers keep, instead of tokens, a state that each token changes. Known of a model loaded for its vocabulary only,
// too.
[[nodiscard]] bool has_states(const llama_model* model);

// The layout where the choice is ours: one pool where parts would leave a sequence too little.
[[nodiscard]] bool chooses_unified(std::int64_t cells, std::int32_t sequences, std::int64_t train_tokens);

// What a context of a model that was loaded without its weights (no_alloc) would take and be. Some milliseconds.
struct ContextMeasured {
  ContextBytes bytes;
  std::int32_t sequence_cells = 0;
  bool is_unified = false;
};
[[nodiscard]] Expected<ContextMeasured> measure_context(llama_model* model, const ContextOptions& options);

// The library's abort callback; `data` is an atomic pointer to the CallMonitor to ask, null: nobody.
[[nodiscard]] bool ask_monitor(void* data);

class LlamaContext final : public Context {
 public:
  // `model` keeps the weights alive for as long as the context lives.
  static Expected<std::unique_ptr<Context>> create(std::shared_ptr<llama_model> model, const std::string& model_identity,
                                                   const ContextOptions& options);
  ~LlamaContext() override;

  [[nodiscard]] const ContextShape& shape() const override { return shape_; }
  [[nodiscard]] const std::string& state_identity() const override { return identity_; }
  [[nodiscard]] Expected<DecodeStatus> decode(std::span<const BatchRow> rows, CallMonitor* monitor) override;
  [[nodiscard]] Expected<DecodeStatus> decode_image(const ImageRows& rows, CallMonitor* monitor) override;
  [[nodiscard]] std::span<float> logits(std::int32_t row) override;
  [[nodiscard]] std::int32_t sequence_length(std::int32_t sequence) override;
  [[nodiscard]] bool can_truncate(std::int32_t sequence, std::int32_t begin) override;
  [[nodiscard]] bool truncate(std::int32_t sequence, std::int32_t begin) override;
  void shift(std::int32_t sequence, std::int32_t begin, std::int32_t end) override;
  void share(std::int32_t from, std::int32_t to, std::int32_t count) override;
  void clear() override;
  void set_threads(std::int32_t threads) override;
  [[nodiscard]] std::uint64_t state_bytes(std::int32_t sequence) const override;
  [[nodiscard]] Expected<Unit> save_state(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) override;
  [[nodiscard]] std::span<const std::byte> fit_state(Bytes& bytes) const override;
  [[nodiscard]] Expected<Unit> load_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                          std::span<const std::byte> state) override;

 private:
  LlamaContext(std::shared_ptr<llama_model> model, llama_context* context, ContextShape shape, std::string identity);
  // `sees_ahead`: every row sees all of the batch.
  [[nodiscard]] Expected<DecodeStatus> run(const llama_batch& batch, CallMonitor* monitor, bool sees_ahead);
  [[nodiscard]] llama_memory_t memory() const { return llama_get_memory(context_); }
  // Of all layers, for keys and values: what is in its states can be told.
  [[nodiscard]] bool has_one_cache() const { return shape_.checks_states; }

  std::shared_ptr<llama_model> model_;
  llama_context* context_;
  ContextShape shape_;
  std::string identity_;
  std::int32_t vocabulary_;
  bool has_states_;          // of the past, in some layers at least, instead of tokens
  std::int32_t window_;      // tokens that some layers see, the last one included; 0: all
  std::int32_t sequences_;   // that rows may be of
  std::uint32_t streams_;    // parts of the cache that each have cells of their own: one per sequence, or one in all
  std::int32_t scratch_;     // a sequence of our own in a unified context, through which pieces of state pass
  bool is_shifted_ = false;  // keys are to be turned by the next decode
  llama_batch batch_;
  std::atomic<CallMonitor*> monitor_{nullptr};  // of the decode that runs; read by the library's threads
};

}  // namespace uma::llm
