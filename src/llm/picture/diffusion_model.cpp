// Stable Diffusion 1 and 2 (diffusion_model_of() of loadable_picture.h).
#include <algorithm>
#include <cmath>
#include <format>
#include <numeric>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "llm/llama_model.h"
#include "llm/picture/clip_tokens.h"
#include "llm/picture/diffusion_drawing.h"
#include "llm/picture/diffusion_graph.h"
#include "llm/picture/loadable_picture.h"
#include "llm/picture/prompt_weights.h"
#include "llm/picture/time_waves.h"

namespace uma::llm {
namespace {

constexpr std::size_t kPiecesMax = 3;  // Pieces of a prompt.
constexpr std::size_t kPieceTokens = kClipLength - 2;
constexpr const char* kEncoder = "vae.encoder.conv_in.weight";

// The text's tokens in pieces that the encoder reads one by one. `pad` stands behind the end of each.
Expected<CaptionTokens> caption_tokens(std::string_view text, std::int32_t pad) {
  const auto parts = read_prompt(text);
  if (!parts) return std::unexpected(parts.error());
  struct Piece {
    std::vector<std::int32_t> ids;
    std::vector<float> weights;
  };
  std::vector<Piece> pieces(1);
  CaptionTokens tokens;
  for (const PromptPart& part : *parts) {
    if (part.begins_piece && !pieces.back().ids.empty()) pieces.emplace_back();
    for (const std::int32_t id : ClipTokens::shared().encode(part.text)) {
      if (pieces.back().ids.size() == kPieceTokens) pieces.emplace_back();
      pieces.back().ids.push_back(id);
      pieces.back().weights.push_back(part.weight);
      ++tokens.count;
    }
  }
  if (pieces.size() > kPiecesMax) {
    return fail(ErrorCode::proto_field, std::format("the prompt has {} tokens in {} pieces, and the model reads {} of {}",
                                                    tokens.count, pieces.size(), kPiecesMax, kPieceTokens));
  }
  bool has_weights = false;
  for (const Piece& piece : pieces) {
    tokens.ids.push_back(kClipStart);
    tokens.ids.insert(tokens.ids.end(), piece.ids.begin(), piece.ids.end());
    tokens.ids.push_back(kClipEnd);
    tokens.weights.push_back(1);
    tokens.weights.insert(tokens.weights.end(), piece.weights.begin(), piece.weights.end());
    const std::size_t length = (tokens.ids.size() + kClipLength - 1) / kClipLength * kClipLength;
    tokens.ids.resize(length, pad);
    tokens.weights.resize(length, 1);
    has_weights |= std::ranges::any_of(piece.weights, [](float weight) { return weight != 1; });
  }
  if (!has_weights) tokens.weights.clear();
  return tokens;
}

// Multiplies each token's numbers with its weight, and all of them so that their mean stays what it was, as Stable Diffusion
// web UI does.
void weigh(std::span<float> text, std::span<const float> weights) {
  const auto mean = [&] { return std::accumulate(text.begin(), text.end(), 0.0) / static_cast<double>(text.size()); };
  const double before = mean();
  const std::size_t width = text.size() / weights.size();
  for (std::size_t i = 0; i < text.size(); ++i) text[i] *= weights[i / width];
  const double factor = before / mean();
  if (!std::isfinite(factor)) return;
  for (float& number : text) number = static_cast<float>(number * factor);
}

class DiffusionContext final : public RunnerContext {
 public:
  DiffusionContext(const DiffusionNetwork& network, Prediction prediction, std::unique_ptr<GraphRunner> runner,
                   const PictureContextOptions& options, std::size_t work_bytes)
      : RunnerContext(std::move(runner), options, work_bytes), network_(network), prediction_(prediction) {}

  // A picture's branches: several pictures in a call would only be computed one after the other.
  [[nodiscard]] std::int32_t rows_max() const override { return 2; }

  [[nodiscard]] std::unique_ptr<PictureDrawing> new_drawing(const DrawingOptions& options,
                                                            const DrawingStart& start) const override {
    return std::make_unique<DiffusionDrawing>(options, prediction_, start);
  }

  Expected<bool> encode(std::span<const std::uint8_t> levels, std::int32_t width, std::int32_t height, CallMonitor* monitor,
                        std::vector<float>& out) override {
    return runner_->run<EncodeGraph>(
        monitor, [&](const EncodeGraph& graph) { return graph.picture->ne[0] == width && graph.picture->ne[1] == height; },
        [&] { return make_encode_graph(network_, width / kLatentScale, height / kLatentScale); },
        [&](const EncodeGraph& graph) { set_numbers(graph.picture, planes_of(levels)); },
        [&](const EncodeGraph& graph) { out = numbers_of(graph.latent); });
  }

  Expected<bool> read_caption(const CaptionTokens& tokens, CallMonitor* monitor, Caption& out) override {
    UMA_CHECK(!tokens.ids.empty() && tokens.ids.size() % kClipLength == 0);
    out = {};
    for (std::size_t at = 0; at < tokens.ids.size(); at += kClipLength) {
      const auto ids = std::span(tokens.ids).subspan(at, kClipLength);
      UMA_CHECK(std::ranges::all_of(ids, [](std::int32_t id) { return id >= 0 && id < kClipTokens; }));
      std::vector<float> text;
      auto done = runner_->run<TextGraph>(
          monitor, [](const TextGraph&) { return true; }, [&] { return make_text_graph(network_); },
          [&](const TextGraph& graph) { ggml_backend_tensor_set(graph.tokens, ids.data(), 0, ids.size_bytes()); },
          [&](const TextGraph& graph) { text = numbers_of(graph.text); });
      if (!done || !*done) return done;
      if (!tokens.weights.empty()) weigh(text, std::span(tokens.weights).subspan(at, kClipLength));
      out.text.insert(out.text.end(), text.begin(), text.end());
    }
    return true;
  }

  // One after the other: on a CPU that is as fast, and needs the memory of one.
  Expected<bool> denoise(std::span<const DenoiseRow> rows, CallMonitor* monitor, std::vector<float>& predicted) override {
    predicted.clear();
    for (const DenoiseRow& row : rows) {
      const std::int32_t width = row.width / kLatentScale;
      const std::int32_t height = row.height / kLatentScale;
      auto done = run_network(*runner_, network_, {width, height, row.time, row.noisy, row.caption->text}, monitor, predicted);
      if (!done || !*done) return done;
    }
    return true;
  }

  Expected<bool> decode(PictureDrawing& drawing, CallMonitor* monitor) override {
    UMA_CHECK(drawing.wants_decoding());
    const std::int32_t width = drawing.options().width / kLatentScale;
    const std::int32_t height = drawing.options().height / kLatentScale;
    bool is_whole = true;
    auto done = runner_->run<DecodeGraph>(
        monitor, [&](const DecodeGraph& graph) { return graph.latent->ne[0] == width && graph.latent->ne[1] == height; },
        [&] { return make_decode_graph(network_, width, height); },
        [&](const DecodeGraph& graph) { set_numbers(graph.latent, drawing.latent()); },
        [&](const DecodeGraph& graph) {
          const std::vector<float> picture = numbers_of(graph.picture);
          is_whole = std::ranges::all_of(picture, [](float number) { return std::isfinite(number); });
          if (is_whole) drawing.finish(levels_of(picture));
        });
    if (is_whole) return done;
    return fail(ErrorCode::runtime_decode, "the decoder computed numbers that are not finite: the model's file may be damaged");
  }

  struct NetworkInput {
    std::int32_t width = 0;  // Places.
    std::int32_t height = 0;
    float time = 0;
    std::span<const float> latent;
    std::span<const float> text;
  };
  // Appends what the network predicts.
  static Expected<bool> run_network(GraphRunner& runner, const DiffusionNetwork& network, const NetworkInput& in,
                                    CallMonitor* monitor, std::vector<float>& predicted) {
    const auto text_width = network.text_width();
    const auto tokens = static_cast<std::int32_t>(in.text.size() / static_cast<std::size_t>(text_width));
    return runner.run<NoiseGraph>(
        monitor,
        [&](const NoiseGraph& graph) {
          return graph.latent->ne[0] == in.width && graph.latent->ne[1] == in.height && graph.text->ne[1] == tokens;
        },
        [&] { return make_noise_graph(network, in.width, in.height, tokens); },
        [&](const NoiseGraph& graph) {
          set_numbers(graph.latent, in.latent);
          set_numbers(graph.waves, time_waves(static_cast<double>(in.time), static_cast<std::size_t>(graph.waves->ne[0])));
          set_numbers(graph.text, in.text);
        },
        [&](const NoiseGraph& graph) {
          const std::vector<float> numbers = numbers_of(graph.predicted);
          predicted.insert(predicted.end(), numbers.begin(), numbers.end());
        });
  }

 private:
  // From [height, width, channels] to [channels, height, width], from 0 to 1.
  static std::vector<float> planes_of(std::span<const std::uint8_t> levels) {
    const std::size_t pixels = levels.size() / 3;
    std::vector<float> planes(levels.size());
    for (std::size_t i = 0; i < planes.size(); ++i) planes[i] = static_cast<float>(levels[i % pixels * 3 + i / pixels]) / 255;
    return planes;
  }
  // From [channels, height, width] to [height, width, channels].
  static std::vector<std::uint8_t> levels_of(std::span<const float> picture) {
    const std::size_t pixels = picture.size() / 3;
    std::vector<std::uint8_t> levels(picture.size());
    for (std::size_t i = 0; i < picture.size(); ++i) {
      const float value = std::clamp(picture[i], 0.0F, 1.0F);
      levels[i % pixels * 3 + i / pixels] = static_cast<std::uint8_t>(std::lround(value * 255));
    }
    return levels;
  }

  const DiffusionNetwork& network_;
  const Prediction prediction_;
};

class DiffusionModel final : public LoadablePicture {
 public:
  DiffusionModel(DiffusionFile file, ChosenDevices devices)
      : LoadablePicture(std::move(devices), file.tensors.size()), file_(std::move(file)) {
    network_.family = file_.family;
    network_.text_layers = file_.text_layers;
    network_.is_on_device = !this->devices().empty();
  }

  // Describes the tensors that are needed. Errors: E_MODEL_002 with the tensor.
  [[nodiscard]] Expected<Unit> lay_out() {
    GraphObserver observer;
    if (auto checked = observe(observer); !checked) return checked;
    for (const std::string& name : observer.used) {
      const DiffusionTensor& tensor = file_.tensors.at(name);
      const auto sizes = sizes_in_memory(tensor);
      if (!holds_numbers(tensor.type))
        return fail(ErrorCode::model_load,
                    std::format("tensor {} has a type that is not read: convert the file to F16", tensor.name));
      const bool is_matrix = !is_vector_in_memory(name, tensor) && name != kTokenTable;
      auto type = static_cast<ggml_type>(tensor.type);
      // Rows of tables are only read from some types.
      if (name == kTokenTable && type != GGML_TYPE_F32) type = GGML_TYPE_F16;
      if (is_vector_in_memory(name, tensor)) type = GGML_TYPE_F32;
      network_.tensors[name] = weights_.add(type, sizes, is_matrix);
      parameters_ += static_cast<std::uint64_t>(ggml_nelements(network_.tensors[name]));
    }
    return Unit{};
  }

  [[nodiscard]] Expected<CaptionTokens> read_caption(std::string_view caption) const override {
    return caption_tokens(caption, file_.family == DiffusionFamily::sd1 ? kClipEnd : 0);
  }

 protected:
  Expected<Unit> each_graph(const PictureContextOptions& /*options*/, const UseGraph& use) const override {
    const std::int32_t width = file_.sizes.native / kLatentScale;
    const auto height = static_cast<std::int32_t>(file_.sizes.pixels_max / file_.sizes.native / kLatentScale);
    return each_of(network_, width, height, nullptr, use);
  }
  // The CPU multiplies with columns in the kernel's type.
  [[nodiscard]] std::size_t work_bytes() const override { return network_.column_bytes_max; }
  std::unique_ptr<PictureContext> make_context(std::unique_ptr<GraphRunner> runner,
                                               const PictureContextOptions& options) const override {
    return std::make_unique<DiffusionContext>(network_, prediction_, std::move(runner), options, work_bytes());
  }

  Expected<Unit> read_weights(const OnProgress& on_progress) override {
    std::string identity;
    for (std::size_t file = 0; file < file_.paths.size(); ++file) {
      auto own = model_identity(file_.paths[file]);
      if (!own) return std::unexpected(own.error());
      identity += *own;
      std::vector<FilePiece> pieces;
      std::vector<ggml_tensor*> targets;
      std::vector<ggml_type> types;
      for (const auto& [name, target] : network_.tensors) {
        const DiffusionTensor& tensor = file_.tensors.at(name);
        if (tensor.file != file) continue;
        pieces.push_back({tensor.name, tensor.offset, tensor.bytes});
        targets.push_back(target);
        types.push_back(static_cast<ggml_type>(tensor.type));
      }
      auto read = read_pieces(file_.paths[file], pieces, on_progress,
                              [&](std::size_t index, std::span<const std::byte> bytes) -> Expected<Unit> {
                                set_weight(targets[index], types[index], bytes);
                                return Unit{};
                              });
      if (!read) return read;
    }
    if (auto found = find_prediction(); !found) return found;
    facts_ = {.identity = std::move(identity),
              .description = std::format("Stable Diffusion {}{}, {:.0f} M parameters, predicts {}",
                                         file_.family == DiffusionFamily::sd1 ? 1 : 2, file_.by_its_name,
                                         static_cast<double>(parameters_) / 1e6,
                                         prediction_ == Prediction::noise ? "noise" : "velocities"),
              .sizes = file_.sizes,
              .defaults = file_.defaults,
              .reads_pictures = network_.has(kEncoder),
              .has_samplers = true,
              // Five latent pictures and the levels.
              .drawing_bytes_per_pixel = 5 * kLatentChannels * sizeof(float) / (kLatentScale * kLatentScale) + 3,
              .parameters = parameters_,
              .bytes = {}};
    return Unit{};
  }

 private:
  // The graphs that all computations are made of.
  static Expected<Unit> each_of(const DiffusionNetwork& network, std::int32_t width, std::int32_t height,
                                GraphObserver* observer, const UseGraph& use) {
    const auto take = [&](const auto& made) -> Expected<Unit> {
      if (!made) return std::unexpected(made.error());
      return use(**made);
    };
    if (auto used = take(make_text_graph(network, observer)); !used) return used;
    constexpr auto kTokensMax = static_cast<std::int32_t>(kPiecesMax) * kClipLength;
    if (auto used = take(make_noise_graph(network, width, height, kTokensMax, observer)); !used) return used;
    if (auto used = take(make_decode_graph(network, width, height, observer)); !used) return used;
    return network.has(kEncoder) ? take(make_encode_graph(network, width, height, observer)) : Unit{};
  }

  // Makes the graphs of all the file's tensors, to see which are used and whether they fit to each other.
  [[nodiscard]] Expected<Unit> observe(GraphObserver& observer) const {
    const ggml_context_ptr context(
        ggml_init({.mem_size = (file_.tensors.size() + 1) * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
    const auto described = describe_network(file_, context.get());
    if (!described) return std::unexpected(described.error());
    const DiffusionNetwork& all = *described;
    const std::int32_t side = file_.sizes.native / kLatentScale;
    auto checked = each_of(all, side, side, &observer, [](const ComputeGraph&) -> Expected<Unit> { return Unit{}; });
    if (!checked) return checked;
    const std::int64_t width = (*make_text_graph(all))->text->ne[0];
    const std::int64_t wanted = all.text_width();
    if (width != wanted)
      return fail(ErrorCode::model_load,
                  std::format("the text encoder computes {} numbers, and the network takes {}", width, wanted));
    return Unit{};
  }

  // Whether the library converts the type's numbers. Others must not be multiplied with.
  static bool holds_numbers(std::uint32_t type) {
    if (type >= GGML_TYPE_COUNT) return false;
    return type == GGML_TYPE_F32 || ggml_get_type_traits(static_cast<ggml_type>(type))->to_float != nullptr;
  }

  static void set_weight(ggml_tensor* tensor, ggml_type type, std::span<const std::byte> bytes) {
    if (type == tensor->type) return ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
    const std::int64_t count = ggml_nelements(tensor);
    std::vector<float> numbers(static_cast<std::size_t>(count));
    ggml_get_type_traits(type)->to_float(bytes.data(), numbers.data(), count);
    if (tensor->type == GGML_TYPE_F32) return set_numbers(tensor, numbers);
    std::vector<ggml_fp16_t> halves(numbers.size());
    ggml_fp32_to_fp16_row(numbers.data(), halves.data(), count);
    ggml_backend_tensor_set(tensor, halves.data(), 0, std::span(halves).size_bytes());
  }

  // Files of the second family do not say what is predicted. At the most noise, a prediction of noise is about the input, and
  // one of velocities about its opposite.
  [[nodiscard]] Expected<Unit> find_prediction() {
    constexpr std::int32_t kSide = 8;
    constexpr std::size_t kTokens = 2;
    constexpr float kValue = 0.5F;
    if (file_.predicts_velocity) {
      prediction_ = *file_.predicts_velocity ? Prediction::velocity : Prediction::noise;
      return Unit{};
    }
    const auto runner = new_runner(static_cast<std::int32_t>(std::clamp(std::thread::hardware_concurrency(), 1U, 4U)));
    if (!runner) return std::unexpected(runner.error());
    const std::vector<float> latent(std::size_t{kSide} * kSide * kLatentChannels, kValue);
    const auto text_width = network_.text_width();
    const std::vector<float> text(kTokens * static_cast<std::size_t>(text_width), kValue);
    std::vector<float> predicted;
    const auto done = DiffusionContext::run_network(**runner, network_, {kSide, kSide, NoiseLevels::kTimes - 1, latent, text},
                                                    nullptr, predicted);
    if (!done) return std::unexpected(done.error());
    const double mean = std::accumulate(predicted.begin(), predicted.end(), 0.0) / static_cast<double>(predicted.size());
    prediction_ = mean - static_cast<double>(kValue) < -1 ? Prediction::velocity : Prediction::noise;
    log_info("model   it predicts {}, as it seems: a card's `prediction` says otherwise",
             prediction_ == Prediction::noise ? "noise" : "velocities");
    return Unit{};
  }

  const DiffusionFile file_;
  DiffusionNetwork network_;
  Prediction prediction_ = Prediction::noise;
  std::uint64_t parameters_ = 0;
};

}  // namespace

Expected<std::shared_ptr<LoadablePicture>> diffusion_model_of(const PictureSource& source, ChosenDevices devices) {
  auto file = read_diffusion_file(source);
  if (!file) return std::unexpected(file.error());
  auto model = std::make_shared<DiffusionModel>(*std::move(file), std::move(devices));
  if (auto laid_out = model->lay_out(); !laid_out)
    return fail(laid_out.error().code, std::format("{}: {}", source.path, laid_out.error().message));
  return model;
}

}  // namespace uma::llm
