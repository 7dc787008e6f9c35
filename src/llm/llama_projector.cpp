#include "llm/llama_projector.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <mtmd-helper.h>
#include <mtmd.h>
#include <mutex>
#include <utility>

#include "llm/llama_context.h"
#include "llm/llama_guard.h"
#include "llm/llama_log.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

// Memory and time of encoding grow with the square of an image's rows.
constexpr std::int32_t kGridTokensMax = 1024;

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

GridPlace place_of(const mtmd_image_tokens* image, llama_pos begin, std::size_t row) {
  const mtmd_decoder_pos place = mtmd_image_tokens_get_decoder_pos(image, begin, row);
  // In the order of a batch.
  return {static_cast<std::int32_t>(place.t), static_cast<std::int32_t>(place.y), static_cast<std::int32_t>(place.x),
          static_cast<std::int32_t>(place.z)};
}

// Adds the positions of a piece's rows. They depend on the place of the piece in a chain, which is not known here: each
// dimension either grows with it or stays.
Expected<Unit> add_grid(const mtmd_input_chunk* chunk, std::int32_t advance, ImageGrid& grid) {
  const mtmd_image_tokens* image = mtmd_input_chunk_get_tokens_image(chunk);
  const std::size_t rows = mtmd_input_chunk_get_n_tokens(chunk);
  bool is_known = image != nullptr && advance > 0 && static_cast<std::size_t>(advance) <= rows;
  for (std::size_t row = 0; is_known && row < rows; ++row) {
    const GridPlace first = place_of(image, 0, row);
    const GridPlace moved = place_of(image, 1, row);
    GridPlace moves{};
    for (std::size_t i = 0; i < moves.size(); ++i) moves[i] = moved[i] - first[i];
    if (grid.places.empty()) grid.moves = moves;
    // The first dimension is the position in the cache.
    is_known = moves == grid.moves && moves[0] == 1 && first[0] >= 0 && first[0] < advance &&
               std::ranges::all_of(moves, [](std::int32_t step) { return step == 0 || step == 1; });
    grid.places.push_back(first);
  }
  if (!is_known) return fail(ErrorCode::model_capability, "the projector gives the image positions of an unknown kind");
  grid.advance.push_back(advance);
  return Unit{};
}

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
      const std::int32_t advance = mtmd_input_chunk_get_n_pos(chunk);
      if (facts_.has_grids) {
        if (auto added = add_grid(chunk, advance, layout.grid); !added) return std::unexpected(added.error());
      } else if (static_cast<std::size_t>(advance) != rows) {
        return fail(ErrorCode::model_capability, "the image needs positions of several dimensions, which the model has not");
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
                                                          const ProjectorOptions& options) {
  auto identity = model_identity(path);
  if (!identity) return std::unexpected(identity.error());
  return guarded(ErrorCode::model_load, path.c_str(), [&]() -> Expected<std::unique_ptr<Projector>> {
    static std::once_flag once;
    std::call_once(once, [] {
      mtmd_helper_log_set([](ggml_log_level level, const char* text, void*) { library_log().add(level, text); }, nullptr);
    });
    mtmd_context_params params = mtmd_context_params_default();
    params.n_threads = options.threads;
    params.print_timings = false;
    params.warmup = false;
    const bool has_grids = has_grid_positions(model.get());
    std::int32_t tokens_max = options.image_tokens_max;
    // One call computes all rows of an image with a grid.
    if (has_grids) tokens_max = tokens_max > 0 ? std::min(tokens_max, kBatchRows) : kGridTokensMax;
    if (tokens_max > 0) params.image_max_tokens = tokens_max;
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
    if (mtmd_decode_use_mrope(context.get()) != has_grids) {
      return fail(ErrorCode::model_load, path + ": the projector and the model disagree about positions of several dimensions");
    }
    ProjectorFacts facts{.identity = std::format("{}|{}", *identity, llama_version()),
                         .row_width = llama_model_n_embd_inp(model.get()),
                         .is_causal = !mtmd_decode_use_non_causal(context.get(), nullptr),
                         .has_grids = has_grids};
    if (tokens_max > 0) facts.identity += std::format("|{} tokens", tokens_max);
    return std::make_unique<LlamaProjector>(std::move(model), std::move(context), std::move(facts));
  });
}

}  // namespace uma::llm
