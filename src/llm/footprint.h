// What memory a model takes, known before it is loaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "llm/gguf_header.h"
#include "llm/model.h"

namespace uma::llm {

// Cells of a sequence by default: at most so many, and so many for a model that names no context length.
inline constexpr std::int32_t kDefaultSequenceCells = 4096;

struct ContextBytes {
  std::uint64_t cache = 0;    // keys and values, or states
  std::uint64_t compute = 0;  // the largest computation's tensors
  std::uint64_t output = 0;   // logits

  [[nodiscard]] std::uint64_t total() const { return cache + compute + output; }
  bool operator==(const ContextBytes&) const = default;
};

struct Footprint {
  bool is_measured = false;    // by a dry run of the library; else estimated from the file's header
  bool makes_vectors = false;  // its contexts are those of an embedding model or a reranker
  std::uint64_t weights = 0;
  std::vector<ContextBytes> contexts;      // of each that was asked for
  std::vector<ContextBytes> one_sequence;  // of one with room for a sequence of each of those; none where it makes vectors

  [[nodiscard]] std::uint64_t total() const;  // of weights and contexts
};

// Of one copy of the weights and such contexts on it; for an embedding model or a reranker they are as llm::EmbeddingContext
// has them. A dry run: the library reads the vocabulary and lays out everything,
// without allocating it; 1 to 500 ms, by the vocabulary's size. Where that fails, the estimate. Any thread, beside other loads
// and computations, which wait for some milliseconds as they do when a context is made. Errors: E_MODEL_002, the file is bad.
[[nodiscard]] Expected<Footprint> measure_footprint(const std::string& path, std::span<const ContextOptions> contexts);

// How an embedding model's context is made where one of chat would be made so.
[[nodiscard]] EmbeddingOptions embedding_options(const ContextOptions& options);

// Beside weights and contexts: what the vocabulary takes in the library and here.
[[nodiscard]] std::uint64_t table_bytes(const GgufHeader& header);

// From the header alone. Weights and caches are near the truth (windows are counted as if they reached everywhere), computing
// is a rule of thumb.
[[nodiscard]] Footprint estimate_footprint(const GgufHeader& header, std::span<const ContextOptions> contexts);

}  // namespace uma::llm
