#include "llm/llama_context.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <format>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/read_number.h"
#include "base/system/memory_info.h"
#include "llm/context_layout.h"
#include "llm/device/lost_devices.h"
#include "llm/file/llama_model_file.h"
#include "llm/llama_guard.h"
#include "llm/llama_log.h"
#include "llm/media/image_batch.h"

namespace uma::llm {
namespace {

constexpr std::uint32_t kDraftRows = 16;  // Rows with logits, beside one row of each sequence.
constexpr std::int32_t kLibrarySequencesMax = 256;
constexpr llama_pos kNotShifted = std::numeric_limits<llama_pos>::max();

ggml_type cache_type(KvType type) {
  switch (type) {
    case KvType::f16:
      return GGML_TYPE_F16;
    case KvType::q8_0:
      return GGML_TYPE_Q8_0;
    case KvType::q5_1:
      return GGML_TYPE_Q5_1;
    case KvType::q5_0:
      return GGML_TYPE_Q5_0;
    case KvType::q4_1:
      return GGML_TYPE_Q4_1;
    case KvType::q4_0:
      return GGML_TYPE_Q4_0;
  }
  std::unreachable();
}

// The products of a query and one cached key, and of its weight and the value, in all layers, for as many products with
// weights. A mixture's rows use a part of the weights, and layers with a window attend to fewer tokens, so it is approximate.
double attention_share_of(const llama_model* model) {
  const double products = 2.0 * llama_model_n_layer(model) * llama_model_n_embd(model);
  return products / static_cast<double>(std::max<std::uint64_t>(1, llama_model_n_params(model)));
}

// The keys and values of all layers for one token, if all heads have them and share the embedding's width.
std::uint64_t kv_bytes_estimated(const llama_model* model, KvTypes types) {
  if (llama_model_is_recurrent(model)) return 0;
  const auto heads = static_cast<std::uint64_t>(std::max(1, llama_model_n_head(model)));
  const auto heads_kv = static_cast<std::uint64_t>(std::max(1, llama_model_n_head_kv(model)));
  const auto width = static_cast<std::uint64_t>(llama_model_n_embd(model));
  const std::uint64_t numbers = static_cast<std::uint64_t>(llama_model_n_layer(model)) * (width / heads * heads_kv);
  const std::int64_t bytes = facts_of(types.keys).block_bytes + facts_of(types.values).block_bytes;
  return numbers * static_cast<std::uint64_t>(bytes) / static_cast<std::uint64_t>(kKvBlock);
}

// The cache bytes of one token by the measured cache size, which the library reports in hundredths of a MiB. Heads of another
// width and layers without keys and values are considered; in models that also keep states, the result is too large.
std::uint64_t kv_bytes_measured(std::uint64_t estimated, std::uint64_t cache_bytes, std::int32_t cells, bool has_states) {
  constexpr std::uint64_t kRounding = (std::uint64_t{1} << 20) / 100;
  const auto count = static_cast<std::uint64_t>(cells);
  const std::uint64_t least = cache_bytes - std::min(cache_bytes, kRounding);
  const bool is_as_estimated = estimated * count >= least && estimated * count <= cache_bytes + kRounding;
  if (cache_bytes == 0 || is_as_estimated) return estimated;
  const std::uint64_t measured = (cache_bytes + kRounding) / count;
  return has_states ? std::min(estimated, measured) : measured;
}

// The layout, and the cells with those of a spare sequence.
struct Layout {
  std::uint32_t cells;
  std::int32_t sequence_cells;
  bool unified;
};

Layout layout_of(const llama_model* model, const ContextOptions& options) {
  const std::int64_t supported = supported_tokens(options.rope, context_lengths(model), options.sequence_cells);
  const ContextLayout chosen = choose_layout(options, {.train_tokens = supported,
                                                       .kv_bytes_per_token = kv_bytes_estimated(model, options.kv_types),
                                                       .memory = available_memory_bytes()});
  auto cells = static_cast<std::uint32_t>(chosen.cells);
  if (options.has_spare && !chosen.is_unified) cells += cells / static_cast<std::uint32_t>(options.sequences);
  return {cells, chosen.sequence_cells, chosen.is_unified};
}

// The library stores the inputs of a graph one behind the other at multiples of 32 bytes, and one input has a word for each row
// with logits. If this input does not end at a cache line, every later tensor is misaligned: with AVX-512, prompts took 1.25
// times as long (docs/BENCHMARKS.md, "Tensors on cache lines").
std::uint32_t whole_cache_lines(std::uint32_t words) {
  constexpr std::uint32_t kWordsPerLine = 16;
  return (words + kWordsPerLine - 1) / kWordsPerLine * kWordsPerLine;
}

// A state begins with a magic number, the id of its sequence and the number of streams of its cache. Then each stream has its
// number of cells, followed by the cells unless the number is 0 (32-bit words; libllama 0.7.0). Each cell has its position, the
// number of its sequences, which is 1, with M-RoPE its column, line and token, and the id of the sequence; the keys and values
// follow the last cell. A sequence is in one stream, and any stream will do: here it is the last one, so that nothing follows
// its values. Only for models with a single cache; other models have a second cache or a state behind it, or only a state.
constexpr std::size_t kWord = sizeof(std::uint32_t);
constexpr std::size_t kStreamsAt = 2 * kWord;
constexpr std::size_t kCountsAt = 3 * kWord;
constexpr std::size_t kCellWords = 3;
constexpr std::size_t kGridCellWords = 6;

std::uint32_t word_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data() + at, kWord);
  return word;
}

// Adds or removes empty streams for a cache with another number of streams.
std::span<const std::byte> with_streams(Bytes& bytes, std::uint32_t wanted) {
  if (bytes.size() < kCountsAt + kWord) return bytes;
  const std::uint32_t streams = word_at(bytes, kStreamsAt);
  if (streams == wanted || streams > kLibrarySequencesMax || bytes.size() < kCountsAt + streams * kWord) return bytes;
  if (streams < wanted) bytes.insert(bytes.begin() + kCountsAt, (wanted - streams) * kWord, std::byte{0});
  const std::size_t begin = streams < wanted ? 0 : (streams - wanted) * kWord;
  std::memmove(bytes.data() + begin, bytes.data(), kStreamsAt);
  std::memcpy(bytes.data() + begin + kStreamsAt, &wanted, kWord);
  return std::span<const std::byte>(bytes).subspan(begin);
}

// Whether a state of one cache has cells in its last stream only, namely the tokens [begin, end) with these images: one cell at
// each position of text, and all rows of an image at its positions. The library accepts any positions, but a state that it
// refuses later can leave cells behind, and some numbers end the process.
bool has_positions(std::span<const std::byte> state, std::int32_t begin, std::int32_t end, const PositionMap& map,
                   std::size_t cell_words) {
  if (state.size() < kCountsAt + kWord) return false;
  const std::size_t streams = word_at(state, kStreamsAt);
  const auto cells = static_cast<std::size_t>(end - begin);
  if (streams == 0 || streams > kLibrarySequencesMax) return false;
  if (state.size() < kCountsAt + (streams + cells * cell_words) * kWord) return false;
  std::size_t at = kCountsAt;
  for (std::size_t stream = 0; stream + 1 < streams; ++stream, at += kWord) {
    if (word_at(state, at) != 0) return false;
  }
  if (word_at(state, at) != cells) return false;
  at += kWord;
  const std::int32_t first = map.position_of(begin);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(map.position_of(end) - first));
  for (std::size_t cell = 0; cell < cells; ++cell, at += cell_words * kWord) {
    const std::uint32_t place = word_at(state, at) - static_cast<std::uint32_t>(first);
    if (place >= counts.size() || word_at(state, at + kWord) != 1) return false;
    ++counts[place];
  }
  for (const ImageSpan& image : map.images()) {
    if (image.begin < begin) continue;
    const auto of_image = std::span(counts).subspan(static_cast<std::size_t>(map.position_of(image.begin) - first),
                                                    static_cast<std::size_t>(image.advance));
    if (std::ranges::fold_left(of_image, 0, std::plus()) != image.rows) return false;
    std::ranges::fill(of_image, 1);
  }
  return std::ranges::all_of(counts, [](std::int32_t count) { return count == 1; });
}

// Empties the scratch sequence at the end of a save or load, whatever the library has thrown; none if it is negative. Cells
// that it kept would be in the next states.
class ScratchUse {
 public:
  ScratchUse(llama_memory_t memory, std::int32_t scratch) : memory_(memory), scratch_(scratch) {}
  ~ScratchUse() {
    if (scratch_ >= 0) llama_memory_seq_rm(memory_, scratch_, -1, -1);
  }
  ScratchUse(const ScratchUse&) = delete;
  ScratchUse& operator=(const ScratchUse&) = delete;

 private:
  llama_memory_t memory_;
  std::int32_t scratch_;
};

}  // namespace

bool ask_monitor(void* data) {
  CallMonitor* monitor = static_cast<const std::atomic<CallMonitor*>*>(data)->load(std::memory_order_acquire);
  return monitor != nullptr && monitor->wants_end();
}

std::mutex& making_mutex() {
  static std::mutex mutex;
  return mutex;
}

void free_context(llama_context* context, DeviceList devices) {
  if (find_lost(devices, "")) return log_warning("a context on a lost device is not freed: its memory is free when umad ends");
  const std::lock_guard lock(making_mutex());
  llama_free(context);
}

bool has_states(const llama_model* model) {
  return llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
}

bool has_grid_positions(const llama_model* model) {
  const llama_rope_type type = llama_model_rope_type(model);
  return type == LLAMA_ROPE_TYPE_MROPE || type == LLAMA_ROPE_TYPE_IMROPE;
}

namespace {

// The library's parameters for the requested context.
Expected<llama_context_params> context_params(const llama_model* model, const Layout& layout, const ContextOptions& options) {
  const std::int32_t own = (layout.unified ? 1 : 0) + (options.has_spare ? 1 : 0);
  const std::int32_t sequences = options.sequences + own;
  if (options.sequences < 1 || sequences > kLibrarySequencesMax) {
    return fail(ErrorCode::model_load, std::format("{} slots were requested, but a context can have 1 to {}", options.sequences,
                                                   kLibrarySequencesMax - own));
  }
  llama_context_params params = llama_context_default_params();
  params.n_ctx = layout.cells;
  params.n_batch = static_cast<std::uint32_t>(kBatchRows);
  params.n_ubatch = static_cast<std::uint32_t>(options.ubatch_rows);
  params.n_seq_max = static_cast<std::uint32_t>(sequences);
  // Each row takes a vocabulary of floats. A value below n_seq_max aborts the process.
  params.n_outputs_max =
      std::min<std::uint32_t>(kBatchRows, whole_cache_lines(static_cast<std::uint32_t>(sequences) + kDraftRows));
  params.n_threads = options.threads;
  params.n_threads_batch = options.threads_batch > 0 ? options.threads_batch : options.threads;
  params.kv_unified = layout.unified;
  params.flash_attn_type = options.flash_attention == FlashAttention::on    ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                           : options.flash_attention == FlashAttention::off ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                                                                            : LLAMA_FLASH_ATTN_TYPE_AUTO;
  params.type_k = cache_type(options.kv_types.keys);
  params.type_v = cache_type(options.kv_types.values);
  params.no_perf = true;
  if (auto applied = apply_rope(model, options.rope, params); !applied) return std::unexpected(applied.error());
  return params;
}

// The cells of one sequence.
std::int32_t sequence_cells_of(const llama_context* context, const Layout& layout) {
  return std::min(static_cast<std::int32_t>(layout.unified ? llama_n_ctx(context) : llama_n_ctx_seq(context)),
                  layout.sequence_cells);
}

// The metadata ARCHITECTURE.suffix; empty: there is none.
std::string meta_of(const llama_model* model, const std::string& suffix) {
  const auto text = [model](const std::string& key) {
    std::array<char, 128> buffer{};
    return llama_model_meta_val_str(model, key.c_str(), buffer.data(), buffer.size()) < 0 ? "" : std::string(buffer.data());
  };
  return text(text("general.architecture") + suffix);
}

}  // namespace

ContextLengths context_lengths(const llama_model* model) {
  const auto number = [model](const char* suffix) {
    const std::string text = meta_of(model, suffix);
    std::int64_t value = 0;
    (void)std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  // llama_model_n_ctx_train() changes when a context with YaRN is made (docs/LIBLLAMA.md).
  return {.train = number(".context_length"), .original = number(".rope.scaling.original_context_length")};
}

Expected<Unit> apply_rope(const llama_model* model, const RopeOptions& rope, llama_context_params& params) {
  if (!rope.is_given()) return Unit{};
  if (llama_model_rope_type(model) == LLAMA_ROPE_TYPE_NONE) {
    return fail(ErrorCode::model_load,
                std::format("the model has no rotary positions, so {} of rope has no effect: remove rope", rope_text(rope)));
  }
  switch (rope.scaling) {
    case RopeScaling::of_model:
      break;
    case RopeScaling::none:
      params.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_NONE;
      break;
    case RopeScaling::linear:
      params.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_LINEAR;
      break;
    case RopeScaling::yarn:
      params.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN;
      break;
  }
  const auto set = [](float& value, std::optional<double> given) {
    if (given) value = static_cast<float>(*given);
  };
  if (rope.scale) params.rope_freq_scale = static_cast<float>(1 / *rope.scale);
  set(params.rope_freq_scale, rope.freq_scale);  // Exact, where 1 / scale is rounded twice.
  set(params.rope_freq_base, rope.freq_base);
  if (rope.yarn_orig_ctx) params.yarn_orig_ctx = static_cast<std::uint32_t>(*rope.yarn_orig_ctx);
  set(params.yarn_ext_factor, rope.yarn_ext_factor);
  set(params.yarn_attn_factor, rope.yarn_attn_factor);
  set(params.yarn_beta_slow, rope.yarn_beta_slow);
  set(params.yarn_beta_fast, rope.yarn_beta_fast);
  return Unit{};
}

namespace {

// How keys are rotated: models with two sets of factors use the long one in contexts that are longer than the original.
// `part_cells` is what the library takes for the length: all cells if they are shared.
std::string_view rotation_of(const llama_model* model, std::int32_t part_cells) {
  const std::int64_t tokens = context_lengths(model).original;
  return tokens > 0 && part_cells > tokens ? "long" : "usual";
}

// Whether rotated keys are as long as before. The library's shift rotates all keys of the cache once more, those of other
// sequences by 0: where YaRN stretches what it rotates, every shift would stretch all of them (docs/LIBLLAMA.md).
bool keeps_magnitude(const llama_model* model, const RopeOptions& rope) {
  const auto stated = [model](const char* key) -> std::optional<double> {
    const std::string text = meta_of(model, std::string(".rope.scaling.") + key);
    double value = 0;
    const auto [end, problem] = read_number(text.data(), text.data() + text.size(), value);
    return problem == std::errc() ? std::optional(value) : std::nullopt;
  };
  const auto either = [](std::optional<double> given, std::optional<double> in_file, double otherwise) {
    return given ? *given : in_file.value_or(otherwise);
  };
  const bool is_yarn = rope.scaling == RopeScaling::yarn ||
                       (rope.scaling == RopeScaling::of_model && meta_of(model, ".rope.scaling.type") == "yarn");
  const double unscaled_part = either(rope.yarn_ext_factor, stated("yarn_ext_factor"), is_yarn ? 1 : 0);
  const double magnitude = either(rope.yarn_attn_factor, stated("yarn_attn_factor"), 1) * stated("attn_factor").value_or(1);
  const double scale = rope.scaling == RopeScaling::none
                           ? 1
                           : rope.given_scale().value_or(1 / static_cast<double>(llama_model_rope_freq_scale_train(model)));
  return magnitude == 1 && (unscaled_part == 0 || scale == 1);
}

// The memory of the last context that this thread made; `memory` is the library's account of it.
ContextBytes bytes_of_last(const llama_model* model, const llama_context_params& params,
                           const std::optional<LibraryMemory>& memory) {
  // The library allocates logits on demand, up to this number of rows.
  const std::uint64_t logits = std::uint64_t{params.n_outputs_max} *
                               static_cast<std::uint64_t>(llama_vocab_n_tokens(llama_model_get_vocab(model))) * sizeof(float);
  return {.cache = library_log().cache_bytes(),
          .compute = library_log().compute_bytes(),
          .output = logits,
          .on_devices = memory ? memory->context_on_devices : DeviceBytes()};
}

}  // namespace

Expected<std::unique_ptr<Context>> LlamaContext::create(const std::shared_ptr<llama_model>& model,
                                                        const std::string& model_identity, const ContextOptions& options,
                                                        std::vector<llama_adapter_lora*> adapters, RpcServers rpc_servers) {
  const Layout layout = layout_of(model.get(), options);
  const auto wanted = context_params(model.get(), layout, options);
  if (!wanted) return std::unexpected(wanted.error());
  const llama_context_params& params = *wanted;
  const DeviceList devices = devices_under(model.get());
  return guarded_on(devices, ErrorCode::model_load, "making a context", [&]() -> Expected<std::unique_ptr<Context>> {
    const std::lock_guard lock(making_mutex());
    library_log().forget();
    llama_context* context = llama_init_from_model(model.get(), params);
    if (auto all_there = rpc_servers.check(ErrorCode::model_load); !all_there) {
      llama_free(context);
      return std::unexpected(all_there.error());
    }
    if (context == nullptr && options.kv_types.is_quantized()) {
      return fail(ErrorCode::model_load,
                  std::format("cannot make a context with quantized keys and values ({}): use kv.type f16",
                              library_log().last_error()));
    }
    if (context == nullptr) {
      return fail(ErrorCode::model_load,
                  std::format("not enough memory for a context of {} KV cells: try smaller --kv-cells or a smaller --n-ctx",
                              layout.cells));
    }
    if (llama_get_memory(context) == nullptr) {
      llama_free(context);
      return fail(ErrorCode::model_load, "this model has no KV cache or state, so it cannot generate text");
    }
    ContextShape shape;
    const auto cells = static_cast<std::int32_t>(llama_n_ctx(context));
    shape.sequences = options.sequences;
    shape.spare = options.has_spare ? options.sequences : -1;
    const std::int32_t sequences = options.sequences + (options.has_spare ? 1 : 0);
    shape.cells = layout.unified ? cells : cells / sequences * options.sequences;
    shape.sequence_cells_max = sequence_cells_of(context, layout);
    shape.batch_rows_max = static_cast<std::int32_t>(llama_n_batch(context));
    shape.ubatch_rows_max = static_cast<std::int32_t>(llama_n_ubatch(context));
    shape.logits_rows_max = static_cast<std::int32_t>(std::min(params.n_outputs_max, llama_n_batch(context)));
    shape.image_rows_max = std::min(shape.batch_rows_max, shape.ubatch_rows_max);
    shape.layers = std::max(1, llama_model_n_layer(model.get()));
    shape.attention_share = attention_share_of(model.get());
    shape.is_unified = layout.unified;
    // A window as long as the context never drops a token.
    shape.can_truncate = !has_states(model.get()) &&
                         (llama_model_n_swa(model.get()) == 0 || llama_model_n_swa(model.get()) >= shape.sequence_cells_max);
    shape.checks_states = !has_states(model.get()) && llama_model_n_swa(model.get()) == 0;
    // The library also reports true for states, which cannot drop a part.
    shape.has_grids = has_grid_positions(model.get());
    shape.can_shift = shape.can_truncate && !shape.has_grids && llama_memory_can_shift(llama_get_memory(context)) &&
                      keeps_magnitude(model.get(), options.rope);
    // The library enables it by itself for quantized values.
    shape.has_flash_attention = options.flash_attention == FlashAttention::on || options.kv_types.values != KvType::f16 ||
                                (options.flash_attention == FlashAttention::automatic && library_log().chose_flash_attention());
    const ContextBytes bytes = bytes_of_last(model.get(), params, library_memory(context));
    shape.memory_bytes = bytes.total();
    shape.on_devices = bytes.on_devices;
    shape.kv_bytes_per_token =
        kv_bytes_measured(kv_bytes_estimated(model.get(), options.kv_types), bytes.cache, cells, has_states(model.get()));
    shape.sequence_bytes_max = bytes.cache / (layout.unified ? 1 : static_cast<std::uint64_t>(sequences));
    const std::int32_t part_cells = layout.unified ? shape.cells : shape.cells / shape.sequences;
    const std::string rope = options.rope.is_given() ? std::format("|rope {}", rope_text(options.rope)) : "";
    if (!rope.empty()) shape.rope_tokens = supported_tokens(options.rope, context_lengths(model.get()), options.sequence_cells);
    std::string identity =
        std::format("{}|{}|{}|{} {}|flash {}|{}{}{}", model_identity, llama_version(), rotation_of(model.get(), part_cells),
                    ggml_type_name(params.type_k), ggml_type_name(params.type_v), shape.has_flash_attention ? "on" : "off",
                    layout.unified ? "unified" : "split", rope, shape.has_grids ? "|grids" : "");
    return std::unique_ptr<Context>(
        new LlamaContext(model, context, shape, std::move(identity), std::move(adapters), std::move(rpc_servers)));
  });
}

Expected<ContextMeasured> measure_context(llama_model* model, const ContextOptions& options) {
  const Layout layout = layout_of(model, options);
  const auto params = context_params(model, layout, options);
  if (!params) return std::unexpected(params.error());
  return guarded(ErrorCode::model_load, "measuring a context", [&]() -> Expected<ContextMeasured> {
    const std::lock_guard lock(making_mutex());
    library_log().forget();
    const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(model, *params), llama_free);
    if (context == nullptr) {
      return fail(ErrorCode::model_load, std::format("the context cannot be measured: {}", library_log().last_error()));
    }
    const auto memory = library_memory(context.get());
    return ContextMeasured{.bytes = bytes_of_last(model, *params, memory),
                           .memory = memory,
                           .sequence_cells = sequence_cells_of(context.get(), layout),
                           .is_unified = layout.unified};
  });
}

LlamaContext::LlamaContext(std::shared_ptr<llama_model> model, llama_context* context, const ContextShape& shape,
                           std::string identity, std::vector<llama_adapter_lora*> adapters, RpcServers rpc_servers)
    : rpc_servers_(std::move(rpc_servers)),
      model_(std::move(model)),
      devices_(devices_under(model_.get())),
      timer_(devices_),
      context_(context),
      shape_(shape),
      identity_(std::move(identity)),
      adapters_(std::move(adapters)),
      vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model_.get()))),
      has_states_(has_states(model_.get())),
      window_(shape.can_truncate ? 0 : llama_model_n_swa(model_.get())),
      sequences_(shape.sequences + (shape.spare >= 0 ? 1 : 0)),
      streams_(shape.is_unified ? 1 : static_cast<std::uint32_t>(sequences_)),
      scratch_(shape.is_unified ? sequences_ : -1),
      shifted_from_(static_cast<std::size_t>(sequences_), kNotShifted),
      maps_(static_cast<std::size_t>(sequences_)),
      batch_(llama_batch_init(shape.batch_rows_max, 0, 1)) {
  llama_set_abort_callback(context_, ask_monitor, &monitor_);
}

LlamaContext::~LlamaContext() {
  llama_batch_free(batch_);
  free_context(context_, devices_);
}

std::string LlamaContext::loss() const {
  const auto all_there = rpc_servers_.check(ErrorCode::runtime_decode);
  return all_there ? Context::loss() : all_there.error().message;
}

bool LlamaContext::is_lost() const {
  return rpc_servers_.are_lost() || LostDevices::of_process().contain_any(devices_);
}

Expected<DecodeStatus> LlamaContext::decode(std::span<const BatchRow> rows, CallMonitor* monitor) {
  UMA_CHECK(!rows.empty() && rows.size() <= static_cast<std::size_t>(shape_.batch_rows_max));
  batch_.n_tokens = static_cast<std::int32_t>(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const BatchRow& row = rows[i];
    UMA_CHECK(row.token >= 0 && row.token < vocabulary_ && row.sequence >= 0 && row.sequence < sequences_);
    batch_.token[i] = row.token;
    batch_.pos[i] = map_of(row.sequence).position_of(row.position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = row.sequence;
    batch_.logits[i] = static_cast<std::int8_t>(row.wants_logits);
  }
  return run(batch_, monitor, false);
}

Expected<DecodeStatus> LlamaContext::run(const llama_batch& batch, CallMonitor* monitor, bool sees_ahead) {
  if (auto all_there = rpc_servers_.check(ErrorCode::runtime_decode); !all_there) return std::unexpected(all_there.error());
  // The library also asks the monitor while it rotates keys, but ignores an interruption there, which would leave some keys
  // unrotated.
  const bool rotates = is_shifted();
  monitor_.store(rotates ? nullptr : monitor, std::memory_order_release);
  if (rotates) library_log().forget();
  if (sees_ahead) llama_set_causal_attn(context_, false);
  auto status = guarded_on(devices_, ErrorCode::runtime_decode, "decoding", [&]() -> Expected<DecodeStatus> {
    const auto servers_lock = rpc_servers_.lock();
    const auto computing = timer_.begin();
    const std::int32_t result = llama_decode(context_, batch);
    // A GPU computes after the call has returned: the wait belongs to the call's time, and the driver's errors to this guard.
    if (result == 0) llama_synchronize(context_);
    if (auto all_there = rpc_servers_.check(ErrorCode::runtime_decode); !all_there) return std::unexpected(all_there.error());
    // The library goes on with keys that it failed to rotate, and only its log says so.
    if (rotates && library_log().last_error().contains("K-shift")) {
      return fail(ErrorCode::runtime_decode, "libllama failed to rotate the keys of a shortened sequence");
    }
    switch (result) {
      case 0:
        return DecodeStatus::done;
      case 1:
        return DecodeStatus::out_of_cells;
      case 2:
        return DecodeStatus::interrupted;
      default:
        return fail(ErrorCode::runtime_decode,
                    std::format("libllama failed to decode a batch of {} tokens (code {})", batch.n_tokens, result));
    }
  });
  if (sees_ahead) llama_set_causal_attn(context_, true);
  monitor_.store(nullptr, std::memory_order_release);
  if (status) {
    std::ranges::fill(shifted_from_, kNotShifted);
  } else if (rotates) {
    drop_shifted();
  }
  // After an interruption, states are partly changed, and the library reports too long sequences.
  if (has_states_ && (!status || *status == DecodeStatus::interrupted)) {
    for (std::int32_t i = 0; i < batch.n_tokens; ++i) empty(batch.seq_id[i][0]);
  } else if (!status) {
    drop_rows(batch);
  }
  return status;
}

// Removes the positions of a batch that failed. The library does so only if a computation returns an error: after an exception
// the cells have the batch's positions, but values that were not computed.
void LlamaContext::drop_rows(const llama_batch& batch) {
  std::vector<llama_pos> first(static_cast<std::size_t>(sequences_), -1);
  for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
    llama_pos& position = first[static_cast<std::size_t>(batch.seq_id[i][0])];
    position = position < 0 ? batch.pos[i] : std::min(position, batch.pos[i]);
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i] >= 0) (void)llama_memory_seq_rm(memory(), static_cast<llama_seq_id>(i), first[i], -1);
  }
}

bool LlamaContext::is_shifted() const {
  return std::ranges::any_of(shifted_from_, [](llama_pos from) { return from != kNotShifted; });
}

// After a failed decode it is not known which keys were rotated, and the library would rotate all of them once more.
void LlamaContext::drop_shifted() {
  for (std::size_t i = 0; i < shifted_from_.size(); ++i) {
    const llama_pos from = std::exchange(shifted_from_[i], kNotShifted);
    if (from != kNotShifted) UMA_CHECK(llama_memory_seq_rm(memory(), static_cast<llama_seq_id>(i), from, -1));
  }
}

void LlamaContext::empty(std::int32_t sequence) {
  llama_memory_seq_rm(memory(), sequence, -1, -1);
  shifted_from_[static_cast<std::size_t>(sequence)] = kNotShifted;
  map_of(sequence).cut(0);
}

Expected<DecodeStatus> LlamaContext::decode_image(const ImageRows& rows, CallMonitor* monitor) {
  const std::size_t count = rows.tokens.size();
  const auto width = static_cast<std::size_t>(llama_model_n_embd_inp(model_.get()));
  const bool has_grid = !rows.grid.places.empty();
  const std::int32_t rows_max = has_grid && rows.is_causal ? shape_.batch_rows_max : shape_.image_rows_max;
  UMA_CHECK(count > 0 && count <= static_cast<std::size_t>(rows_max) && rows.values.size() == count * width);
  UMA_CHECK(rows.sequence >= 0 && rows.sequence < shape_.sequences);
  UMA_CHECK(!has_grid || (shape_.has_grids && rows.grid.places.size() == count));
  PositionMap& map = map_of(rows.sequence);
  const std::int32_t position = map.position_of(rows.position);
  const llama_batch batch = image_batch(rows, position, shape_.has_grids, batch_, image_positions_);
  auto status = run(batch, monitor, !rows.is_causal);
  if (!has_grid) return status;
  if (status && *status == DecodeStatus::done) {
    map.add({.begin = rows.position, .rows = static_cast<std::int32_t>(count), .advance = rows.grid.advance});
  } else if (!has_states_) {
    // Some of its rows may have been computed, all at the same position.
    llama_memory_seq_rm(memory(), rows.sequence, position, -1);
  }
  return status;
}

std::span<float> LlamaContext::logits(std::int32_t row) {
  const auto values = guarded_on(devices_, ErrorCode::runtime_decode, "reading logits",
                                 [&]() -> Expected<float*> { return llama_get_logits_ith(context_, row); });
  if (!values || *values == nullptr) return {};
  return {*values, static_cast<std::size_t>(vocabulary_)};
}

std::int32_t LlamaContext::sequence_length(std::int32_t sequence) {
  return map_of(sequence).tokens_before(llama_memory_seq_pos_max(memory(), sequence) + 1);
}

bool LlamaContext::can_truncate(std::int32_t sequence, std::int32_t begin) {
  if (begin == 0 || begin >= sequence_length(sequence)) return true;
  if (has_states_ || map_of(sequence).divides_image(begin)) return false;
  // A saved sequence has only the window at its end. The library would truncate at `begin` even if the window before it is
  // missing.
  const std::int32_t position = map_of(sequence).position_of(begin);
  return window_ == 0 || llama_memory_seq_pos_min(memory(), sequence) <= std::max(0, position + 1 - window_);
}

bool LlamaContext::truncate(std::int32_t sequence, std::int32_t begin) {
  if (!can_truncate(sequence, begin)) return false;
  PositionMap& map = map_of(sequence);
  const llama_pos position = map.position_of(begin);
  if (!llama_memory_seq_rm(memory(), sequence, position, -1)) return false;
  llama_pos& shifted = shifted_from_[static_cast<std::size_t>(sequence)];
  if (position <= shifted) shifted = kNotShifted;
  map.cut(begin);
  return true;
}

void LlamaContext::shift(std::int32_t sequence, std::int32_t begin, std::int32_t end) {
  UMA_CHECK(shape_.can_shift && 0 <= begin && begin < end && end < sequence_length(sequence));
  UMA_CHECK(llama_memory_seq_rm(memory(), sequence, begin, end));
  llama_memory_seq_add(memory(), sequence, end, -1, begin - end);
  llama_pos& from = shifted_from_[static_cast<std::size_t>(sequence)];
  from = std::min(from, begin);
}

void LlamaContext::share(std::int32_t from, std::int32_t to, std::int32_t count) {
  UMA_CHECK(shape_.is_unified && can_truncate(from, count) && sequence_length(to) == 0);
  // A model with states cannot copy a part of a sequence.
  llama_memory_seq_cp(memory(), from, to, -1, count >= sequence_length(from) ? -1 : map_of(from).position_of(count));
  map_of(to) = map_of(from);
  map_of(to).cut(count);
}

void LlamaContext::clear() {
  const auto zeroed = guarded_on(devices_, ErrorCode::runtime_decode, "clearing the cache", [&]() -> Expected<Unit> {
    llama_memory_clear(memory(), true);
    return Unit{};
  });
  if (!zeroed) {
    log_error("{}", zeroed.error().message);
    llama_memory_clear(memory(), false);
  }
  for (PositionMap& map : maps_) map.cut(0);
  std::ranges::fill(shifted_from_, kNotShifted);
}

void LlamaContext::set_threads(std::int32_t threads) {
  llama_set_n_threads(context_, threads, threads);
}

void LlamaContext::use_adapters(const AdapterSet& set) {
  if (set == used_) return;
  std::vector<llama_adapter_lora*> adapters;
  std::vector<float> scales;
  for (const AdapterUse& use : set.uses) {
    UMA_CHECK(use.index >= 0 && static_cast<std::size_t>(use.index) < adapters_.size());
    adapters.push_back(adapters_[static_cast<std::size_t>(use.index)]);
    UMA_CHECK(adapters.back() != nullptr);
    scales.push_back(use.scale);
  }
  UMA_CHECK(llama_set_adapters_lora(context_, adapters.data(), adapters.size(), scales.data()) == 0);
  used_ = set;
}

std::uint64_t LlamaContext::state_bytes(std::int32_t sequence) const {
  return llama_state_seq_get_size(context_, sequence) + images_bytes(maps_[static_cast<std::size_t>(sequence)].images().size());
}

Expected<Unit> LlamaContext::save_state(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) {
  const std::int32_t length = sequence_length(sequence);
  UMA_CHECK(0 <= begin && begin < end && end <= length);
  const bool is_whole = begin == 0 && end == length;
  UMA_CHECK(is_whole || shape_.knows_pieces());  // A partial copy in a split context aborts the process.
  const PositionMap& map = map_of(sequence);
  UMA_CHECK(!map.divides_image(begin) && !map.divides_image(end));
  return guarded_on(devices_, ErrorCode::runtime_decode, "saving a sequence", [&]() -> Expected<Unit> {
    const std::int32_t source = is_whole ? sequence : scratch_;
    const ScratchUse use(memory(), is_whole ? -1 : scratch_);
    if (!is_whole) llama_memory_seq_cp(memory(), sequence, scratch_, map.position_of(begin), map.position_of(end));
    const std::size_t size = llama_state_seq_get_size(context_, source);
    // The empty streams that the library writes behind the cells must come before them.
    const std::size_t streams_behind =
        has_one_cache() && !shape_.is_unified ? streams_ - 1 - static_cast<std::size_t>(sequence) : 0;
    const std::size_t offset = streams_behind * kWord;
    bytes.resize(offset + size);
    const std::size_t written =
        llama_state_seq_get_data(context_, reinterpret_cast<std::uint8_t*>(bytes.data() + offset), size, source);
    if (auto all_there = rpc_servers_.check(ErrorCode::runtime_decode); !all_there) return std::unexpected(all_there.error());
    if (written == 0 || written != size) {
      return fail(ErrorCode::runtime_decode, std::format("libllama saved {} of {} state bytes", written, size));
    }
    if (offset > 0) {
      std::memmove(bytes.data(), bytes.data() + offset, kCountsAt);
      std::memset(bytes.data() + kCountsAt, 0, offset);
      bytes.resize(size);
    }
    if (shape_.has_grids) append_images(map.images_within(begin, end), bytes);
    return Unit{};
  });
}

std::span<const std::byte> LlamaContext::fit_state(Bytes& bytes) const {
  return has_one_cache() && !shape_.is_unified ? with_streams(bytes, streams_) : std::span<const std::byte>(bytes);
}

Expected<Unit> LlamaContext::load_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                        std::span<const std::byte> state) {
  UMA_CHECK(0 <= begin && begin < end && sequence_length(sequence) == begin);
  auto loaded = guarded_on(devices_, ErrorCode::runtime_decode, "restoring a sequence", [&]() -> Expected<Unit> {
    if (begin != 0 && !shape_.knows_pieces()) {
      return fail(ErrorCode::runtime_decode, "the stored state is in pieces, but this context takes whole states only");
    }
    PositionMap map = map_of(sequence);
    std::span<const std::byte> library = state;
    if (shape_.has_grids) {
      const auto parts = split_images(state, begin, end);
      if (!parts) return fail(ErrorCode::runtime_decode, "the stored state has an invalid table of images");
      for (const ImageSpan& image : parts->images) map.add(image);
      library = parts->library;
    }
    if (has_one_cache() && !has_positions(library, begin, end, map, shape_.has_grids ? kGridCellWords : kCellWords)) {
      return fail(ErrorCode::runtime_decode, "the stored state has unexpected positions");
    }
    const std::int32_t target = begin == 0 ? sequence : scratch_;
    const ScratchUse use(memory(), begin == 0 ? -1 : scratch_);
    const std::size_t read =
        llama_state_seq_set_data(context_, reinterpret_cast<const std::uint8_t*>(library.data()), library.size(), target);
    if (auto all_there = rpc_servers_.check(ErrorCode::runtime_decode); !all_there) return std::unexpected(all_there.error());
    if (begin != 0 && read == library.size()) {
      llama_memory_seq_cp(memory(), scratch_, sequence, map.position_of(begin), map.position_of(end));
    }
    map_of(sequence) = std::move(map);
    if (read != library.size() || sequence_length(sequence) != end) {
      return fail(ErrorCode::runtime_decode, "libllama refused the stored state");
    }
    return Unit{};
  });
  if (!loaded) empty(sequence);
  return loaded;
}

// The library gives new tokens, and those of a loaded state, its lowest free cells.
Expected<Unit> LlamaContext::move_cells(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) {
  UMA_CHECK(shape_.can_move_cells());
  if (auto saved = save_state(sequence, begin, end, bytes); !saved) return saved;
  auto moved = guarded_on(devices_, ErrorCode::runtime_decode, "moving cells", [&]() -> Expected<Unit> {
    UMA_CHECK(llama_memory_seq_rm(memory(), sequence, begin, end));
    const ScratchUse use(memory(), scratch_);
    const std::size_t read =
        llama_state_seq_set_data(context_, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), scratch_);
    if (read != bytes.size()) return fail(ErrorCode::runtime_decode, "libllama refused the state of moved cells");
    llama_memory_seq_cp(memory(), scratch_, sequence, begin, end);
    return Unit{};
  });
  if (!moved) (void)llama_memory_seq_rm(memory(), sequence, begin, -1);
  return moved;
}

}  // namespace uma::llm
