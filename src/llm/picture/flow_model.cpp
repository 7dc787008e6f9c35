// Models with the architecture uma-picture: rectified flow on pixels (flow_model_of() of loadable_picture.h).
#include <algorithm>
#include <array>
#include <cstring>
#include <format>
#include <optional>
#include <utility>

#include "base/check.h"
#include "llm/llama_model.h"
#include "llm/picture/flow_drawing.h"
#include "llm/picture/loadable_picture.h"
#include "llm/picture/picture_graph.h"
#include "llm/picture/picture_words.h"
#include "llm/picture/time_waves.h"

namespace uma::llm {
namespace {

constexpr const char* kPlaces = "places";

class FlowContext final : public RunnerContext {
 public:
  FlowContext(const PictureFile& file, const PictureTensors& tensors, std::unique_ptr<GraphRunner> runner,
              const PictureContextOptions& options)
      : RunnerContext(std::move(runner), options), shape_(file.shape), shift_(file.shift), tensors_(tensors) {}

  [[nodiscard]] std::unique_ptr<PictureDrawing> new_drawing(const DrawingOptions& options,
                                                            const DrawingStart& start) const override {
    UMA_CHECK(options.width == shape_.image_size && options.height == shape_.image_size);
    return std::make_unique<FlowDrawing>(options, shift_, start);
  }

  Expected<bool> encode(std::span<const std::uint8_t> levels, std::int32_t /*width*/, std::int32_t /*height*/,
                        CallMonitor* /*monitor*/, std::vector<float>& out) override {
    out.clear();
    for (const std::uint8_t level : levels) out.push_back(static_cast<float>(level) / 127.5F - 1);
    return true;
  }

  Expected<bool> read_caption(const CaptionTokens& tokens, CallMonitor* monitor, Caption& out) override {
    UMA_CHECK(std::cmp_equal(tokens.ids.size(), shape_.text_length));
    using Made = Expected<std::unique_ptr<CaptionGraph>>;
    return runner_->run<CaptionGraph>(
        monitor, [](const CaptionGraph&) { return true; }, [&]() -> Made { return make_caption_graph(shape_, tensors_); },
        [&](const CaptionGraph& graph) {
          ggml_backend_tensor_set(graph.words, tokens.ids.data(), 0, std::span(tokens.ids).size_bytes());
        },
        [&](const CaptionGraph& graph) { out = {.text = numbers_of(graph.text), .pooled = numbers_of(graph.pooled)}; });
  }

  Expected<bool> denoise(std::span<const DenoiseRow> rows, CallMonitor* monitor, std::vector<float>& predicted) override {
    UMA_CHECK(!rows.empty() && std::cmp_less_equal(rows.size(), options_.rows_max));
    using Made = Expected<std::unique_ptr<DenoiseGraph>>;
    return runner_->run<DenoiseGraph>(
        monitor, [&](const DenoiseGraph& graph) { return std::cmp_equal(graph.patches->ne[2], rows.size()); },
        [&]() -> Made { return make_denoise_graph(shape_, tensors_, static_cast<std::int32_t>(rows.size())); },
        [&](const DenoiseGraph& graph) { give(graph, rows); },
        [&](const DenoiseGraph& graph) { from_patches(numbers_of(graph.clean), rows.size(), predicted); });
  }

  Expected<bool> decode(PictureDrawing& /*drawing*/, CallMonitor* /*monitor*/) override { return true; }

 private:
  void give(const DenoiseGraph& graph, std::span<const DenoiseRow> rows) const {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      set_row(graph.patches, row, to_patches(rows[row].noisy));
      set_row(graph.waves, row,
              time_waves(1000 * static_cast<double>(rows[row].time), static_cast<std::size_t>(shape_.time_frequencies)));
      set_row(graph.text, row, rows[row].caption->text);
      set_row(graph.pooled, row, rows[row].caption->pooled);
    }
  }
  static void set_row(ggml_tensor* tensor, std::size_t row, std::span<const float> numbers) {
    ggml_backend_tensor_set(tensor, numbers.data(), row * numbers.size_bytes(), numbers.size_bytes());
  }

  // Calls `move(index in the picture, index in the patches)` for each line of each patch.
  template <class Move>
  void each_line(const Move& move) const {
    const auto patch = static_cast<std::size_t>(shape_.patch);
    const auto grid = static_cast<std::size_t>(shape_.grid());
    for (std::size_t place = 0; place < grid * grid; ++place) {
      for (std::size_t y = 0; y < patch; ++y) {
        const std::size_t row = place / grid * patch + y;
        const std::size_t column = place % grid * patch;
        move((row * grid * patch + column) * 3, (place * patch + y) * patch * 3);
      }
    }
  }
  [[nodiscard]] std::vector<float> to_patches(std::span<const float> picture) const {
    std::vector<float> patches(picture.size());
    const auto line = static_cast<std::size_t>(shape_.patch) * 3;
    each_line([&](std::size_t from, std::size_t to) {
      std::ranges::copy(picture.subspan(from, line), patches.begin() + static_cast<std::ptrdiff_t>(to));
    });
    return patches;
  }
  void from_patches(std::span<const float> patches, std::size_t rows, std::vector<float>& pictures) const {
    pictures.resize(patches.size());
    const auto line = static_cast<std::size_t>(shape_.patch) * 3;
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t begin = row * static_cast<std::size_t>(shape_.numbers());
      each_line([&](std::size_t to, std::size_t from) {
        std::ranges::copy(patches.subspan(begin + from, line), pictures.begin() + static_cast<std::ptrdiff_t>(begin + to));
      });
    }
  }

  const PictureShape& shape_;
  const float shift_;
  const PictureTensors& tensors_;
};

class FlowModel final : public LoadablePicture {
 public:
  FlowModel(PictureFile file, std::string path, ChosenDevices devices, const PictureSource& source)
      : LoadablePicture(std::move(devices), file.header.tensors.size() + 1),
        file_(std::move(file)),
        path_(std::move(path)),
        words_(file_.words, file_.shape.text_length) {
    facts_ = {.identity = {},
              .description =
                  std::format("{}, {:.3g} M parameters", file_.header.name, static_cast<double>(file_.header.parameters) / 1e6),
              .sizes = sizes_of(file_.shape),
              .defaults = {.steps = source.steps.value_or(file_.steps), .guidance = source.guidance.value_or(file_.guidance)},
              .reads_pictures = true,
              .drawing_bytes_per_pixel = 2 * 3 * sizeof(float),
              .parameters = file_.header.parameters,
              .bytes = {}};
    lay_out();
  }

  [[nodiscard]] Expected<CaptionTokens> read_caption(std::string_view caption) const override {
    constexpr std::int32_t kWordsBegin = 2;  // Behind the pad and the beginning.
    auto ids = words_.encode(caption);
    if (!ids) return std::unexpected(ids.error());
    const auto count = std::ranges::count_if(*ids, [](std::int32_t id) { return id >= kWordsBegin; });
    return CaptionTokens{.ids = *std::move(ids), .weights = {}, .count = count};
  }

 protected:
  Expected<Unit> each_graph(const PictureContextOptions& options, const UseGraph& use) const override {
    return use(*make_denoise_graph(file_.shape, tensors_, options.rows_max));
  }
  std::unique_ptr<PictureContext> make_context(std::unique_ptr<GraphRunner> runner,
                                               const PictureContextOptions& options) const override {
    return std::make_unique<FlowContext>(file_, tensors_, std::move(runner), options);
  }

  Expected<Unit> read_weights(const OnProgress& on_progress) override {
    auto identity = model_identity(path_);
    if (!identity) return std::unexpected(identity.error());
    facts_.identity = *std::move(identity);
    std::vector<FilePiece> pieces;
    for (const GgufTensor& tensor : file_.header.tensors)
      pieces.push_back({tensor.name, file_.header.data_offset + tensor.offset, tensor.bytes});
    auto read =
        read_pieces(path_, pieces, on_progress, [&](std::size_t index, std::span<const std::byte> bytes) -> Expected<Unit> {
          const std::string& name = pieces[index].name;
          if (const auto scores = scores_of(name)) {
            set_scores(tensors_.at(*scores), {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)});
          } else {
            ggml_backend_tensor_set(tensors_.at(name), bytes.data(), 0, bytes.size());
          }
          return Unit{};
        });
    if (read) set_places();
    return read;
  }

 private:
  // Describes the tensors.
  void lay_out() {
    const PictureShape& shape = file_.shape;
    for (const GgufTensor& tensor : file_.header.tensors) {
      if (const auto scores = scores_of(tensor.name)) {
        const std::int64_t sizes[] = {shape.tokens(), shape.tokens(), shape.heads};
        tensors_[*scores] = weights_.add(GGML_TYPE_F32, sizes, false);
        continue;
      }
      const std::vector<std::int64_t> sizes(tensor.sizes.begin(), tensor.sizes.end());
      tensors_[tensor.name] = weights_.add(static_cast<ggml_type>(tensor.type), sizes, tensor.name.ends_with(".weight"));
    }
    const std::int64_t sizes[] = {shape.width, shape.patches()};
    tensors_[kPlaces] = weights_.add(GGML_TYPE_F32, sizes, false);
  }

  void set_places() {
    const auto width = static_cast<std::size_t>(file_.shape.width);
    const auto grid = static_cast<std::size_t>(file_.shape.grid());
    const std::vector<float> rows = numbers_of(tensors_.at("pos_row"));
    const std::vector<float> columns = numbers_of(tensors_.at("pos_col"));
    const std::vector<float> types = numbers_of(tensors_.at("type_embd"));
    std::vector<float> places;
    for (std::size_t place = 0; place < grid * grid; ++place) {
      for (std::size_t i = 0; i < width; ++i) {
        places.push_back(rows[place / grid * width + i] + columns[place % grid * width + i] + types[width + i]);
      }
    }
    set_numbers(tensors_.at(kPlaces), places);
  }

  // "blk.N.scores" for "blk.N.attn_bias".
  static std::optional<std::string> scores_of(const std::string& name) {
    constexpr std::string_view kBias = ".attn_bias";
    if (!name.ends_with(kBias)) return std::nullopt;
    return name.substr(0, name.size() - kBias.size()) + ".scores";
  }

  // From [bias_rows, heads] to [heads, queries, keys].
  void set_scores(ggml_tensor* tensor, std::span<const float> bias) const {
    const PictureShape& shape = file_.shape;
    const std::int32_t side = 2 * shape.grid() - 1;
    const auto row_of = [&](std::int32_t query, std::int32_t key) {
      const std::int32_t from = query - shape.text_length;
      const std::int32_t to = key - shape.text_length;
      if (from < 0) return side * side + (to < 0 ? 0 : 1);
      if (to < 0) return side * side + 2;
      const std::int32_t down = from / shape.grid() - to / shape.grid() + shape.grid() - 1;
      return down * side + from % shape.grid() - to % shape.grid() + shape.grid() - 1;
    };
    std::vector<float> scores;  // Scores of one head: those of all may be a gigabyte.
    for (std::int32_t head = 0; head < shape.heads; ++head) {
      scores.clear();
      for (std::int32_t query = 0; query < shape.tokens(); ++query) {
        for (std::int32_t key = 0; key < shape.tokens(); ++key) {
          const auto row = static_cast<std::size_t>(row_of(query, key));
          scores.push_back(bias[row * static_cast<std::size_t>(shape.heads) + static_cast<std::size_t>(head)]);
        }
      }
      const std::size_t size = scores.size() * sizeof(float);
      ggml_backend_tensor_set(tensor, scores.data(), static_cast<std::size_t>(head) * size, size);
    }
  }

  const PictureFile file_;
  const std::string path_;
  const PictureWords words_;
  PictureTensors tensors_;
};

}  // namespace

PictureSizes sizes_of(const PictureShape& shape) {
  return {.native = shape.image_size,
          .multiple = 0,
          .pixels_max = std::int64_t{shape.image_size} * shape.image_size,
          .pixels_per_place = shape.patch};
}

Expected<std::shared_ptr<LoadablePicture>> flow_model_of(const PictureSource& source, ChosenDevices devices) {
  auto file = read_picture_file(source.path);
  if (!file) return std::unexpected(file.error());
  return std::make_shared<FlowModel>(*std::move(file), source.path, std::move(devices), source);
}

}  // namespace uma::llm
