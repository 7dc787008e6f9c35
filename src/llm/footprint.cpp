#include "llm/footprint.h"

#include <algorithm>
#include <array>
#include <format>
#include <memory>
#include <numeric>

#include <llama.h>

#include "base/log.h"
#include "base/system/memory_info.h"
#include "llm/context_layout.h"
#include "llm/device/llama_devices.h"
#include "llm/file/gguf_files.h"
#include "llm/file/llama_model_file.h"
#include "llm/llama_context.h"
#include "llm/llama_embedding.h"
#include "llm/llama_guard.h"
#include "llm/llama_log.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

// Memory of a vocabulary per token: its text in several tables, and its merges. Measured: 165 without merges.
constexpr std::uint64_t kTokenBytes = 300;

// In the layout of the matrix units, 8-bit weights have a sum beside each block: 38 bytes instead of 34. The token embeddings
// stay in the normal layout, and are also stored in this one if they compute the logits.
std::uint64_t amx_bytes(const GgufHeader& header, bool makes_vectors) {
  const std::uint64_t sums = (header.weight_bytes - header.token_bytes) / 34 * 4;
  return sums + (header.has_output() || makes_vectors ? 0 : header.token_bytes);
}

struct Estimated {
  std::int64_t cells = 0;
  std::int64_t sequences = 1;
  std::int32_t sequence_cells = 0;
  bool is_unified = false;
};

ContextLayout layout_of(const GgufHeader& header, const ContextOptions& options, std::uint64_t memory) {
  const ContextLengths lengths{.train = header.context_length, .original = header.rope_original_length};
  return choose_layout(options, {.train_tokens = supported_tokens(options.rope, lengths, options.sequence_cells),
                                 .kv_bytes_per_token = kv_bytes_of(header, options.kv_types),
                                 .memory = memory});
}

Estimated estimate_layout(const GgufHeader& header, const ContextOptions& options) {
  const ContextLayout chosen = layout_of(header, options, available_memory_bytes());
  Estimated layout{.cells = chosen.cells,
                   .sequences = std::max(1, options.sequences),
                   .sequence_cells = chosen.sequence_cells,
                   .is_unified = chosen.is_unified};
  if (options.has_spare && !layout.is_unified) {
    layout.cells += layout.cells / layout.sequences;
    ++layout.sequences;
  }
  return layout;
}

// A context for one long sequence.
ContextOptions one_sequence_of(ContextOptions options, std::int32_t sequence_cells, bool is_unified) {
  options.sequences = 1;
  options.has_spare = false;
  options.cells = options.sequence_cells = std::min(sequence_cells, kOneSequenceMax);
  options.layout = is_unified ? KvLayout::unified : KvLayout::split;
  return options;
}

ContextBytes estimate_context(const GgufHeader& header, const ContextOptions& options) {
  const auto [cells, sequences, sequence_cells, is_unified] = estimate_layout(header, options);
  const auto cache = static_cast<std::int64_t>(kv_bytes_of(header, options.kv_types));
  const std::int64_t rows = options.ubatch_rows;
  // The simultaneous tensors of a layer, and the attention mask of each row.
  const std::int64_t wide = 8 * header.embedding_length + 3 * header.feed_forward_length;
  const std::int64_t seen = header.head_count_kv_sum == 0 ? 0 : is_unified ? cells : cells / sequences;
  const std::int64_t words = rows * wide + rows * seen / 2;
  const std::int64_t logits = (sequences + 24) * header.vocabulary_size;
  constexpr std::int64_t kWord = sizeof(float);
  return {.cache = static_cast<std::uint64_t>(cells * cache + sequences * header.state_bytes),
          .compute = static_cast<std::uint64_t>((words + logits) * kWord),
          .output = static_cast<std::uint64_t>(logits * kWord)};
}

// Adds the memory that the layers on devices take there, if a device's share of the caches is that of its layers.
void estimate_devices(Footprint& footprint, const GgufHeader& header, const ChosenDevices& devices) {
  const auto layers = static_cast<std::int32_t>(header.block_count);
  const std::vector<std::int32_t> counts = devices.layers_of(layers);
  const std::vector<std::uint64_t> all = header.layer_weights(devices.experts_on_cpu());
  auto layer = all.end() - std::accumulate(counts.begin(), counts.end(), 0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const Device& device = devices.used()[i];
    const auto share = [&](std::uint64_t bytes) {
      return bytes / static_cast<std::uint64_t>(layers + 1) * static_cast<std::uint64_t>(counts[i]);
    };
    const std::uint64_t weights = std::accumulate(layer, layer + counts[i], std::uint64_t{0});
    layer += counts[i];
    if (device.kind != DeviceKind::gpu) continue;
    footprint.weights_on_devices.add(device.name, weights);
    for (auto* const contexts : {&footprint.contexts, &footprint.one_sequence}) {
      for (ContextBytes& bytes : *contexts) bytes.on_devices.add(device.name, share(bytes.cache) + bytes.compute);
    }
  }
}

// All contexts are of one model.
std::optional<Pooling> given_pooling(std::span<const ContextOptions> contexts) {
  return contexts.empty() ? std::nullopt : contexts.front().pooling;
}

// The model without its weights, and without the texts of its vocabulary if the library can do without: reading those takes
// most of the time. Null: the library refuses the file.
LoadedModel load_shape(const std::string& path, const GgufHeader& header, llama_model_params params) {
  std::array<llama_model_kv_override, 3> overrides{};
  overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_STR;
  std::format_to_n(overrides[0].key, sizeof(overrides[0].key) - 1, "tokenizer.ggml.model");
  std::format_to_n(overrides[0].val_str, sizeof(overrides[0].val_str) - 1, "no_vocab");
  overrides[1].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
  std::format_to_n(overrides[1].key, sizeof(overrides[1].key) - 1, "{}.vocab_size", header.architecture);
  overrides[1].val_i64 = header.vocabulary_size;
  params.kv_overrides = overrides.data();
  library_log().forget();
  if (LoadedModel model = load_model_file(path, params)) return model;
  params.kv_overrides = nullptr;
  library_log().forget();
  return load_model_file(path, params);
}

// Measured with the library's own arithmetic.
Expected<Footprint> dry_run(const std::string& path, const GgufHeader& header, std::span<const ContextOptions> contexts,
                            ChosenDevices& devices) {
  init_llama();
  return guarded(ErrorCode::model_load, path.c_str(), [&]() -> Expected<Footprint> {
    llama_model_params params = llama_model_default_params();
    params.no_alloc = true;
    devices.apply(params);
    params.load_mode = LLAMA_LOAD_MODE_NONE;  // Mapping the file would end the process.
    const LoadedModel model = load_shape(path, header, params);
    if (model == nullptr) return fail(ErrorCode::model_load, library_log().last_error());
    Footprint footprint{.is_measured = true,
                        .makes_vectors = pooling_of(model.get(), given_pooling(contexts)).has_value(),
                        .weights = header.weight_bytes + table_bytes(header),
                        .contexts = {},
                        .one_sequence = {}};
    std::optional<LibraryMemory> memory;
    for (const ContextOptions& options : contexts) {
      if (footprint.makes_vectors) {
        auto context = measure_embedding(model.get(), embedding_options(options));
        if (!context) return std::unexpected(context.error());
        footprint.contexts.push_back(context->bytes);
        memory = context->memory;
        continue;
      }
      auto whole = measure_context(model.get(), options);
      if (!whole) return std::unexpected(whole.error());
      auto part = measure_context(model.get(), one_sequence_of(options, whole->sequence_cells, whole->is_unified));
      if (!part) return std::unexpected(part.error());
      memory = whole->memory;
      footprint.contexts.push_back(whole->bytes);
      footprint.one_sequence.push_back(part->bytes);
    }
    if (devices.are_used() && memory) {
      // A tensor that both the CPU and a device need is in the memory of both.
      footprint.weights = memory->weights + table_bytes(header);
      footprint.weights_on_devices = memory->weights_on_devices;
    } else {
      if (offers_amx()) footprint.weights += amx_bytes(header, footprint.makes_vectors);
      estimate_devices(footprint, header, devices);
    }
    for (const ContextBytes& bytes : footprint.contexts) {
      if (bytes.compute == 0) return fail(ErrorCode::model_load, "libllama reported no compute buffer");
    }
    return footprint;
  });
}

}  // namespace

std::uint64_t kv_bytes_of(const GgufHeader& header, KvTypes types) {
  const std::int64_t head =
      header.key_length * facts_of(types.keys).block_bytes + header.value_length * facts_of(types.values).block_bytes;
  return static_cast<std::uint64_t>(header.head_count_kv_sum * head / kKvBlock);
}

ContextOptions with_layout(const GgufHeader& header, ContextOptions options, std::uint64_t memory) {
  const ContextLayout chosen = layout_of(header, options, memory);
  options.cells = chosen.cells;
  options.sequence_cells = chosen.sequence_cells;
  options.layout = chosen.is_unified ? KvLayout::unified : KvLayout::split;
  return options;
}

EmbeddingOptions embedding_options(const ContextOptions& options) {
  return {.text_tokens_max = options.sequence_cells > 0 ? options.sequence_cells : options.cells,
          .threads = std::max(options.threads, options.threads_batch),
          .has_flash_attention = options.flash_attention != FlashAttention::off,
          .pooling = options.pooling,
          .rope = options.rope};
}

std::uint64_t table_bytes(const GgufHeader& header) {
  return static_cast<std::uint64_t>(header.vocabulary_size) * kTokenBytes;
}

std::uint64_t Footprint::total() const {
  std::uint64_t bytes = weights;
  for (const ContextBytes& context : contexts) bytes += context.total();
  return bytes;
}

Expected<Footprint> measure_footprint(const std::string& path, std::span<const ContextOptions> contexts,
                                      const DeviceOptions& devices) {
  const auto header = read_model_header(path);
  if (!header) return std::unexpected(header.error());
  auto chosen = ChosenDevices::of(devices);
  if (!chosen) return std::unexpected(chosen.error());
  auto measured = dry_run(path, *header, contexts, *chosen);
  if (measured) return measured;
  log_debug("{}: memory need estimated from the header, because it cannot be measured: {}", path, measured.error().message);
  Footprint estimated = estimate_footprint(*header, contexts);
  estimate_devices(estimated, *header, *chosen);
  return estimated;
}

Footprint estimate_footprint(const GgufHeader& header, std::span<const ContextOptions> contexts) {
  Footprint footprint{.is_measured = false,
                      .makes_vectors = header.pooling_type.value_or(0) > 0 || header.causal_attention == false ||
                                       given_pooling(contexts).has_value(),
                      .weights = header.weight_bytes + table_bytes(header),
                      .contexts = {},
                      .one_sequence = {}};
  for (const ContextOptions& options : contexts) {
    footprint.contexts.push_back(estimate_context(header, options));
    if (footprint.makes_vectors) continue;
    const Estimated layout = estimate_layout(header, options);
    footprint.one_sequence.push_back(
        estimate_context(header, one_sequence_of(options, layout.sequence_cells, layout.is_unified)));
  }
  return footprint;
}

}  // namespace uma::llm
