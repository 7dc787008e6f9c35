#include "llm/llama_projector.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <mtmd-helper.h>
#include <mtmd.h>
#include <mutex>
#include <utility>

#include "llm/llama_guard.h"
#include "llm/llama_log.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

template <auto free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using ContextPtr = std::unique_ptr<mtmd_context, Freed<mtmd_free>>;
using BitmapPtr = std::unique_ptr<mtmd_bitmap, Freed<mtmd_bitmap_free>>;
using ChunksPtr = std::unique_ptr<mtmd_input_chunks, Freed<mtmd_input_chunks_free>>;

class LlamaProjector final : public Projector {
 public:
  LlamaProjector(std::shared_ptr<llama_model> model, ContextPtr context, ProjectorFacts facts)
      : model_(std::move(model)), context_(std::move(context)), facts_(std::move(facts)) {}
  ~LlamaProjector() override {
    const std::lock_guard lock(making_mutex());
    context_.reset();
  }

  const ProjectorFacts& facts() const override { return facts_; }
  Expected<ImageLayout> layout(std::span<const std::byte> image) const override;
  Expected<std::vector<float>> encode(std::span<const std::byte> image) override;

 private:
  // Decodes the image and converts it to the encoder's input.
  [[nodiscard]] Expected<ChunksPtr> cut(std::span<const std::byte> image) const;

  std::shared_ptr<llama_model> model_;  // Shared, because the projector may outlive the model's other users.
  ContextPtr context_;
  ProjectorFacts facts_;
};

Expected<ChunksPtr> LlamaProjector::cut(std::span<const std::byte> image) const {
  const BitmapPtr bitmap(mtmd_helper_bitmap_init_from_buf(context_.get(), reinterpret_cast<const unsigned char*>(image.data()),
                                                          image.size(), false, mtmd_helper_init_opt_default())
                             .bitmap);
  if (bitmap == nullptr || mtmd_bitmap_is_audio(bitmap.get())) {
    return fail(ErrorCode::proto_field, "the image cannot be decoded: it is damaged or has an unsupported format");
  }
  // The image is a part of its own, so no text is searched for a marker.
  const mtmd_input_part part{.text = nullptr, .bitmap = bitmap.get()};
  const mtmd_input_part* const parts[] = {&part};
  ChunksPtr chunks(mtmd_input_chunks_init());
  if (mtmd_tokenize_from_parts(context_.get(), chunks.get(), parts, 1, false) != 0) {
    return fail(ErrorCode::proto_field, "the image cannot be converted to the input of the model");
  }
  return chunks;
}

Expected<ImageLayout> LlamaProjector::layout(std::span<const std::byte> image) const {
  return guarded(ErrorCode::runtime_decode, "reading an image", [&]() -> Expected<ImageLayout> {
    const auto chunks = cut(image);
    if (!chunks) return std::unexpected(chunks.error());
    ImageLayout layout;
    for (std::size_t i = 0; i < mtmd_input_chunks_size(chunks->get()); ++i) {
      const mtmd_input_chunk* chunk = mtmd_input_chunks_get(chunks->get(), i);
      if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
        std::size_t count = 0;
        const llama_token* tokens = mtmd_input_chunk_get_tokens_text(chunk, &count);
        layout.tokens.insert(layout.tokens.end(), tokens, tokens + count);
        continue;
      }
      const std::size_t rows = mtmd_input_chunk_get_n_tokens(chunk);
      if (static_cast<std::size_t>(mtmd_input_chunk_get_n_pos(chunk)) != rows) {
        return fail(ErrorCode::model_capability, "the image needs positions of several dimensions, which are not supported");
      }
      layout.tokens.insert(layout.tokens.end(), rows, kNoToken);
      layout.pieces.push_back(static_cast<std::int32_t>(rows));
    }
    if (layout.rows_count() == 0) return fail(ErrorCode::runtime_decode, "the projector computed no rows for the image");
    return layout;
  });
}

Expected<std::vector<float>> LlamaProjector::encode(std::span<const std::byte> image) {
  return guarded(ErrorCode::runtime_decode, "encoding an image", [&]() -> Expected<std::vector<float>> {
    const auto chunks = cut(image);
    if (!chunks) return std::unexpected(chunks.error());
    std::vector<float> rows;
    for (std::size_t i = 0; i < mtmd_input_chunks_size(chunks->get()); ++i) {
      const mtmd_input_chunk* chunk = mtmd_input_chunks_get(chunks->get(), i);
      if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) continue;
      const bool is_done = mtmd_encode_chunk(context_.get(), chunk) == 0;
      const float* values = is_done ? mtmd_get_output_embd(context_.get()) : nullptr;
      if (values == nullptr) return fail(ErrorCode::runtime_decode, "the image could not be encoded");
      rows.insert(rows.end(), values,
                  values + mtmd_input_chunk_get_n_tokens(chunk) * static_cast<std::size_t>(facts_.row_width));
    }
    if (!std::ranges::all_of(rows, [](float value) { return std::isfinite(value); })) {
      return fail(ErrorCode::runtime_decode,
                  "the projector computed values that are not finite: its file, or the image, may be damaged");
    }
    return rows;
  });
}

}  // namespace

Expected<std::unique_ptr<Projector>> load_llama_projector(const std::string& path, std::shared_ptr<llama_model> model,
                                                          std::int32_t threads) {
  auto identity = model_identity(path);
  if (!identity) return std::unexpected(identity.error());
  return guarded(ErrorCode::model_load, path.c_str(), [&]() -> Expected<std::unique_ptr<Projector>> {
    static std::once_flag once;
    std::call_once(once, [] {
      mtmd_helper_log_set([](ggml_log_level level, const char* text, void*) { library_log().add(level, text); }, nullptr);
    });
    mtmd_context_params params = mtmd_context_params_default();
    params.n_threads = threads;
    params.print_timings = false;
    params.warmup = false;
    const auto make = [&] {
      const std::lock_guard lock(making_mutex());
      library_log().forget();
      return ContextPtr(mtmd_init_from_file(path.c_str(), model.get(), params));
    };
    ContextPtr context = make();
    if (context == nullptr) {
      const std::string reason = library_log().last_error();
      return fail(ErrorCode::model_load,
                  std::format("{}: not a projector for this model{}{}", path, reason.empty() ? "" : ": ", reason));
    }
    if (!mtmd_support_vision(context.get())) return fail(ErrorCode::model_load, path + ": this projector has no image encoder");
    if (mtmd_decode_use_mrope(context.get())) {
      return fail(ErrorCode::model_load,
                  path + ": images of this model need positions of several dimensions (M-RoPE), which are not supported");
    }
    ProjectorFacts facts{.identity = std::format("{}|{}", *identity, llama_version()),
                         .row_width = llama_model_n_embd_inp(model.get()),
                         .is_causal = !mtmd_decode_use_non_causal(context.get(), nullptr)};
    return std::make_unique<LlamaProjector>(std::move(model), std::move(context), std::move(facts));
  });
}

}  // namespace uma::llm
