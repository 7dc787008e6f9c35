// The memory need of a model, computed before it is loaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "llm/device/device_bytes.h"
#include "llm/device/devices.h"
#include "llm/file/gguf_header.h"
#include "llm/model.h"

namespace uma::llm {

struct ContextBytes {
  std::uint64_t cache = 0;    // Keys and values, or states.
  std::uint64_t compute = 0;  // Tensors of the largest computation.
  std::uint64_t output = 0;   // Logits.
  DeviceBytes on_devices{};   // Part of the total.

  [[nodiscard]] std::uint64_t total() const { return cache + compute + output; }
  bool operator==(const ContextBytes&) const = default;
};

inline constexpr std::int32_t kOneSequenceMax = 16'384;

struct Footprint {
  bool is_measured = false;    // True: measured by a dry run of the library; false: estimated from the file's header.
  bool makes_vectors = false;  // True: the contexts belong to an embedding model or a reranker.
  std::uint64_t weights = 0;
  DeviceBytes weights_on_devices{};    // Part of `weights`.
  std::vector<ContextBytes> contexts;  // One entry for each requested context.
  // For each requested context, the same context for a single sequence of at most kOneSequenceMax tokens; empty if
  // makes_vectors.
  std::vector<ContextBytes> one_sequence;

  [[nodiscard]] std::uint64_t total() const;  // Weights and contexts.
};

// Measures one copy of the weights and the given contexts on it, by a dry run: the library reads the vocabulary and plans all
// allocations without allocating, which takes 1 to 500 ms, depending on the vocabulary's size. If the dry run fails, the result
// is an estimate. The contexts of an embedding model or a reranker are counted as
// llm::EmbeddingContext. Any thread. Loads and computations on other threads wait for some milliseconds, as they do when a
// context is made. Errors: E_MODEL_002 for a bad file.
[[nodiscard]] Expected<Footprint> measure_footprint(const std::string& path, std::span<const ContextOptions> contexts,
                                                    const DeviceOptions& devices = {});

// The keys and values of one token.
[[nodiscard]] std::uint64_t kv_bytes_of(const GgufHeader& header, KvTypes types);

// The options with the layout that the model gets if a quarter of `memory` bytes is for its cells, so that measuring and
// loading agree.
[[nodiscard]] ContextOptions with_layout(const GgufHeader& header, ContextOptions options, std::uint64_t memory);

// Converts the options of a chat context to those of an embedding context.
[[nodiscard]] EmbeddingOptions embedding_options(const ContextOptions& options);

// The memory of the vocabulary, in the library and here; not part of weights and contexts.
[[nodiscard]] std::uint64_t table_bytes(const GgufHeader& header);

// Estimates from the header alone. Weights and caches are close to the real values (window layers are counted as full layers);
// the compute part is a rule of thumb.
[[nodiscard]] Footprint estimate_footprint(const GgufHeader& header, std::span<const ContextOptions> contexts);

}  // namespace uma::llm
