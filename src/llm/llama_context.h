// Context on libllama. Internal to llm, because it includes the library's header.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <llama.h>

#include "llm/device/device_timer.h"
#include "llm/device/llama_rpc.h"
#include "llm/device/lost_devices.h"
#include "llm/footprint.h"
#include "llm/library_memory.h"
#include "llm/media/position_map.h"
#include "llm/model.h"

namespace uma::llm {

// Most rows of one decode call.
inline constexpr std::int32_t kBatchRows = 2048;

// Whether some layers keep a state that each token changes, instead of the tokens' keys and values. Also works for a model
// loaded without weights.
[[nodiscard]] bool has_states(const llama_model* model);

// Whether embeddings have positions of several dimensions (M-RoPE).
[[nodiscard]] bool has_grid_positions(const llama_model* model);

// Sets how the library rotates positions. Errors: E_MODEL_002 for a model without rotary positions.
[[nodiscard]] Expected<Unit> apply_rope(const llama_model* model, const RopeOptions& rope, llama_context_params& params);

// The lengths that the model's file states.
[[nodiscard]] ContextLengths context_lengths(const llama_model* model);

// The size and shape of a context, measured on a model that was loaded without its weights (no_alloc). Takes some milliseconds.
struct ContextMeasured {
  ContextBytes bytes;
  std::optional<LibraryMemory> memory{};  // With the weights' part.
  std::int32_t sequence_cells = 0;
  bool is_unified = false;
};
[[nodiscard]] Expected<ContextMeasured> measure_context(llama_model* model, const ContextOptions& options);

// Frees a context on these devices. One on a lost device stays: the library would wait for its computation, which throws in a
// destructor and so ends the process.
void free_context(llama_context* context, DeviceList devices);

// The library's abort callback. `data` points to an atomic pointer to the CallMonitor; null: no monitor.
[[nodiscard]] bool ask_monitor(void* data);

class LlamaContext final : public Context {
 public:
  // `model` keeps the weights and its adapters alive while the context exists.
  static Expected<std::unique_ptr<Context>> create(const std::shared_ptr<llama_model>& model, const std::string& model_identity,
                                                   const ContextOptions& options, std::vector<llama_adapter_lora*> adapters,
                                                   RpcServers rpc_servers = {});
  ~LlamaContext() override;

  [[nodiscard]] const ContextShape& shape() const override { return shape_; }
  [[nodiscard]] const std::string& state_identity() const override { return identity_; }
  [[nodiscard]] bool is_lost() const override;
  [[nodiscard]] std::string loss() const override;
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
  void use_adapters(const AdapterSet& set) override;
  [[nodiscard]] std::uint64_t state_bytes(std::int32_t sequence) const override;
  [[nodiscard]] Expected<Unit> save_state(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) override;
  [[nodiscard]] std::span<const std::byte> fit_state(Bytes& bytes) const override;
  [[nodiscard]] Expected<Unit> load_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                          std::span<const std::byte> state) override;
  [[nodiscard]] Expected<Unit> move_cells(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) override;

 private:
  LlamaContext(std::shared_ptr<llama_model> model, llama_context* context, const ContextShape& shape, std::string identity,
               std::vector<llama_adapter_lora*> adapters, RpcServers rpc_servers);
  // `sees_ahead`: every row attends to the whole batch.
  [[nodiscard]] Expected<DecodeStatus> run(const llama_batch& batch, CallMonitor* monitor, bool sees_ahead);
  [[nodiscard]] llama_memory_t memory() const { return llama_get_memory(context_); }
  // Removes all tokens of the sequence.
  void empty(std::int32_t sequence);
  void drop_rows(const llama_batch& batch);
  // Whether keys wait for their rotation, which the next decode does.
  [[nodiscard]] bool is_shifted() const;
  void drop_shifted();
  [[nodiscard]] PositionMap& map_of(std::int32_t sequence) { return maps_[static_cast<std::size_t>(sequence)]; }
  // Whether all layers have keys and values in one cache, so that the content of a state can be checked.
  [[nodiscard]] bool has_one_cache() const { return shape_.checks_states; }

  const RpcServers rpc_servers_;  // Freed after the model.
  std::shared_ptr<llama_model> model_;
  DeviceList devices_;  // The model's devices.
  const DeviceTimer timer_;
  llama_context* context_;
  ContextShape shape_;
  std::string identity_;
  std::vector<llama_adapter_lora*> adapters_;  // Owned by the model; null: cannot be used.
  AdapterSet used_;
  std::int32_t vocabulary_;
  bool has_states_;         // Some layers keep a state of the past instead of tokens.
  std::int32_t window_;     // Length of the attention window, including the current token; 0: no window.
  std::int32_t sequences_;  // Number of sequences in a batch.
  std::uint32_t streams_;   // Parts of the cache with cells of their own: one per sequence in a split context, else one.
  std::int32_t scratch_;    // An internal sequence of a unified context, used to load states in pieces.
  std::vector<llama_pos> shifted_from_;     // By sequence: the next decode rotates the keys from here on; kNotShifted: none.
  std::vector<PositionMap> maps_;           // By sequence; empty maps for models without grids.
  std::vector<llama_pos> image_positions_;  // Positions of the rows of the running call for an image.
  llama_batch batch_;
  std::atomic<CallMonitor*> monitor_{nullptr};  // Monitor of the running decode; read by the library's threads.
};

}  // namespace uma::llm
