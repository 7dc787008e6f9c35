#include "llm/footprint.h"

#include <algorithm>
#include <memory>

#include <llama.h>

#include "base/log.h"
#include "llm/llama_context.h"
#include "llm/llama_guard.h"
#include "llm/llama_log.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

constexpr std::int64_t kDefaultSequenceCells = 4096;

ContextBytes estimate_context(const GgufHeader& header, const ContextOptions& options) {
  const std::int64_t train = header.context_length > 0 ? header.context_length : kDefaultSequenceCells;
  const std::int64_t sequences = std::max(1, options.sequences);
  const std::int64_t cells = options.cells > 0 ? options.cells : sequences * std::min(train, kDefaultSequenceCells);
  // Keys and values of one token, in numbers; 34 bytes hold 32 of them as q8_0.
  const std::int64_t numbers = header.head_count_kv_sum * (header.key_length + header.value_length);
  const std::int64_t cache = options.kv_type == KvType::q8_0 ? numbers * 34 / 32 : numbers * 2;
  const std::int64_t rows = options.ubatch_rows;
  // A layer's tensors that live at the same time, and what each row may see.
  const std::int64_t wide = 8 * header.embedding_length + 3 * header.feed_forward_length;
  const bool is_unified =
      options.layout == KvLayout::unified ||
      (options.layout == KvLayout::automatic && chooses_unified(cells, std::max(1, options.sequences), train));
  const std::int64_t seen = header.head_count_kv_sum == 0 ? 0 : is_unified ? cells : cells / sequences;
  const std::int64_t words = rows * wide + rows * seen / 2;
  const std::int64_t logits = (sequences + 24) * header.vocabulary_size;
  constexpr std::int64_t kWord = sizeof(float);
  return {.cache = static_cast<std::uint64_t>(cells * cache + sequences * header.state_bytes),
          .compute = static_cast<std::uint64_t>((words + logits) * kWord),
          .output = static_cast<std::uint64_t>(logits * kWord)};
}

// The library's own arithmetic.
Expected<Footprint> dry_run(const std::string& path, const GgufHeader& header, std::span<const ContextOptions> contexts) {
  init_llama();
  return guarded(ErrorCode::model_load, path.c_str(), [&]() -> Expected<Footprint> {
    llama_model_params params = llama_model_default_params();
    params.no_alloc = true;
    params.load_mode = LLAMA_LOAD_MODE_NONE;  // with a mapped file it ends the process
    library_log().forget();
    const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(llama_model_load_from_file(path.c_str(), params),
                                                                          llama_model_free);
    if (model == nullptr) return fail(ErrorCode::model_load, library_log().last_error());
    Footprint footprint{.is_measured = true, .weights = header.weight_bytes, .contexts = {}};
    for (const ContextOptions& options : contexts) {
      auto bytes = context_bytes(model.get(), options);
      if (!bytes) return std::unexpected(bytes.error());
      if (bytes->compute == 0) return fail(ErrorCode::model_load, "the library did not say what it computes with");
      footprint.contexts.push_back(*bytes);
    }
    return footprint;
  });
}

}  // namespace

std::uint64_t Footprint::total() const {
  std::uint64_t bytes = weights;
  for (const ContextBytes& context : contexts) bytes += context.total();
  return bytes;
}

Expected<Footprint> measure_footprint(const std::string& path, std::span<const ContextOptions> contexts) {
  const auto header = read_model_header(path);
  if (!header) return std::unexpected(header.error());
  auto measured = dry_run(path, *header, contexts);
  if (measured) return measured;
  log_debug("{}: its memory is estimated: {}", path, measured.error().message);
  return estimate_footprint(*header, contexts);
}

Footprint estimate_footprint(const GgufHeader& header, std::span<const ContextOptions> contexts) {
  Footprint footprint{.is_measured = false, .weights = header.weight_bytes, .contexts = {}};
  for (const ContextOptions& options : contexts) footprint.contexts.push_back(estimate_context(header, options));
  return footprint;
}

}  // namespace uma::llm
