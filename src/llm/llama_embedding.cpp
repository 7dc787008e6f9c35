#include "llm/llama_embedding.h"

#include <algorithm>
#include <array>
#include <format>
#include <mutex>
#include <string>
#include <utility>

#include "base/check.h"
#include "llm/device/lost_devices.h"
#include "llm/file/llama_model_file.h"
#include "llm/llama_context.h"
#include "llm/llama_guard.h"
#include "llm/llama_log.h"
#include "llm/media/image_batch.h"

namespace uma::llm {
namespace {

constexpr std::int32_t kRows = 512;  // Rows of a call, unless the texts need more.
constexpr std::int32_t kTextsMax = 128;

std::string meta_text(const llama_model* model, const std::string& key) {
  std::array<char, 64> buffer{};
  return llama_model_meta_val_str(model, key.c_str(), buffer.data(), buffer.size()) < 0 ? "" : buffer.data();
}

std::string architecture_of(const llama_model* model) {
  return meta_text(model, "general.architecture");
}

bool sees_both_directions(const llama_model* model) {
  return meta_text(model, architecture_of(model) + ".attention.causal") == "false";
}

enum llama_pooling_type library_pooling(Pooling pooling) {
  switch (pooling) {
    case Pooling::mean:
      return LLAMA_POOLING_TYPE_MEAN;
    case Pooling::cls:
      return LLAMA_POOLING_TYPE_CLS;
    case Pooling::last:
      return LLAMA_POOLING_TYPE_LAST;
    case Pooling::rank:
      break;
  }
  return LLAMA_POOLING_TYPE_RANK;
}

void append_unless_none(std::vector<Token>& tokens, llama_token token) {
  if (token != LLAMA_TOKEN_NULL) tokens.push_back(token);
}

}  // namespace

std::optional<Pooling> pooling_of(const llama_model* model, std::optional<Pooling> given) {
  if (given) return given;
  const std::string stated = meta_text(model, architecture_of(model) + ".pooling_type");
  if (stated == std::to_string(LLAMA_POOLING_TYPE_MEAN)) return Pooling::mean;
  if (stated == std::to_string(LLAMA_POOLING_TYPE_CLS)) return Pooling::cls;
  if (stated == std::to_string(LLAMA_POOLING_TYPE_LAST)) return Pooling::last;
  if (stated == std::to_string(LLAMA_POOLING_TYPE_RANK)) return Pooling::rank;
  if (sees_both_directions(model)) return Pooling::mean;
  return std::nullopt;
}

TextFrame text_frame_of(const llama_vocab* vocab) {
  const llama_token bos = llama_vocab_bos(vocab);
  const llama_token eos = llama_vocab_eos(vocab);
  const llama_token sep = llama_vocab_sep(vocab);
  // A tokenizer with word pieces always writes [CLS] text [SEP].
  const bool is_word_piece = llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_WPM;
  TextFrame frame;
  if (is_word_piece || llama_vocab_get_add_bos(vocab)) append_unless_none(frame.before, bos);
  if (is_word_piece) {
    append_unless_none(frame.after, sep);
  } else if (llama_vocab_get_add_eos(vocab)) {
    append_unless_none(frame.after, eos);
  }
  if (llama_vocab_get_add_eos(vocab)) append_unless_none(frame.between, eos == LLAMA_TOKEN_NULL ? sep : eos);
  frame.after_pair = frame.between;
  if (llama_vocab_get_add_sep(vocab)) append_unless_none(frame.between, sep);
  return frame;
}

namespace {

struct Wanted {
  llama_context_params params;
  Pooling pooling = Pooling::mean;
  std::int32_t dimensions = 0;
  std::int32_t text_tokens = 0;
  bool has_parts = false;
};

Expected<Wanted> wanted_of(const llama_model* model, const EmbeddingOptions& options) {
  const auto pooling = pooling_of(model, options.pooling);
  UMA_CHECK(pooling.has_value());
  Wanted wanted{.params = llama_context_default_params(), .pooling = *pooling};
  wanted.dimensions =
      pooling == Pooling::rank ? static_cast<std::int32_t>(llama_model_n_cls_out(model)) : llama_model_n_embd_out(model);
  if (wanted.dimensions < 1) return fail(ErrorCode::model_load, "the model has no embedding length");
  const std::int64_t supported = supported_tokens(options.rope, context_lengths(model), options.text_tokens_max);
  wanted.text_tokens = options.text_tokens_max > 0 ? options.text_tokens_max : kTextTokensMax;
  // Positions beyond the training context may exceed the model's table, which ends the process. A model with such a table has
  // no rotary positions.
  if (supported > 0) wanted.text_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(wanted.text_tokens, supported));
  const auto rows = static_cast<std::uint32_t>(std::max(wanted.text_tokens, kRows));
  // A text can be computed in parts if its vector comes from its last token and its tokens attend backwards only. In such
  // models each row of a part takes memory for a vocabulary of floats.
  wanted.has_parts = (pooling == Pooling::last || pooling == Pooling::rank) && !sees_both_directions(model);

  llama_context_params& params = wanted.params;
  params.embeddings = true;
  params.pooling_type = library_pooling(*pooling);
  params.n_ctx = rows;
  params.n_batch = rows;
  params.n_ubatch = wanted.has_parts ? static_cast<std::uint32_t>(kRows) : rows;
  params.n_seq_max = kTextsMax;
  params.kv_unified = true;
  params.n_threads = params.n_threads_batch = options.threads;
  params.flash_attn_type = options.has_flash_attention ? LLAMA_FLASH_ATTN_TYPE_AUTO : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.no_perf = true;
  if (auto applied = apply_rope(model, options.rope, params); !applied) return std::unexpected(applied.error());
  return wanted;
}

// The memory of the last context that this thread made; `memory` is the library's account of it.
ContextBytes bytes_of_last(const llama_model* model, const llama_context_params& params, bool has_parts,
                           const std::optional<LibraryMemory>& memory) {
  // Each row has its output. The library also allocates logits for each text, or for each row of a part.
  const auto width = static_cast<std::uint64_t>(llama_model_n_embd_out(model));
  const auto vocabulary = static_cast<std::uint64_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  const std::uint64_t logits = vocabulary * (has_parts ? params.n_ubatch : params.n_seq_max);
  const std::uint64_t numbers = params.n_batch * width + logits;
  return {.cache = library_log().cache_bytes(),
          .compute = library_log().compute_bytes(),
          .output = numbers * sizeof(float),
          .on_devices = memory ? memory->context_on_devices : DeviceBytes()};
}

}  // namespace

Expected<EmbeddingMeasured> measure_embedding(llama_model* model, const EmbeddingOptions& options) {
  const auto wanted = wanted_of(model, options);
  if (!wanted) return std::unexpected(wanted.error());
  return guarded(ErrorCode::model_load, "measuring a context", [&]() -> Expected<EmbeddingMeasured> {
    const std::lock_guard lock(making_mutex());
    library_log().forget();
    const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(model, wanted->params),
                                                                        llama_free);
    if (context == nullptr) {
      return fail(ErrorCode::model_load, std::format("the context cannot be measured: {}", library_log().last_error()));
    }
    const auto memory = library_memory(context.get());
    return EmbeddingMeasured{.bytes = bytes_of_last(model, wanted->params, wanted->has_parts, memory), .memory = memory};
  });
}

Expected<std::unique_ptr<EmbeddingContext>> LlamaEmbedding::create(const std::shared_ptr<llama_model>& model,
                                                                   const EmbeddingOptions& options, RpcServers rpc_servers) {
  const auto wanted = wanted_of(model.get(), options);
  if (!wanted) return std::unexpected(wanted.error());
  const DeviceList devices = devices_under(model.get());
  return guarded_on(devices, ErrorCode::model_load, "making a context", [&]() -> Expected<std::unique_ptr<EmbeddingContext>> {
    const std::lock_guard lock(making_mutex());
    library_log().forget();
    llama_context* context = llama_init_from_model(model.get(), wanted->params);
    if (auto all_there = rpc_servers.check(ErrorCode::model_load); !all_there) {
      llama_free(context);
      return std::unexpected(all_there.error());
    }
    if (context == nullptr) {
      return fail(ErrorCode::model_load, std::format("cannot make a context for texts of {} tokens ({}): try a smaller --n-ctx",
                                                     wanted->text_tokens, library_log().last_error()));
    }
    EmbeddingShape shape;
    shape.batch_rows_max = static_cast<std::int32_t>(llama_n_batch(context));
    if (!wanted->has_parts) {
      shape.batch_rows_max = std::min(shape.batch_rows_max, static_cast<std::int32_t>(llama_n_ubatch(context)));
    }
    shape.text_tokens_max = std::min(wanted->text_tokens, shape.batch_rows_max);
    shape.batch_texts_max = static_cast<std::int32_t>(llama_n_seq_max(context));
    shape.dimensions = wanted->dimensions;
    shape.pooling = wanted->pooling;
    // In other models the rows of an image would not be in the text's mean, or would not see the tokens behind them.
    shape.reads_images = wanted->has_parts && wanted->pooling == Pooling::last && llama_get_memory(context) != nullptr;
    shape.image_rows_max = std::min(shape.batch_rows_max, static_cast<std::int32_t>(llama_n_ubatch(context)));
    const ContextBytes bytes = bytes_of_last(model.get(), wanted->params, wanted->has_parts, library_memory(context));
    shape.memory_bytes = bytes.total();
    shape.on_devices = bytes.on_devices;
    return std::unique_ptr<EmbeddingContext>(new LlamaEmbedding(model, context, shape, std::move(rpc_servers)));
  });
}

LlamaEmbedding::LlamaEmbedding(std::shared_ptr<llama_model> model, llama_context* context, const EmbeddingShape& shape,
                               RpcServers rpc_servers)
    : rpc_servers_(std::move(rpc_servers)),
      model_(std::move(model)),
      devices_(devices_under(model_.get())),
      timer_(devices_),
      context_(context),
      shape_(shape),
      has_grids_(has_grid_positions(model_.get())),
      vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model_.get()))),
      batch_(llama_batch_init(shape.batch_rows_max, 0, 1)) {
  llama_set_abort_callback(context_, ask_monitor, &monitor_);
}

LlamaEmbedding::~LlamaEmbedding() {
  llama_batch_free(batch_);
  free_context(context_, devices_);
}

std::string LlamaEmbedding::loss() const {
  const auto all_there = rpc_servers_.check(ErrorCode::runtime_decode);
  return all_there ? EmbeddingContext::loss() : all_there.error().message;
}

bool LlamaEmbedding::is_lost() const {
  return rpc_servers_.are_lost() || LostDevices::of_process().contain_any(devices_);
}

void LlamaEmbedding::set_threads(std::int32_t threads) {
  llama_set_n_threads(context_, threads, threads);
}

void LlamaEmbedding::add_row(Token token, std::int32_t position, std::int32_t sequence) {
  UMA_CHECK(token >= 0 && token < vocabulary_ && batch_.n_tokens < shape_.batch_rows_max);
  const std::int32_t row = batch_.n_tokens++;
  batch_.token[row] = token;
  batch_.pos[row] = position;
  batch_.n_seq_id[row] = 1;
  batch_.seq_id[row][0] = sequence;
  batch_.logits[row] = 1;
}

Expected<bool> LlamaEmbedding::run(const llama_batch& batch, CallMonitor* monitor, bool sees_ahead) {
  if (auto all_there = rpc_servers_.check(ErrorCode::runtime_decode); !all_there) return std::unexpected(all_there.error());
  monitor_.store(monitor, std::memory_order_release);
  if (sees_ahead) llama_set_causal_attn(context_, false);
  auto done = guarded_on(devices_, ErrorCode::runtime_decode, "embedding", [&]() -> Expected<bool> {
    const bool has_memory = llama_get_memory(context_) != nullptr;
    const auto servers_lock = rpc_servers_.lock();
    const auto computing = timer_.begin();
    const std::int32_t result = has_memory ? llama_decode(context_, batch) : llama_encode(context_, batch);
    if (result == 0) llama_synchronize(context_);  // See LlamaContext::run().
    if (auto all_there = rpc_servers_.check(ErrorCode::runtime_decode); !all_there) return std::unexpected(all_there.error());
    if (result == 0 || result == 2) return result == 0;
    return fail(ErrorCode::runtime_decode,
                std::format("libllama failed to compute {} tokens of texts (code {})", batch.n_tokens, result));
  });
  if (sees_ahead) llama_set_causal_attn(context_, true);
  monitor_.store(nullptr, std::memory_order_release);
  return done;
}

Expected<Unit> LlamaEmbedding::append_output(std::int32_t sequence, std::vector<float>& out) const {
  return guarded_on(devices_, ErrorCode::runtime_decode, "reading a vector", [&]() -> Expected<Unit> {
    const float* values = llama_get_embeddings_seq(context_, sequence);
    if (values == nullptr) return fail(ErrorCode::runtime_decode, "libllama returned no vector for a computed text");
    out.insert(out.end(), values, values + shape_.dimensions);
    return Unit{};
  });
}

void LlamaEmbedding::forget(std::size_t sequences) {
  auto* const memory = llama_get_memory(context_);
  if (memory == nullptr) return;
  for (std::size_t i = 0; i < sequences; ++i) llama_memory_seq_rm(memory, static_cast<llama_seq_id>(i), -1, -1);
}

Expected<bool> LlamaEmbedding::compute(std::span<const std::span<const Token>> texts, CallMonitor* monitor,
                                       std::vector<float>& out) {
  UMA_CHECK(!texts.empty() && texts.size() <= static_cast<std::size_t>(shape_.batch_texts_max));
  batch_.n_tokens = 0;
  for (std::size_t text = 0; text < texts.size(); ++text) {
    UMA_CHECK(!texts[text].empty() && texts[text].size() <= static_cast<std::size_t>(shape_.text_tokens_max));
    std::int32_t position = 0;
    for (const Token token : texts[text]) add_row(token, position++, static_cast<std::int32_t>(text));
  }
  auto done = run(batch_, monitor, false);
  out.clear();
  for (std::size_t text = 0; done && *done && text < texts.size(); ++text) {
    if (auto added = append_output(static_cast<std::int32_t>(text), out); !added) done = std::unexpected(added.error());
  }
  forget(texts.size());
  return done;
}

Expected<bool> LlamaEmbedding::compute_with_images(std::span<const Token> text, std::span<const ImageRows> images,
                                                   CallMonitor* monitor, std::vector<float>& out) {
  UMA_CHECK(shape_.reads_images && !text.empty() && text.size() <= static_cast<std::size_t>(shape_.text_tokens_max));
  PositionMap map;
  Expected<bool> done = true;
  const auto size = static_cast<std::int32_t>(text.size());
  for (std::int32_t at = 0; done && *done && at < size;) {
    if (images.empty() || images.front().position > at) {
      const std::int32_t end = images.empty() ? size : images.front().position;
      batch_.n_tokens = 0;
      for (; at < end; ++at) add_row(text[static_cast<std::size_t>(at)], map.position_of(at), 0);
      done = run(batch_, monitor, false);
    } else {
      done = run_image(images.front(), map, monitor);
      at += static_cast<std::int32_t>(images.front().tokens.size());
      images = images.subspan(1);
    }
  }
  out.clear();
  if (done && *done) {
    if (auto added = append_output(0, out); !added) done = std::unexpected(added.error());
  }
  forget(1);
  return done;
}

Expected<bool> LlamaEmbedding::run_image(const ImageRows& image, PositionMap& map, CallMonitor* monitor) {
  const std::size_t count = image.tokens.size();
  const bool has_grid = !image.grid.places.empty();
  const std::int32_t rows_max = image.is_causal ? shape_.batch_rows_max : shape_.image_rows_max;
  UMA_CHECK(count > 0 && count <= static_cast<std::size_t>(rows_max));
  UMA_CHECK(image.values.size() == count * static_cast<std::size_t>(llama_model_n_embd_inp(model_.get())));
  UMA_CHECK(!has_grid || (has_grids_ && image.grid.places.size() == count));
  const llama_batch batch = image_batch(image, map.position_of(image.position), has_grids_, batch_, image_positions_);
  for (std::size_t i = 0; i < count; ++i) {
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;  // A pooled context computes all outputs.
  }
  auto done = run(batch, monitor, !image.is_causal);
  if (has_grid && done && *done) {
    map.add({.begin = image.position, .rows = static_cast<std::int32_t>(count), .advance = image.grid.advance});
  }
  return done;
}

}  // namespace uma::llm
