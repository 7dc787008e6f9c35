#include "llm/media/llama_projector.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <format>
#include <mtmd-helper.h>
#include <mtmd.h>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "llm/device/device_timer.h"
#include "llm/device/llama_devices.h"
#include "llm/device/lost_devices.h"
#include "llm/llama_context.h"
#include "llm/llama_guard.h"
#include "llm/llama_log.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

// Memory and time of encoding grow with the square of an image's rows.
constexpr std::int32_t kGridTokensMax = 1024;
// Shorter clips, and shorter rests of a clip behind its last half minute, are continued with silence: some encoders end the
// process on them. Encoders divide a clip into half minutes.
constexpr double kClipSecondsMin = 0.5;
constexpr std::size_t kPieceSeconds = 30;
constexpr const char* kEnded = "the encoding was ended early";

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

// The samples; a clip that is too short goes on with silence.
std::vector<float> with_silence(const Clip& clip) {
  std::vector<float> samples = clip.samples;
  const auto rate = static_cast<std::size_t>(clip.sample_rate);
  const auto least = static_cast<std::size_t>(kClipSecondsMin * static_cast<double>(rate));
  const std::size_t rest = samples.size() % (kPieceSeconds * rate);
  if (rest != 0 && rest < least) samples.resize(samples.size() - rest + least);
  return samples;
}

GridPlace place_of(const mtmd_image_tokens* image, llama_pos begin, std::size_t row) {
  const mtmd_decoder_pos place = mtmd_image_tokens_get_decoder_pos(image, begin, row);
  // In the order of a batch.
  return {static_cast<std::int32_t>(place.t), static_cast<std::int32_t>(place.y), static_cast<std::int32_t>(place.x),
          static_cast<std::int32_t>(place.z)};
}

// The positions of a clip's rows, which follow one another like those of text.
Expected<Unit> add_line(std::int32_t rows, ImageGrid& grid) {
  constexpr GridPlace kMoves{1, 1, 1, 0};
  if (grid.places.empty()) grid.moves = kMoves;
  if (grid.moves != kMoves)
    return fail(ErrorCode::model_capability, "the projector gives the clip positions of an unknown kind");
  for (std::int32_t row = 0; row < rows; ++row) grid.places.push_back({row, row, row, 0});
  grid.advance.push_back(rows);
  return Unit{};
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

// Asks a monitor between the nodes of an encoder's graph.
class EncodingWatch {
 public:
  void begin(CallMonitor* monitor) {
    monitor_ = monitor;
    nodes_ = 0;
    is_ended_ = false;
  }
  [[nodiscard]] bool is_ended() const { return is_ended_; }

  // The library asks before a node whether to call again behind it, and then whether to go on with the next one.
  static bool on_node(ggml_tensor*, bool is_before, void* watch) {
    return static_cast<EncodingWatch*>(watch)->on_node(is_before);
  }

 private:
  static constexpr std::uint32_t kNodesPerLook = 16;  // A layer has about 30.

  bool on_node(bool is_before) {
    // The library computes each part of a graph, on one device, up to the first node behind which it is told to end.
    if (is_before) return monitor_ != nullptr && (is_ended_ || ++nodes_ % kNodesPerLook == 0);
    is_ended_ = is_ended_ || monitor_->wants_end();
    return !is_ended_;
  }

  CallMonitor* monitor_ = nullptr;
  std::uint32_t nodes_ = 0;
  bool is_ended_ = false;
};

class LlamaProjector final : public Projector {
 public:
  // `device` encodes; null: the CPU.
  LlamaProjector(std::shared_ptr<llama_model> model, std::unique_ptr<EncodingWatch> watch, ContextPtr context,
                 ProjectorFacts facts, ggml_backend_dev_t device)
      : model_(std::move(model)),
        watch_(std::move(watch)),
        context_(std::move(context)),
        facts_(std::move(facts)),
        device_(device) {}
  ~LlamaProjector() override {
    if (find_lost(devices(), "")) {
      [[maybe_unused]] auto* const kept = context_.release();  // See free_context().
      log_warning("an encoder on a lost device is not freed: its memory is free when umad ends");
      return;
    }
    const std::lock_guard lock(making_mutex());
    context_.reset();
  }

  const ProjectorFacts& facts() const override { return facts_; }
  bool is_lost() const override { return LostDevices::of_process().contain_any(devices()); }
  Expected<ImageLayout> layout(const ProjectorInput& image) const override;
  Expected<std::vector<float>> encode(const ProjectorInput& image, CallMonitor* monitor) override;

 private:
  // Converts the image to the encoder's input.
  [[nodiscard]] Expected<ChunksPtr> cut(const ProjectorInput& image) const;
  [[nodiscard]] DeviceList devices() const { return {&device_, device_ == nullptr ? 0u : 1u}; }

  std::shared_ptr<llama_model> model_;    // Shared, because the projector may outlive the model's other users.
  std::unique_ptr<EncodingWatch> watch_;  // The library's context has its address.
  ContextPtr context_;
  mutable Mutex cutting_;  // The library does not say that its conversion of images may run twice at a time.
  ProjectorFacts facts_;
  ggml_backend_dev_t device_;
  const DeviceTimer timer_{devices()};
};

Expected<ChunksPtr> LlamaProjector::cut(const ProjectorInput& image) const {
  const bool is_clip = std::holds_alternative<const Clip*>(image);
  if (is_clip ? !facts_.reads_audio : !facts_.reads_images) {
    return fail(ErrorCode::model_capability, std::format("the model's projector reads no {}", is_clip ? "audio" : "images"));
  }
  BitmapPtr bitmap;
  if (is_clip) {
    const std::vector<float> samples = with_silence(*std::get<const Clip*>(image));
    bitmap.reset(mtmd_bitmap_init_from_audio(samples.size(), samples.data()));
  } else {
    const Picture& picture = *std::get<const Picture*>(image);
    bitmap.reset(mtmd_bitmap_init(static_cast<std::uint32_t>(picture.width), static_cast<std::uint32_t>(picture.height),
                                  picture.levels.data()));
  }
  // The image is a part of its own, so no text is searched for a marker.
  const mtmd_input_part part{.text = nullptr, .bitmap = bitmap.get()};
  const mtmd_input_part* const parts[] = {&part};
  ChunksPtr chunks(mtmd_input_chunks_init());
  const MutexLock lock(cutting_);
  if (mtmd_tokenize_from_parts(context_.get(), chunks.get(), parts, 1, false) != 0) {
    return fail(ErrorCode::proto_field,
                std::format("the {} cannot be converted to the input of the model", is_clip ? "clip" : "image"));
  }
  return chunks;
}

Expected<ImageLayout> LlamaProjector::layout(const ProjectorInput& image) const {
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
      layout.is_causal = layout.is_causal && !mtmd_decode_use_non_causal(context_.get(), chunk);
      if (facts_.has_grids && mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_AUDIO) {
        if (auto added = add_line(static_cast<std::int32_t>(rows), layout.grid); !added) return std::unexpected(added.error());
      } else if (facts_.has_grids) {
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

Expected<std::vector<float>> LlamaProjector::encode(const ProjectorInput& image, CallMonitor* monitor) {
  return guarded_on(devices(), ErrorCode::runtime_decode, "encoding an image", [&]() -> Expected<std::vector<float>> {
    const auto chunks = cut(image);
    if (!chunks) return std::unexpected(chunks.error());
    std::vector<float> rows;
    watch_->begin(monitor);
    const auto computing = timer_.begin();
    for (std::size_t i = 0; i < mtmd_input_chunks_size(chunks->get()); ++i) {
      const mtmd_input_chunk* chunk = mtmd_input_chunks_get(chunks->get(), i);
      if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) continue;
      if (monitor != nullptr && monitor->wants_end()) return fail(ErrorCode::limit_wait, kEnded);
      const bool is_done = mtmd_encode_chunk(context_.get(), chunk) == 0;
      if (watch_->is_ended()) return fail(ErrorCode::limit_wait, kEnded);
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
                                                          const ProjectorOptions& options,
                                                          const DeviceOptions& device_options) {
  auto identity = model_identity(path);
  if (!identity) return std::unexpected(identity.error());
  return guarded(ErrorCode::model_load, path.c_str(), [&]() -> Expected<std::unique_ptr<Projector>> {
    static std::once_flag once;
    std::call_once(once, [] {
      mtmd_helper_log_set([](ggml_log_level level, const char* text, void*) { library_log().add(level, text); }, nullptr);
    });
    const auto devices = ChosenDevices::of(device_options);
    if (!devices) return std::unexpected(devices.error());
    mtmd_context_params params = mtmd_context_params_default();
    params.use_gpu = devices->first() != nullptr;
    params.device = devices->first();
    params.n_threads = options.threads;
    params.print_timings = false;
    params.warmup = false;
    const bool has_grids = has_grid_positions(model.get());
    std::int32_t tokens_max = options.image_tokens_max;
    // One call computes all rows of an image with a grid.
    if (has_grids) tokens_max = tokens_max > 0 ? std::min(tokens_max, kBatchRows) : kGridTokensMax;
    if (tokens_max > 0) params.image_max_tokens = tokens_max;
    auto watch = std::make_unique<EncodingWatch>();
    params.cb_eval = &EncodingWatch::on_node;
    params.cb_eval_user_data = watch.get();
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
    const bool reads_images = mtmd_support_vision(context.get());
    const bool reads_audio = mtmd_support_audio(context.get());
    if (!reads_images && !reads_audio) return fail(ErrorCode::model_load, path + ": this projector has no encoder");
    if (mtmd_decode_use_mrope(context.get()) != has_grids) {
      return fail(ErrorCode::model_load, path + ": the projector and the model disagree about positions of several dimensions");
    }
    ProjectorFacts facts{.identity = std::format("{}|{}", *identity, llama_version()),
                         .row_width = llama_model_n_embd_inp(model.get()),
                         .has_grids = has_grids,
                         .reads_images = reads_images,
                         .reads_audio = reads_audio,
                         .sample_rate = reads_audio ? std::max(1, mtmd_get_audio_sample_rate(context.get())) : 0};
    if (tokens_max > 0) facts.identity += std::format("|{} tokens", tokens_max);
    return std::make_unique<LlamaProjector>(std::move(model), std::move(watch), std::move(context), std::move(facts),
                                            devices->first());
  });
}

}  // namespace uma::llm
